import { posix } from 'node:path';
import { CapstanError } from '../errors';
import { type GgufHeader, MAX_HEADER_BYTES, readGgufHeader, readHeader } from '../model/gguf/header';
import { unloadableTypes } from '../model/gguf/loadable';
import { sizeOf } from './cache';
import type { HubClient } from './hub-client';
import type { PullPlan } from './pull';
import type { HubFile } from './repository';

/** What the headers of GGUF files say about a load. */
export interface GgufCheck {
  /** Types of tensors that cannot be loaded, such as `IQ3_S`. The name of a quantization may not show them. */
  types: string[];
  /** Why no file of this model can be loaded, or null. */
  problem: string | null;
}

const PASSED: GgufCheck = { types: [], problem: null };
/** Arrays of the tokenizer are large, and not needed here. */
const isWanted = (key: string): boolean => !key.startsWith('tokenizer.');

/** Reads the headers of the chosen files, from the cache or by a request for the beginning of each file. */
export async function checkGguf(plan: PullPlan, client: HubClient, signal: AbortSignal): Promise<GgufCheck> {
  const { weights } = plan.selection;
  const types = new Set<string>();
  let first: GgufHeader | undefined;
  try {
    for (const file of weights) {
      const header = await headerOf(file, plan, client, signal);
      first ??= header;
      for (const type of unloadableTypes(header, first.metadata, first.name)) types.add(type);
    }
    return { types: [...types], problem: null };
  } catch (error) {
    if (!(error instanceof CapstanError)) throw error;
    // The download explains why a file cannot be had.
    if (error.code === 'access_denied') return PASSED;
    if (error.code !== 'invalid_model' && error.code !== 'unsupported_model') throw error;
    return { types: [], problem: error.message };
  }
}

async function headerOf(
  file: HubFile,
  { cache, listing, name: { repository }, revision }: PullPlan,
  client: HubClient,
  signal: AbortSignal,
): Promise<GgufHeader> {
  const { path, size, etag } = file;
  const name = posix.basename(path);
  if ((await sizeOf(cache.blob(etag))) === size) return readGgufHeader(cache.blob(etag), name, isWanted);
  const purpose = { repository, revision, file: path };
  return client.readStart(listing.urlOf(file), purpose, Math.min(size, MAX_HEADER_BYTES), signal, (handle) =>
    readHeader({ handle, name, size }, isWanted),
  );
}
