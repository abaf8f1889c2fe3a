import { stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { CapstanError } from '../errors';
import type { FitOptions } from './fit';
import type { ModelInfo } from './model-info';
import { demandHubName, type HubName, isHubOnly, NAME_FORM, parseHubName } from './model-name';
import { pullWith } from './models';
import { type DownloadProgress, findCached, type PulledModel } from './pull';
import { type HubChoice, type HubSettings, hubSettings } from './settings';
import { type HubSystem, withSystem } from './system';

/** A model on this machine. */
export interface LocatedModel {
  /** A directory in Hugging Face's layout, or a GGUF file. */
  path: string;
  /** `ORG/NAME` of a model from the hub; undefined: the name of the path. */
  name: string | undefined;
}

export interface LocateOptions {
  hub: HubChoice;
  signal: AbortSignal | undefined;
  engineOptions: FitOptions;
  onProgress: (progress: DownloadProgress) => void;
  onDownload: ((info: ModelInfo) => void) | undefined;
}

/**
 * Finds a model: an existing path, or a name on the hub. Downloads it unless the cache has it.
 * @throws CapstanError `model_not_found` for a text that is neither, or as `pullModel`.
 */
export async function locateModel(text: string, options: LocateOptions): Promise<LocatedModel> {
  if (!isHubOnly(text) && (await exists(text))) return { path: text, name: undefined };
  if (isPath(text)) {
    const expected = 'a path that exists';
    const place = resolve(text);
    throw new CapstanError(
      'model_not_found',
      `model ${JSON.stringify(text)}: expected ${expected}, got none at ${place}`,
      {
        param: 'model',
        expected,
        received: text,
      },
    );
  }
  const name = isHubOnly(text) ? demandHubName(text) : parseHubName(text);
  if (name === undefined) throw notFound(text, `it is not a name on the hub, ${NAME_FORM}`);
  const settings = hubSettings(options.hub, process.env);
  const cached = await findCached(name, settings, false);
  const { path } = cached ?? (await withSystem({}, (system) => pullOrUseOld(text, name, settings, options, system)));
  return { path, name: name.repository };
}

/** Uses an incomplete snapshot that can be loaded, if the hub cannot be asked. */
async function pullOrUseOld(
  text: string,
  name: HubName,
  settings: HubSettings,
  options: LocateOptions,
  system: HubSystem,
): Promise<PulledModel> {
  const { hub, signal, engineOptions, onProgress, onDownload } = options;
  const beforeWeights = (info: ModelInfo): void => {
    if (info.problem !== null) throw new CapstanError('unsupported_model', `${name.repository}: ${info.problem}`);
    onDownload?.(info);
  };
  try {
    const all = {
      engineOptions,
      onProgress,
      onDownload: beforeWeights,
      ...hub,
      ...(signal && { signal }),
    };
    return await pullWith(text, all, system);
  } catch (error) {
    const { code, message } = error as CapstanError;
    const old = code === 'download_failed' ? await findCached(name, settings, true) : undefined;
    if (old !== undefined) return old;
    if (code === 'model_not_found' && !isHubOnly(text)) throw notFound(text, message);
    throw error;
  }
}

/** Whether a text can only be a path, or is one by its ending: `models/chat.gguf` has the form of a name on the hub. */
function isPath(text: string): boolean {
  return !isHubOnly(text) && /^(\.{0,2}\/|~|\.{1,2}$)|\.gguf$/.test(text) && !text.includes(':');
}

async function exists(path: string): Promise<boolean> {
  // A name that is too long, or has a zero byte, is not a path.
  return (await stat(path).catch(() => undefined)) !== undefined;
}

function notFound(text: string, reason: string): CapstanError {
  const expected = `a path that exists, a name on the hub, or 'demo'`;
  return new CapstanError(
    'model_not_found',
    `model ${JSON.stringify(text)}: expected ${expected}: there is no such path, and ${reason}`,
    { param: 'model', expected, received: text },
  );
}
