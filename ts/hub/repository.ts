import { createHash } from 'node:crypto';
import { CapstanError, showValue } from '../errors';
import type { HubClient } from './hub-client';
import { isSafePath } from './model-name';

/** A file of a repository, as the hub lists it. */
export interface HubFile {
  path: string;
  size: number;
  /** Name of the file's content: its SHA-256 (64 digits) or the SHA-1 of its Git blob (40 digits), in hexadecimal. */
  etag: string;
}

/** The files of one commit. Their names are safe to use below a folder. */
export interface Listing {
  commit: string;
  files: HubFile[];
  /** Returns the address of a file. */
  urlOf: (file: HubFile) => URL;
}

const MAX_FILES = 50_000;
const COMMIT = /^[0-9a-f]{40}$/;
const ETAG = /^(?:[0-9a-f]{40}|[0-9a-f]{64})$/;

/** @throws CapstanError as {@link HubClient.getJson}, and `download_failed` for a list that is malformed or unsafe. */
export async function listRepository(
  client: HubClient,
  repository: string,
  revision: string,
  signal: AbortSignal,
): Promise<Listing> {
  const list = client.settings.kind === 'huggingface' ? listHuggingFace : listModelScope;
  const listing = await list(client, repository, revision, signal);
  const unsafe = listing.files.find(({ path }) => !isSafePath(path));
  if (unsafe !== undefined)
    throw malformed(repository, 'file names that are relative paths without ".."', showValue(unsafe.path));
  return listing;
}

async function listHuggingFace(
  client: HubClient,
  repository: string,
  revision: string,
  signal: AbortSignal,
): Promise<Listing> {
  const url = client.url(`/api/models/${repository}/revision/${encodeURIComponent(revision)}`, { blobs: 'true' });
  const reply = asRecord(await client.getJson(url, { repository, revision }, signal));
  const commit = reply.sha;
  if (typeof commit !== 'string' || !COMMIT.test(commit))
    throw malformed(repository, 'a commit of 40 hexadecimal digits', showValue(commit));
  const files = asFiles(reply.siblings, repository).map(({ rfilename, size, blobId, lfs }) => {
    const { sha256, size: lfsSize } = asRecord(lfs);
    return toFile(repository, rfilename, lfsSize ?? size, sha256 ?? blobId);
  });
  return { commit, files, urlOf: ({ path }) => client.url(`/${repository}/resolve/${commit}/${encodePath(path)}`) };
}

/** ModelScope names no commit here, so the names and contents of the files take its place. */
async function listModelScope(
  client: HubClient,
  repository: string,
  revision: string,
  signal: AbortSignal,
): Promise<Listing> {
  const query = { Revision: revision, Recursive: 'true' };
  const url = client.url(`/api/v1/models/${repository}/repo/files`, query);
  const reply = asRecord(await client.getJson(url, { repository, revision }, signal));
  const files = asFiles(asRecord(reply.Data).Files, repository)
    .filter(({ Type: type }) => type !== 'tree')
    .map(({ Path: path, Size: size, Sha256: sha256 }) => toFile(repository, path, size, sha256));
  const lines = files.map(({ path, etag }) => `${etag} ${path}\n`).sort();
  const commit = createHash('sha1').update(lines.join('')).digest('hex');
  const folder = `/models/${repository}/resolve/${encodePath(revision)}`;
  return { commit, files, urlOf: ({ path }) => client.url(`${folder}/${encodePath(path)}`) };
}

function asFiles(value: unknown, repository: string): Record<string, unknown>[] {
  if (!Array.isArray(value)) throw malformed(repository, 'a list of files', showValue(value));
  if (value.length > MAX_FILES) throw malformed(repository, `at most ${MAX_FILES} files`, String(value.length));
  return value.map(asRecord);
}

function toFile(repository: string, path: unknown, size: unknown, etag: unknown): HubFile {
  if (typeof path !== 'string') throw malformed(repository, 'a file name', showValue(path));
  if (!Number.isSafeInteger(size) || (size as number) < 0)
    throw malformed(repository, `the size of ${showValue(path)}`, showValue(size));
  if (typeof etag !== 'string' || !ETAG.test(etag))
    throw malformed(repository, `the SHA-256 or Git hash of ${showValue(path)}`, showValue(etag));
  return { path, size: size as number, etag };
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function encodePath(path: string): string {
  return path.split('/').map(encodeURIComponent).join('/');
}

function malformed(repository: string, expected: string, received: string): CapstanError {
  return new CapstanError('download_failed', `${repository}: expected ${expected} from the hub, got ${received}`);
}
