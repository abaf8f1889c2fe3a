import { createReadStream } from 'node:fs';
import { mkdir, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ApiError } from '../../base/errors';
import { newId } from '../../base/ids';
import { show } from '../../base/json/validate';
import type { Log } from '../../base/log';
import type { Reach } from '../../base/reach';
import { readRecord, syncFolder, TEMPORARY, writeAtomically } from './disk';
import { MAX_FILES } from './limits';
import { type FileRecord, maySee, type Owned } from './records';

const RECORD = '.json';
const CONTENT = '.jsonl';

/** What an owner uses of the limits. */
interface Usage {
  /** Files with a record. */
  numFiles: number;
  numBytes: number;
}

/**
 * Files of clients and of results, in one folder. A file has a record beside its content, which is written last.
 * Content without a record belongs to a batch that has not ended, or is what a crash left.
 */
export class FileStore {
  readonly #folder: string;
  readonly #maxBytes: number;
  readonly #ownerShare: number;
  readonly #files = new Map<string, FileRecord>();
  /** Content without a record. */
  readonly #unpublished = new Map<string, { ownerId: string; bytes: number }>();
  readonly #usages = new Map<string, Usage>();
  #numBytes = 0;

  private constructor(folder: string, maxBytes: number, ownerShare: number) {
    this.#folder = folder;
    this.#maxBytes = maxBytes;
    this.#ownerShare = ownerShare;
  }

