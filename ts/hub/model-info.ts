import { readFile } from 'node:fs/promises';
import { CapstanError } from '../errors';
import { parseJsonObject } from '../model/json-file';
import { readKnownConfig, readModelConfig } from '../model/config';
import { canLoadQuantization } from '../model/gguf/tensor-types';
import { sizeOf } from './cache';
import { checkGguf, type GgufCheck } from './gguf-check';
import { estimateFit, type FitInput, type FitOptions, type ModelFit } from './fit';
import type { HubClient } from './hub-client';
import type { PullPlan } from './pull';
import { isUnchecked } from './repository';
import { quantizationsOf } from './select-files';
import type { HubSystem } from './system';

const NOTHING_FOUND: GgufCheck = { types: [], problem: null };
/** Mixtures of Unsloth: some layers have other types than the name says. */
const MIXTURE = /^UD-/;

/** A model from the hub: what a load downloads, and whether it fits. */
export interface ModelInfo {
  /** `ORG/NAME` */
  repository: string;
  /** Branch, tag or commit that the name asks for. Default: the default branch of the hub. */
  revision: string;
  /** Hash of the commit, 40 hexadecimal digits. */
  commit: string;
  /** Format of the files with weights. */
  format: 'safetensors' | 'gguf';
  /** The quantization of the chosen files, such as `Q4_K_M` or `AWQ, 4 bits`, or null. */
  quantization: string | null;
  /** The files that a load needs. */
  files: {
    /** Path inside the repository. */
    path: string;
    /** Size in bytes. */
    sizeBytes: number;
    /** Whether the cache has the file. */
    isCached: boolean;
  }[];
  /** Sum of the sizes of `files`. */
  totalBytes: number;
  /** Bytes that are not in the cache yet. */
  downloadBytes: number;
  /** The files whose content is not checked, because the mirror gives no hash of them. */
  uncheckedFiles: string[];
  /** The GGUF quantizations that the repository has. */
  quantizations: {
    /** Name of the quantization, such as `Q4_K_M`. */
    name: string;
    /** Size of its files in bytes. */
    sizeBytes: number;
    /** Whether this quantization fits, as the verdict of {@link ModelFit}. Null: a GPU, or it cannot be loaded. */
    fits: boolean | null;
  }[];
  /** Why this version cannot run the model, or null. */
  problem: string | null;
  /** Null for a GPU. */
  fit: ModelFit | null;
}

/** What a plan is described with. */
export interface DescribeParts {
  /** Text of config.json, if the repository has it. */
  config: string | undefined;
  options: FitOptions;
  client: HubClient;
  system: HubSystem;
  signal: AbortSignal;
}

export async function describePlan(
  plan: PullPlan,
  { config, options, client, system, signal }: DescribeParts,
): Promise<ModelInfo> {
  const { name, revision, commit, selection, listing, cache, missingBytes } = plan;
  const { format, quantization, texts, weights } = selection;
  const sum = (files: readonly { size: number | undefined }[]): number =>
    files.reduce((total, { size }) => total + (size ?? 0), 0);
  const sizes = quantizationsOf(listing.files).map(({ name: title, parts }) => ({
    name: title ?? parts[0].path,
    bytes: sum(parts),
  }));
  const input: FitInput = {
    config,
    fileBytes: sum(weights),
    format,
    quantization,
    quantizations: sizes,
    options,
    availableBytes: system.freeMemoryBytes(),
  };
  const isNameRefused = quantization !== null && !canLoadQuantization(quantization);
  const gguf = format === 'gguf' && !isNameRefused ? await checkGguf(plan, client, signal) : NOTHING_FOUND;
  const canLoad = (title: string): boolean =>
    canLoadQuantization(title) && !(title === quantization && gguf.types.length > 0);
  const fitsWith = (title: string, fileBytes: number): boolean | null => {
    const fit = canLoad(title) ? estimateFit({ ...input, format: 'gguf', quantization: title, fileBytes }) : undefined;
    return fit === undefined ? null : fit.verdict === 'fits';
  };
  const variants = sizes.map(({ name: title, bytes }) => ({
    name: title,
    sizeBytes: bytes,
    fits: fitsWith(title, bytes),
  }));
  const files = [...texts, ...weights].map(async ({ path, size, etag }) => ({
    path,
    sizeBytes: size,
    isCached: (await sizeOf(cache.blob(etag))) === size,
  }));
  return {
    repository: name.repository,
    revision,
    commit,
    format,
    quantization: quantization ?? quantizationOf(config),
    files: await Promise.all(files),
    totalBytes: sum([...texts, ...weights]),
    downloadBytes: missingBytes,
    uncheckedFiles: [...texts, ...weights].filter(isUnchecked).map(({ path }) => path),
    quantizations: variants,
    problem:
      format === 'safetensors' ? problemOf(config) : (shown(gguf.problem) ?? ggufProblem(quantization, gguf, variants)),
    fit: estimateFit(input) ?? null,
  };
}

/** Returns the quantization that config.json states, or null. */
function quantizationOf(config: string | undefined): string | null {
  return (config === undefined ? undefined : readKnownConfig(config)?.quantization?.title) ?? null;
}

/** The name of a quantization shows most types of tensors that its files have, and their headers show all. */
function ggufProblem(
  quantization: string | null,
  { types }: GgufCheck,
  variants: ModelInfo['quantizations'],
): string | null {
  const chosen = quantization ?? 'a file';
  if (types.length > 0)
    return `expected ${insteadOf(quantization, variants)}, got ${chosen}, which has tensors of the type ${types.join(' and ')}. Tensors of this type cannot be loaded`;
  if (quantization === null || canLoadQuantization(quantization)) return null;
  return `expected ${insteadOf(quantization, variants)}, got ${chosen}, whose tensor types cannot be loaded`;
}

/** Names what to take instead: first those that fit and are no mixtures of types. */
function insteadOf(refused: string | null, variants: ModelInfo['quantizations']): string {
  const others = variants.filter(({ name }) => name !== refused && canLoadQuantization(name));
  const fitting = others.filter(({ fits }) => fits !== false);
  const usable = fitting.length > 0 ? fitting : others;
  const plain = usable.filter(({ name }) => !MIXTURE.test(name));
  const names = (plain.length > 0 ? plain : usable).map(({ name }) => name);
  return names.length === 0 ? 'a quantization such as Q4_K_M' : `one of ${names.join(', ')}`;
}

function problemOf(config: string | undefined): string | null {
  if (config === undefined) return 'config.json: expected the file in the repository, got none';
  try {
    readModelConfig(parseJsonObject(config, 'config.json'), undefined);
    return null;
  } catch (error) {
    if (error instanceof CapstanError) return shown(error.message);
    throw error;
  }
}

/** The text is from the hub, and terminals obey control characters. */
function shown(message: string | null): string | null {
  return message?.replace(/\p{Cc}/gu, '?') ?? null;
}

/** Returns the text of config.json from the cache, or undefined if the repository has none. */
export async function cachedConfig({ selection, cache }: PullPlan): Promise<string | undefined> {
  const file = selection.texts.find(({ path }) => path === 'config.json');
  return file === undefined ? undefined : readFile(cache.blob(file.etag), 'utf8');
}
