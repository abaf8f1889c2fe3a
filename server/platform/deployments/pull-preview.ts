import fs from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { type HubKind, type ModelInfo, modelInfo } from 'capstan/internal';
import { checkModelName, type PullRequest } from './data-pulls';

/** A model, and how it will run. */
export interface PullQuestion extends PullRequest {
  hub?: HubKind;
  max_model_len?: number;
  quantization?: 'none' | 'int8' | 'int4';
}

/** What a pull would download, and whether the model fits. */
export interface PullPreview {
  repository: string;
  revision: string;
  commit: string;
  format: 'safetensors' | 'gguf';
  quantization: string | null;
  files: { path: string; size_bytes: number }[];
  total_bytes: number;
  /** Null without a data root. */
  free_disk_bytes: number | null;
  unchecked_files: string[];
  quantizations: { name: string; size_bytes: number; fits: boolean | null }[];
  problem: string | null;
  fit: {
    weight_bytes: number;
    kv_cache_bytes: number;
    context_length: number;
    available_bytes: number;
    machine_bytes: number;
    verdict: 'fits' | 'tight' | 'too_large';
    suggestion: { variant: string | null; quantization: 'int8' | 'int4' | null } | null;
  } | null;
}

/** A cache that does not exist, so that models in the service's own cache are not used. */
const NO_CACHE = path.join(os.tmpdir(), 'capstan-no-cache');

/** Asks the hub about a model. Downloads nothing but config.json. @throws CapstanError, ServiceError */
export async function previewPull(
  { model, hub, token, max_model_len: length, quantization }: PullQuestion,
  dataRoots: readonly string[],
  signal: AbortSignal,
): Promise<PullPreview> {
  const info = await modelInfo(checkModelName('model', model), {
    ...(hub === undefined ? {} : { hub }),
    token: token ?? null,
    cacheDir: NO_CACHE,
    signal,
    engineOptions: {
      ...(length === undefined ? {} : { maxModelLen: length }),
      ...(quantization === undefined ? {} : { quantization }),
    },
  });
  return toPreview(info, await freeBytes(dataRoots[0]));
}

async function freeBytes(folder: string | undefined): Promise<number | null> {
  if (folder === undefined) return null;
  const { bavail, bsize } = await fs.statfs(folder);
  return bavail * bsize;
}

function toPreview(info: ModelInfo, freeDiskBytes: number | null): PullPreview {
  const { repository, revision, commit, format, quantization, files, totalBytes, quantizations, problem } = info;
  return {
    repository,
    revision,
    commit,
    format,
    quantization,
    files: files.map(({ path: name, sizeBytes }) => ({ path: name, size_bytes: sizeBytes })),
    total_bytes: totalBytes,
    free_disk_bytes: freeDiskBytes,
    unchecked_files: info.uncheckedFiles,
    quantizations: quantizations.map(({ name, sizeBytes, fits }) => ({ name, size_bytes: sizeBytes, fits })),
    problem,
    fit: toFit(info.fit),
  };
}

function toFit(fit: ModelInfo['fit']): PullPreview['fit'] {
  if (fit === null) return null;
  const { suggestion } = fit;
  return {
    weight_bytes: Math.ceil(fit.weightBytes),
    kv_cache_bytes: Math.ceil(fit.kvCacheBytes),
    context_length: fit.contextLength,
    available_bytes: Math.floor(fit.availableBytes),
    machine_bytes: Math.floor(fit.machineBytes),
    verdict: fit.verdict,
    suggestion:
      suggestion === null
        ? null
        : {
            variant: 'variant' in suggestion ? suggestion.variant : null,
            quantization: 'quantization' in suggestion ? suggestion.quantization : null,
          },
  };
}
