import { createHash, type Hash } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, rename } from 'node:fs/promises';
import { dirname } from 'node:path';
import { CapstanError, showValue } from '../errors';
import { type RepositoryCache, sizeOf } from './cache';
import { withFileLock } from './file-lock';
import { type HubClient, type HubResponse, transient } from './hub-client';
import type { Purpose } from './hub-errors';
import { type HubFile, isUnchecked, type Listing } from './repository';
import { TransientError, withRetries } from './retry';
import { type HubSystem, throwIfAborted } from './system';

/** Attempts without a new byte before a file fails. */
const MAX_ATTEMPTS = 6;
/** Times that a file is downloaded from its start because its hash was wrong. */
const MAX_WRONG_HASHES = 2;
const READ_BYTES = 1 << 20;

/** A download of one commit. */
export interface Transfer {
  client: HubClient;
  system: HubSystem;
  cache: RepositoryCache;
  listing: Listing;
  purpose: Purpose;
  signal: AbortSignal;
  /** Called with the number of new bytes. Negative if bytes turned out to be wrong. */
  onBytes: (change: number) => void;
}

/**
 * Makes the content of a file a blob of the cache. Continues a download that was interrupted, checks size and hash, and
 * waits for another process that downloads the same file.
 */
export async function downloadBlob(file: HubFile, transfer: Transfer): Promise<void> {
  const { cache, system, signal, onBytes } = transfer;
  const isDone = async (): Promise<boolean> => (await sizeOf(cache.blob(file.etag))) === file.size;
  await withFileLock(cache.lock(file.etag), system, signal, async () => {
    if (await isDone()) return onBytes(file.size);
    await mkdir(dirname(cache.blob(file.etag)), { recursive: true });
    const partial = await open(cache.incomplete(file.etag), constants.O_RDWR | constants.O_CREAT);
    try {
      await receive(file, partial, transfer);
      await partial.datasync();
    } catch (error) {
      throw explainDisk(error, file, (await partial.stat()).size, transfer);
    } finally {
      await partial.close();
    }
    await rename(cache.incomplete(file.etag), cache.blob(file.etag));
  });
}

/** Fills the open file until its hash is right. */
async function receive(file: HubFile, partial: FileHandle, transfer: Transfer): Promise<void> {
  const { purpose, signal, system } = transfer;
  const what = `cannot download ${file.path} of ${purpose.repository}`;
  let mostBytes = -1;
  for (let wrongHashes = 0; ;) {
    const content = await Content.open(file, partial, transfer);
    await withRetries({ what, maxAttempts: MAX_ATTEMPTS, signal }, system, (onProgress) =>
      fetchRest(content, file, transfer, () => {
        // Bytes that were received before, from a host that always starts again, do not count as progress.
        if (content.size <= mostBytes) return;
        mostBytes = content.size;
        onProgress();
      }),
    );
    const received = content.digest();
    if (received === file.etag || isUnchecked(file)) return;
    await content.clear();
    if (++wrongHashes === MAX_WRONG_HASHES)
      throw new CapstanError(
        'download_failed',
        `${what}: expected content with the hash ${file.etag}, got ${received}, ${MAX_WRONG_HASHES} times. ` +
          'A proxy or a mirror may have changed it',
      );
  }
}

/** Requests what is missing and writes it. Throws TransientError if the connection ends early. */
async function fetchRest(
  content: Content,
  file: HubFile,
  { client, listing, purpose, signal }: Transfer,
  onChunk: () => void,
): Promise<void> {
  if (content.size === file.size) return;
  const headers: Record<string, string> = content.size > 0 ? { Range: `bytes=${content.size}-` } : {};
  const request = { method: 'GET' as const, headers, signal };
  const response = await client.open(listing.urlOf(file), { ...purpose, file: file.path }, request, [416]);
  try {
    checkIdentity(file, response, listing.commit);
    await content.continueWith(response);
    for await (const chunk of transient(response.body)) {
      throwIfAborted(signal, 'download');
      await content.append(chunk);
      onChunk();
    }
  } catch (error) {
    response.body.destroy();
    throw error;
  }
  if (content.size < file.size)
    throw new TransientError(`the connection ended after ${content.size} of ${file.size} bytes`);
}