  /**
   * @param ownerShare The share of the limits that the uploads and results of one owner may use.
   * @param writerOf Returns the owner of the batch that writes to the file and has not ended.
   */
  static async open(
    folder: string,
    {
      maxBytes,
      ownerShare,
      writerOf,
      log,
    }: { maxBytes: number; ownerShare: number; writerOf: (id: string) => string | undefined; log: Log },
  ): Promise<FileStore> {
    const store = new FileStore(folder, maxBytes, ownerShare);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const names = await readdir(folder);
    for (const name of names.filter((candidate) => candidate.endsWith(RECORD))) {
      const record = await readRecord<FileRecord>(join(folder, name), isFileRecord);
      if (record === undefined) log.warn({ file: name }, 'a damaged record of a file was removed');
      else store.#add(record);
    }
    for (const name of names) {
      const id = name.slice(0, name.indexOf('.'));
      if (store.#files.has(id) && !name.endsWith(TEMPORARY)) continue;
      const writer = name === id + CONTENT ? writerOf(id) : undefined;
      if (writer !== undefined) store.setUnpublished(id, (await stat(join(folder, name))).size, writer);
      else await rm(join(folder, name), { force: true });
    }
    return store;
  }

  /** @throws ApiError `storage_full`. */
  async create(owned: Owned, filename: string, content: Uint8Array): Promise<FileRecord> {
    const { ownerId } = owned;
    const id = newId('file');
    this.checkNumFiles(1, 1, ownerId);
    this.checkSpace(content.length, ownerId);
    this.setUnpublished(id, content.length, ownerId);
    try {
      await writeAtomically(this.contentPath(id), content);
      return await this.publish({ ...owned, id, filename, purpose: 'batch', bytes: content.length });
    } catch (error) {
      this.setUnpublished(id, 0, ownerId);
      await rm(this.contentPath(id), { force: true }).catch(() => {});
      throw error;
    }
  }

  /** Makes content that is complete visible to its owner. */
  async publish(fields: Omit<FileRecord, 'createdAt'>): Promise<FileRecord> {
    const record = { ...fields, createdAt: Math.floor(Date.now() / 1000) };
    await writeAtomically(join(this.#folder, record.id + RECORD), JSON.stringify(record));
    this.setUnpublished(record.id, 0, record.ownerId);
    this.#add(record);
    return record;
  }

  /** @throws ApiError `file_not_found`, also for a file that the client may not have. */
  get(ownerId: string, id: string, reach: Reach = null, param = 'file_id'): FileRecord {
    const record = this.#files.get(id);
    if (record === undefined || !maySee(record, ownerId, reach))
      throw new ApiError('file_not_found', `${param}: expected the id of a file, got ${show(id)}`, { param });
    return record;
  }

  has(id: string): boolean {
    return this.#files.has(id);
  }

  /** The newest first. */
  list(ownerId: string, reach: Reach = null): FileRecord[] {
    return [...this.#files.values()].filter((record) => maySee(record, ownerId, reach)).sort(newestFirst);
  }

  contentPath(id: string): string {
    return join(this.#folder, id + CONTENT);
  }

  read(id: string): AsyncIterable<Buffer> {
    return createReadStream(this.contentPath(id));
  }

  async delete({ id, ownerId, bytes }: FileRecord): Promise<void> {
    if (this.#files.delete(id)) this.#count(ownerId, -1, -bytes);
    // The record goes first: content without one is removed at the next start.
    await rm(join(this.#folder, id + RECORD), { force: true });
    await syncFolder(this.#folder);
    await this.deleteContent(id);
  }

  async deleteContent(id: string): Promise<void> {
    this.setUnpublished(id, 0, this.#unpublished.get(id)?.ownerId ?? '');
    await rm(this.contentPath(id), { force: true });
  }

  /** Counts the bytes of content that has no record yet. */
  setUnpublished(id: string, bytes: number, ownerId: string): void {
    this.#count(ownerId, 0, bytes - (this.#unpublished.get(id)?.bytes ?? 0));
    if (bytes === 0) this.#unpublished.delete(id);
    else this.#unpublished.set(id, { ownerId, bytes });
  }

  /** @throws ApiError `storage_full` if the limits of all files or of one owner leave less. */
  checkSpace(bytes: number, ownerId: string): void {
    if (this.#numBytes + bytes > this.#maxBytes)
      throw new ApiError(
        'storage_full',
        `All files together may take ${this.#maxBytes} bytes and take ${this.#numBytes}: delete some, or raise --max-batch-storage`,
      );
    const maxBytes = Math.floor(this.#maxBytes * this.#ownerShare);
    const { numBytes } = this.#usageOf(ownerId);
    if (numBytes + bytes > maxBytes)
      throw new ApiError(
        'storage_full',
        `The files of one owner, results of batches included, may take ${maxBytes} bytes together and take ${numBytes}: delete some`,
      );
  }

  /**
   * Checks that `ofAll` more files fit the limit of all owners, and `ofOwner` more files that of one owner.
   * @throws ApiError `storage_full`.
   */
  checkNumFiles(ofAll: number, ofOwner: number, ownerId: string): void {
    if (this.#files.size + ofAll > MAX_FILES)
      throw new ApiError(
        'storage_full',
        `The server keeps at most ${MAX_FILES} files, two results of each batch included: delete some`,
      );
    const maxFiles = Math.floor(MAX_FILES * this.#ownerShare);
    if (this.#usageOf(ownerId).numFiles + ofOwner > maxFiles)
      throw new ApiError(
        'storage_full',
        `The server keeps at most ${maxFiles} files of one owner, two results of each batch included: delete some`,
      );
  }

  owners(): Iterable<string> {
    return Array.from(this.#files.values(), ({ ownerId }) => ownerId);
  }

  #add(record: FileRecord): void {
    this.#files.set(record.id, record);
    this.#count(record.ownerId, 1, record.bytes);
  }

  #usageOf(ownerId: string): Usage {
    return this.#usages.get(ownerId) ?? { numFiles: 0, numBytes: 0 };
  }

  #count(ownerId: string, numFiles: number, numBytes: number): void {
    const usage = this.#usageOf(ownerId);
    const next = { numFiles: usage.numFiles + numFiles, numBytes: usage.numBytes + numBytes };
    if (next.numFiles === 0 && next.numBytes === 0) this.#usages.delete(ownerId);
    else this.#usages.set(ownerId, next);
    this.#numBytes += numBytes;
  }
}

/** Ids sort by the time of their creation. */
export function newestFirst(a: { id: string }, b: { id: string }): number {
  return a.id < b.id ? 1 : -1;
}

function isFileRecord({ id, bytes }: Partial<FileRecord>): boolean {
  return typeof id === 'string' && typeof bytes === 'number';
}
