import { mkdir } from 'node:fs/promises';
import { CapstanError } from '../errors';
import { type CachedFile, RepositoryCache, sizeOf, usingCache } from './cache';
import { downloadBlob, type Transfer } from './download';
import { HubClient } from './hub-client';
import { type HubName, showHubName } from './model-name';
import { completeFiles, type HubFile, type Listing, listRepository } from './repository';
import { INDEX_FILE, type Selection, selectFiles, SINGLE_FILE } from './select-files';
import type { HubSettings } from './settings';
import type { HubSystem } from './system';

/** Files that are downloaded at the same time. */
const MAX_PARALLEL_FILES = 4;
/** Files that a model may lack. A request showed whether it does, so that the next load needs none. */
const OPTIONAL_FILES = ['generation_config.json', 'tokenizer_config.json', 'chat_template.jinja'];
/** A repository without these has GGUF files only. */
const SAFETENSORS = [SINGLE_FILE, INDEX_FILE];
/** Without one of these a snapshot is not complete. */
const TOKENIZERS = ['tokenizer.json', 'tokenizer.model', 'tekken.json'];

const MAX_CONFIG_BYTES = 2 ** 20;
/** Limit of a tokenizer and of the other files beside the weights. The largest vocabularies have about 40 MB. */
const MAX_TEXT_BYTES = 2 ** 27;

/** Progress of a download, in bytes. */
export interface DownloadProgress {
  /** Bytes in the cache so far, including those of earlier downloads. Decreases if a file had a wrong hash. */
  doneBytes: number;
  /** Bytes of all files that the model needs. */
  totalBytes: number;
}

/** What a model consists of, before its weights are downloaded. */
export interface PullPlan {
  name: HubName;
  /** The revision in `refs/`: that of the name, or the default branch. */
  revision: string;
  commit: string;
  selection: Selection<HubFile>;
  listing: Listing;
  cache: RepositoryCache;
  /** Whether the cache has every file. One that has all its bytes may still have to be checked. */
  isCached: boolean;
  /** Bytes that are not in the cache yet. */
  missingBytes: number;
}

export interface PullHooks {
  signal: AbortSignal;
  onProgress: (progress: DownloadProgress) => void;
  /** Called once config.json is in the cache, if other files are missing. An error ends the pull. */
  beforeFiles: (plan: PullPlan, client: HubClient) => Promise<void>;
}

/** A model that is in the cache. */
export interface PulledModel {
  /** Hash of the commit, 40 hexadecimal digits. */
  commit: string;
  /** The folder of the snapshot, or the first GGUF file. */
  path: string;
  /** The files of the model, relative to the snapshot. The snapshot may also hold files of another quantization. */
  files: string[];
}

/** Asks the hub for the files of a revision and downloads those that are missing. */
export async function pull(
  name: HubName,
  settings: HubSettings,
  system: HubSystem,
  hooks: PullHooks,
): Promise<PulledModel> {
  return usingCache(settings.cacheDir, 'write to', () => pullInto(name, settings, system, hooks));
}

async function pullInto(
  name: HubName,
  settings: HubSettings,
  system: HubSystem,
  hooks: PullHooks,
): Promise<PulledModel> {
  const client = new HubClient(settings, system);
  const plan = await planPull(name, client, hooks.signal);
  const { cache, commit, selection, listing, revision } = plan;
  const files = [...selection.texts, ...selection.weights];
  if (!plan.isCached) {
    // huggingface_hub takes a repository without this folder for a damaged one.
    await mkdir(cache.snapshots, { recursive: true });
    const purpose = { repository: name.repository, revision };
    const report = progressReport(files, hooks.onProgress);
    const transfer = { client, system, cache, listing, purpose, onBytes: report };
    const isConfig = ({ path }: HubFile): boolean => path === 'config.json';
    await downloadAll(selection.texts.filter(isConfig), transfer, hooks.signal);
    if ((await missingOf(files, cache)).length > 0) await hooks.beforeFiles(plan, client);
    await checkDisk(plan, settings, system);
    const texts = selection.texts.filter((file) => !isConfig(file));
    await downloadAll(texts, transfer, hooks.signal);
    await downloadAll(selection.weights, transfer, hooks.signal);
  }
  for (const { path, etag } of files) await cache.link(commit, path, etag);
  const isListed = (path: string): boolean => listing.files.some((file) => file.path === path);
  // Only the pull that takes the default quantization shows which one the name means.
  const isDefaultGguf = selection.format === 'gguf' && name.variant === undefined;
  const optional = isDefaultGguf ? [...OPTIONAL_FILES, ...SAFETENSORS] : OPTIONAL_FILES;
  for (const path of optional) if (!isListed(path)) await cache.markMissing(commit, path);
  if ((await missingOf(files, cache)).length > 0)
    throw new CapstanError(
      'download_failed',
      `${name.repository}: expected the downloaded files in ${cache.folder}, got fewer: ` +
        'the model was deleted in the meantime. Try again',
    );
  // Last, so that the revision never names a commit that is not complete.
  await cache.setCommit(revision, commit);
  return { commit, path: pathOf(cache, commit, selection), files: files.map(({ path }) => path) };
}