/** The hub names the content and the commit it sends. Storage hosts name neither. */
function checkIdentity(file: HubFile, { header }: HubResponse, commit: string): void {
  const { path, etag, size } = file;
  const linked = header('x-linked-etag')?.replace(/^W\//, '').replaceAll('"', '');
  const sent = header('x-repo-commit') ?? commit;
  const isSize = Number(header('x-linked-size') ?? size) === size;
  if ((linked === undefined || linked === etag || isUnchecked(file)) && isSize && sent === commit) return;
  throw new CapstanError(
    'download_failed',
    `${path}: expected ${size} bytes, ${etag}, of commit ${commit}, ` +
      `got ${showHeader(header('x-linked-size') ?? size)} bytes, ${showHeader(linked ?? etag)}, ` +
      `of ${showHeader(sent)}. ` +
      'The repository changed. Try again',
  );
}

/** Shows what the hub has sent. Terminals obey control characters, those above 127 included. */
function showHeader(value: string | number): string {
  return showValue(value).replace(/\p{Cc}/gu, '?');
}

/** The received part of a file: its bytes on disk and their hash. */
class Content {
  readonly #file: HubFile;
  readonly #partial: FileHandle;
  readonly #transfer: Pick<Transfer, 'system' | 'onBytes'>;
  #hash: Hash;
  #size = 0;

  private constructor(file: HubFile, partial: FileHandle, transfer: Transfer) {
    this.#file = file;
    this.#partial = partial;
    this.#transfer = transfer;
    this.#hash = newHash(file);
  }

  /** Reads what an earlier download has left. */
  static async open(file: HubFile, partial: FileHandle, transfer: Transfer): Promise<Content> {
    const content = new Content(file, partial, transfer);
    const { size } = await partial.stat();
    if (size > file.size) await partial.truncate(0);
    const buffer = Buffer.alloc(READ_BYTES);
    while (content.#size < size && size <= file.size) {
      throwIfAborted(transfer.signal, 'download');
      const { bytesRead } = await partial.read(buffer, 0, buffer.length, content.#size);
      if (bytesRead === 0) break;
      content.#count(buffer.subarray(0, bytesRead));
    }
    return content;
  }

  get size(): number {
    return this.#size;
  }

  /** Prepares for the body of a response, which continues the content or starts it again. */
  async continueWith({ status, headers }: HubResponse): Promise<void> {
    if (status === 200) return this.clear();
    const [, start, total] = /^bytes (\d+)-\d+\/(\d+)$/.exec(String(headers['content-range'])) ?? [];
    if (status === 206 && Number(start) === this.#size && Number(total) === this.#file.size) return;
    // The storage has another content, or cannot continue.
    await this.clear();
    throw new TransientError('the storage host did not continue the file');
  }

  async append(chunk: Buffer): Promise<void> {
    if (this.#size + chunk.length > this.#file.size) {
      await this.clear();
      throw new TransientError(`the storage host sent more than ${this.#file.size} bytes`);
    }
    await this.#transfer.system.write(this.#partial, chunk, this.#size);
    this.#count(chunk);
  }

  async clear(): Promise<void> {
    await this.#partial.truncate(0);
    if (this.#size > 0) this.#transfer.onBytes(-this.#size);
    this.#size = 0;
    this.#hash = newHash(this.#file);
  }

  digest(): string {
    return this.#hash.copy().digest('hex');
  }

  #count(bytes: Buffer): void {
    this.#hash.update(bytes);
    this.#size += bytes.length;
    this.#transfer.onBytes(bytes.length);
  }
}

/** Git hashes a file with its size in front. */
function newHash({ etag, size }: HubFile): Hash {
  return etag.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`);
}

/** Adds to an error of a full disk what is needed. */
function explainDisk(error: unknown, file: HubFile, written: number, { cache, client, purpose }: Transfer): unknown {
  const { code, message, syscall } = error as NodeJS.ErrnoException;
  if (error instanceof CapstanError || syscall === undefined) return error;
  const what = `cannot write ${file.path} of ${purpose.repository} to ${cache.folder}`;
  if (code !== 'ENOSPC' && code !== 'EDQUOT')
    return new CapstanError('io_error', `${what}: ${message}`, { cause: error });
  return new CapstanError(
    'io_error',
    `${what}: the disk is full. It needs ${file.size - written} more bytes. ` +
      `Free space, or ${client.settings.moveAdvice}. The next download continues`,
    { cause: error },
  );
}
