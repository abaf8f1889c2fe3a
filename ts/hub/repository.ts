import { createHash } from 'node:crypto';
import { CapstanError, showValue } from '../errors';
import type { HubClient } from './hub-client';
import type { Purpose } from './hub-errors';
import { isSafePath } from './model-name';

/** A file of a repository, as the hub lists it. Mirrors may leave out size and hash. */
export interface ListedFile {
  path: string;
  size: number | undefined;
  etag: string | undefined;
}

/** A file of a repository whose size is known. */
export interface HubFile {
  path: string;
  size: number;
  /**
   * Name of the file's content: its SHA-256 (64 digits) or the SHA-1 of its Git blob (40 digits), in hexadecimal.
   * Another name if the hub gives no hash, see {@link isUnchecked}.
   */
  etag: string;
}

/** The files of one commit. Their names are safe to use below a folder. */
export interface Listing {
  commit: string;
  files: ListedFile[];
  /** Returns the address of a file. */
  urlOf: (file: { path: string }) => URL;
}

const MAX_FILES = 50_000;
/** Requests for the size and hash of files that are sent at the same time. */
const MAX_HEADS = 4;
const UNCHECKED = 'unchecked-';
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
  const lines = files.map(({ path, etag, size }) => `${etag ?? size} ${path}\n`).sort();
  const commit = createHash('sha1').update(lines.join('')).digest('hex');
  const folder = `/models/${repository}/resolve/${encodePath(revision)}`;
  return { commit, files, urlOf: ({ path }) => client.url(`${folder}/${encodePath(path)}`) };
}

/** Whether the hub gives no hash of the file, so that its content cannot be checked. */
export function isUnchecked({ etag }: HubFile): boolean {
  return etag.startsWith(UNCHECKED);
}

/**
 * Returns files with the sizes and hashes that the list lacks, from the headers of each file.
 * @throws CapstanError as {@link HubClient.getJson}, and `download_failed` for a file without a size.
 */
export async function completeFiles(
  files: readonly ListedFile[],
  { urlOf, commit }: Listing,
  client: HubClient,
  purpose: Purpose,
  signal: AbortSignal,
): Promise<HubFile[]> {
  const complete = async (file: ListedFile): Promise<HubFile> => {
    if (file.size !== undefined && file.etag !== undefined) return { ...file, size: file.size, etag: file.etag };
    const header = await client.getHeaders(urlOf(file), { ...purpose, file: file.path }, signal);
    const linkedSize = file.size ?? header('x-linked-size');
    const isEncoded = (header('content-encoding') ?? 'identity') !== 'identity';
    if (linkedSize === undefined && isEncoded)
      throw malformed(purpose.repository, `the size of ${showValue(file.path)}`, 'that of its compressed form');
    const size = Number(linkedSize ?? header('content-length'));
    if (!Number.isSafeInteger(size) || size < 0)
      throw malformed(purpose.repository, `the size of ${showValue(file.path)}`, 'none');
    // Other servers send an ETag of another kind. A reply with a commit is one on the hub.
    const sent = header('x-linked-etag') ?? (header('x-repo-commit') === undefined ? undefined : header('etag'));
    const hash = sent?.replace(/^W\//, '').replaceAll('"', '') ?? '';
    const name = createHash('sha1').update(`${commit} ${file.path} ${size}`).digest('hex');
    return { path: file.path, size, etag: file.etag ?? (ETAG.test(hash) ? hash : UNCHECKED + name) };
  };
  const completed: HubFile[] = [];
  for (let start = 0; start < files.length; start += MAX_HEADS)
    completed.push(...(await Promise.all(files.slice(start, start + MAX_HEADS).map(complete))));
  return completed;
}

function asFiles(value: unknown, repository: string): Record<string, unknown>[] {
  if (!Array.isArray(value)) throw malformed(repository, 'a list of files', showValue(value));
  if (value.length > MAX_FILES) throw malformed(repository, `at most ${MAX_FILES} files`, String(value.length));
  return value.map(asRecord);
}

function toFile(repository: string, path: unknown, size: unknown, etag: unknown): ListedFile {
  if (typeof path !== 'string') throw malformed(repository, 'a file name', showValue(path));
  if (isGiven(size) && (!Number.isSafeInteger(size) || (size as number) < 0))
    throw malformed(repository, `the size of ${showValue(path)}`, showValue(size));
  if (isGiven(etag) && (typeof etag !== 'string' || !ETAG.test(etag)))
    throw malformed(repository, `the SHA-256 or Git hash of ${showValue(path)}`, showValue(etag));
  return { path, size: (size as number | null) ?? undefined, etag: (etag as string | null) ?? undefined };
}

function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
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