/** Asks the hub which files a model has. Downloads nothing. */
export async function planPull(name: HubName, client: HubClient, signal: AbortSignal): Promise<PullPlan> {
  const { cacheDir, defaultRevision } = client.settings;
  const revision = name.revision ?? defaultRevision;
  const listing = await listRepository(client, name.repository, revision, signal);
  const selected = selectFiles(name.repository, listing.files, name.variant);
  const purpose = { repository: name.repository, revision };
  const texts = await completeFiles(selected.texts, listing, client, purpose, signal);
  const weights = await completeFiles(selected.weights, listing, client, purpose, signal);
  const selection: Selection<HubFile> = { ...selected, texts, weights };
  checkTexts(name.repository, selection.texts);
  const cache = new RepositoryCache(cacheDir, name.repository);
  const missing = await missingOf([...selection.texts, ...selection.weights], cache);
  const sizes = missing.map(async ({ etag, size }) => size - ((await sizeOf(cache.incomplete(etag))) ?? 0));
  const missingBytes = (await Promise.all(sizes)).reduce((sum, size) => sum + Math.max(0, size), 0);
  const isCached = missing.length === 0;
  return { name, revision, commit: listing.commit, selection, listing, cache, isCached, missingBytes };
}

/**
 * Returns a model that the cache has completely, or undefined.
 * @param isLast Takes what can be loaded, also if the repository may have more, because the hub cannot be asked.
 */
export function findCached(name: HubName, settings: HubSettings, isLast: boolean): Promise<PulledModel | undefined> {
  return usingCache(settings.cacheDir, 'read', () => findIn(name, settings, isLast));
}

async function findIn(name: HubName, settings: HubSettings, isLast: boolean): Promise<PulledModel | undefined> {
  const cache = new RepositoryCache(settings.cacheDir, name.repository);
  const commit = await cache.commitOf(name.revision ?? settings.defaultRevision);
  if (commit === undefined) return undefined;
  const files = await cache.files(commit);
  const selection = selectComplete(name, files);
  if (selection === undefined) return undefined;
  const named = [...selection.texts, ...selection.weights].map(({ path }) => path);
  const found = { commit, path: pathOf(cache, commit, selection), files: named };
  if (selection.format === 'gguf') {
    if (name.variant !== undefined || isLast) return found;
    // The repository may have safetensors that were not downloaded.
    const isMissing = await Promise.all(SAFETENSORS.map((path) => cache.isKnownMissing(commit, path)));
    return isMissing.every(Boolean) ? found : undefined;
  }
  const has = (path: string): boolean => files.some((file) => file.path === path);
  const isComplete =
    has('config.json') &&
    TOKENIZERS.some(has) &&
    // huggingface_hub may have downloaded single files. This one holds the chat template of most models.
    (isLast || has('tokenizer_config.json') || (await cache.isKnownMissing(commit, 'tokenizer_config.json')));
  return isComplete ? found : undefined;
}

function selectComplete(name: HubName, files: CachedFile[]): Selection<CachedFile> | undefined {
  try {
    return selectFiles(name.repository, files, name.variant);
  } catch (error) {
    if (error instanceof CapstanError) return undefined;
    throw error;
  }
}

function pathOf(cache: RepositoryCache, commit: string, { format, weights }: Selection<{ path: string }>): string {
  const folder = cache.snapshot(commit);
  return format === 'gguf' ? `${folder}/${weights[0].path}` : folder;
}

async function missingOf(files: readonly HubFile[], cache: RepositoryCache): Promise<HubFile[]> {
  const isMissing = await Promise.all(files.map(async ({ etag, size }) => (await sizeOf(cache.blob(etag))) !== size));
  return files.filter((_, i) => isMissing[i]);
}

/** @throws CapstanError `download_failed` for a file that would fill the memory when it is read. */
function checkTexts(repository: string, texts: readonly HubFile[]): void {
  const limitOf = (path: string): number => (path === 'config.json' ? MAX_CONFIG_BYTES : MAX_TEXT_BYTES);
  const large = texts.find(({ path, size }) => size > limitOf(path));
  if (large === undefined) return;
  throw new CapstanError(
    'download_failed',
    `${repository}: expected at most ${limitOf(large.path)} bytes for ${large.path}, got ${large.size}. ` +
      'Check the name of the model, or use another',
  );
}

/** @throws CapstanError `io_error` if the disk has less space than the download needs. */
async function checkDisk(
  { name, missingBytes }: PullPlan,
  { cacheDir, moveAdvice }: HubSettings,
  system: HubSystem,
): Promise<void> {
  const free = await system.freeDiskBytes(cacheDir);
  if (free >= missingBytes) return;
  throw new CapstanError(
    'io_error',
    `${showHubName(name)} needs ${missingBytes} more bytes in ${cacheDir}, and the disk has ${free} bytes free. ` +
      `Free space, or ${moveAdvice}`,
  );
}

function progressReport(files: readonly HubFile[], onProgress: PullHooks['onProgress']): (change: number) => void {
  const contents = new Map(files.map(({ etag, size }) => [etag, size]));
  const totalBytes = [...contents.values()].reduce((sum, size) => sum + size, 0);
  let doneBytes = 0;
  return (change) => {
    doneBytes += change;
    onProgress({ doneBytes, totalBytes });
  };
}

/** Downloads several files at the same time, the largest first. The first error ends the others. */
async function downloadAll(
  files: readonly HubFile[],
  transfer: Omit<Transfer, 'signal'>,
  outer: AbortSignal,
): Promise<void> {
  const failed = new AbortController();
  const signal = AbortSignal.any([outer, failed.signal]);
  const contents = [...new Map(files.map((file) => [file.etag, file])).values()];
  const queue = contents.sort((a, b) => b.size - a.size);
  const errors: unknown[] = [];
  const work = async (): Promise<void> => {
    for (let file = queue.shift(); file !== undefined && errors.length === 0; file = queue.shift()) {
      await downloadBlob(file, { ...transfer, signal }).catch((error: unknown) => {
        errors.push(error);
        failed.abort();
      });
    }
  };
  await Promise.all(Array.from({ length: MAX_PARALLEL_FILES }, work));
  if (errors.length > 0) throw errors[0];
}
