import { checkKnownKeys, checkObject, checkString } from '../checks';
import { CapstanError } from '../errors';
import { usingCache } from './cache';
import { type CachedRepository, readCache, removeFromCache } from './cache-contents';
import type { FitOptions } from './fit';
import { HubClient } from './hub-client';
import { cachedConfig, describePlan, type ModelInfo } from './model-info';
import { demandHubName } from './model-name';
import { type DownloadProgress, findCached, planPull, pull, type PulledModel } from './pull';
import { checkHubChoice, type HubKind, type HubSettings, hubSettings } from './settings';
import { type HubSystem, withSystem } from './system';

/** Options of functions that use the hub. */
export interface HubOptions {
  /** Where models are downloaded from. Default: `'huggingface'`, or its mirror in `HF_ENDPOINT`. */
  hub?: HubKind;
  /** A token, which is sent to the hub only. null: none. Default: that of the environment, such as `HF_TOKEN`. */
  token?: string | null;
  /** Folder of the cache. Default: that of the environment, such as `HF_HUB_CACHE`. */
  cacheDir?: string;
  /** Aborting it makes the call reject with code `aborted`. A later download continues. */
  signal?: AbortSignal;
  /** The options that the model will be loaded with, to estimate whether it fits. */
  engineOptions?: FitOptions;
}

/** Options of {@link pullModel}. */
export interface PullOptions extends HubOptions {
  /** Called while files are downloaded. If it throws, the call rejects with that error. */
  onProgress?: (progress: DownloadProgress) => void;
  /** Called before files other than config.json are downloaded. If it throws or rejects, so does the call. */
  onDownload?: (info: ModelInfo) => void | Promise<void>;
}

/** Options of {@link listModels} and {@link removeModel}. */
export type CacheOptions = Pick<HubOptions, 'hub' | 'cacheDir'>;

const HUB_OPTIONS = ['hub', 'token', 'cacheDir', 'signal', 'engineOptions'];

/**
 * Downloads a model from the hub into the cache of huggingface_hub, or brings it up to date.
 * @param name `ORG/NAME[@revision][:quantization or file]`
 * @throws CapstanError `invalid_argument`, `model_not_found`, `access_denied`, `download_failed`, `io_error` or
 *   `aborted`.
 */
export async function pullModel(name: string, options: PullOptions = {}): Promise<PulledModel> {
  checkOptions(options, [...HUB_OPTIONS, 'onProgress', 'onDownload']);
  return withSystem({}, (system) => pullWith(name, options, system));
}

/** {@link pullModel} on a given system. */
export async function pullWith(name: string, options: PullOptions, system: HubSystem): Promise<PulledModel> {
  const hubName = demandHubName(checkString('name', name));
  const settings = hubSettings(options, system.env);
  const { signal = new AbortController().signal, engineOptions = {}, onProgress, onDownload } = options;
  if (settings.isOffline) {
    const cached = await findCached(hubName, settings, true);
    if (cached !== undefined) return cached;
  }
  return pull(hubName, settings, system, {
    signal,
    onProgress: (progress) => onProgress?.(progress),
    beforeFiles: async (plan, client) => {
      if (onDownload === undefined) return;
      const parts = { config: await cachedConfig(plan), options: engineOptions, client, system, signal };
      await onDownload(await describePlan(plan, parts));
    },
  });
}

/**
 * Returns what a load of a model would download, and whether it fits. Downloads nothing but config.json and the
 * headers of GGUF files.
 * @param name `ORG/NAME[@revision][:quantization or file]`
 * @throws CapstanError as {@link pullModel}.
 */
export async function modelInfo(name: string, options: HubOptions = {}): Promise<ModelInfo> {
  checkOptions(options, HUB_OPTIONS);
  return withSystem({}, (system) => infoWith(name, options, system));
}

/** {@link modelInfo} on a given system. */
export async function infoWith(name: string, options: HubOptions, system: HubSystem): Promise<ModelInfo> {
  const hubName = demandHubName(checkString('name', name));
  const settings = hubSettings(options, system.env);
  if (settings.isOffline)
    throw new CapstanError('download_failed', 'HF_HUB_OFFLINE forbids the request that describes a model. Unset it');
  const client = new HubClient(settings, system);
  const { signal = new AbortController().signal, engineOptions = {} } = options;
  const plan = await usingCache(settings.cacheDir, 'read', () => planPull(hubName, client, signal));
  const file = plan.selection.texts.find(({ path }) => path === 'config.json');
  const purpose = { repository: hubName.repository, revision: plan.revision, file: 'config.json' };
  const config = file === undefined ? undefined : await client.getText(plan.listing.urlOf(file), purpose, signal);
  const parts = { config, options: engineOptions, client, system, signal };
  return usingCache(settings.cacheDir, 'read', () => describePlan(plan, parts));
}

/**
 * Returns the models in the cache, those of other programs included.
 * @throws CapstanError `io_error` if the cache cannot be read.
 */
export async function listModels(options: CacheOptions = {}): Promise<CachedRepository[]> {
  const { cacheDir } = cacheSettings(options);
  return usingCache(cacheDir, 'read', () => readCache(cacheDir));
}

/**
 * Deletes a model from the cache: one revision and the files that only it uses, or all. Returns the freed bytes.
 * @param name `ORG/NAME[@revision]`
 * @throws CapstanError `model_not_found`, or `io_error` while a process downloads the model.
 */
export async function removeModel(name: string, options: CacheOptions = {}): Promise<number> {
  const { repository, revision, variant } = demandHubName(checkString('name', name));
  if (variant !== undefined) throw CapstanError.argument('name', 'ORG/NAME[@revision]', name);
  const { cacheDir } = cacheSettings(options);
  return withSystem({}, (system) =>
    usingCache(cacheDir, 'delete from', () => removeFromCache(cacheDir, repository, revision, system)),
  );
}

function cacheSettings(options: CacheOptions): HubSettings {
  checkOptions(options, ['hub', 'cacheDir']);
  return hubSettings(options, process.env);
}

function checkOptions(options: object, known: string[]): void {
  checkKnownKeys('options', checkObject('options', options), known);
  const { signal, onProgress, onDownload } = options as PullOptions;
  checkHubChoice(options);
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw CapstanError.argument('signal', 'an AbortSignal', signal);
  for (const [name, call] of Object.entries({ onProgress, onDownload }))
    if (call !== undefined && typeof call !== 'function') throw CapstanError.argument(name, 'a function', call);
}
