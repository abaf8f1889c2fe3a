import { mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ApiError } from '../../base/errors';
import type { Log } from '../../base/log';
import type { Reach } from '../../base/reach';
import { readRecord, writeAtomically } from './disk';
import { newestFirst } from './file-store';
import { MAX_BATCHES } from './limits';
import { type BatchRecord, type BatchStatus, isOpen, maySee } from './records';

const RECORD = '.json';

/** The records of batches, one file each. */
export class BatchStore {
  readonly #folder: string;
  readonly #batches = new Map<string, BatchRecord>();
  #tail: Promise<unknown> = Promise.resolve();

  private constructor(folder: string) {
    this.#folder = folder;
  }

  static async open(folder: string, log: Log): Promise<BatchStore> {
    const store = new BatchStore(folder);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    for (const name of (await readdir(folder)).sort()) {
      const record = name.endsWith(RECORD)
        ? await readRecord<BatchRecord>(join(folder, name), isBatchRecord)
        : undefined;
      if (record !== undefined) {
        store.#batches.set(record.id, record);
        continue;
      }
      if (name.endsWith(RECORD)) log.warn({ file: name }, 'a damaged record of a batch was removed');
      await rm(join(folder, name), { force: true });
    }
    return store;
  }

  /** Saves a new batch. @throws ApiError `storage_full`. */
  async add(record: BatchRecord): Promise<void> {
    this.#batches.set(record.id, record);
    try {
      await this.#write(record);
    } catch (error) {
      this.#batches.delete(record.id);
      throw error;
    }
    if (this.#batches.size > MAX_BATCHES) await this.#forgetOldest();
  }

  /**
   * Moves a batch to a status and saves it, unless its status is not one of `from`. Changes are made one after the
   * other. Returns whether it was moved. @throws ApiError `storage_full`.
   */
  move(record: BatchRecord, from: readonly BatchStatus[], status: BatchStatus): Promise<boolean> {
    const moving = this.#tail.then(async () => {
      if (!from.includes(record.status)) return false;
      const changes = { status, times: { ...record.times, [status]: Math.floor(Date.now() / 1000) } };
      await this.#write({ ...record, ...changes });
      Object.assign(record, changes);
      return true;
    });
    this.#tail = moving.catch(() => {});
    return moving;
  }

  /** @throws ApiError `batch_not_found`, also for a batch that the client may not have. */
  get(ownerId: string, id: string, reach: Reach = null): BatchRecord {
    const record = this.#batches.get(id);
    if (record === undefined || !maySee(record, ownerId, reach))
      throw new ApiError('batch_not_found', 'No batch has this id', { param: 'batch_id' });
    return record;
  }

  /** The newest first. */
  list(ownerId: string, reach: Reach = null): BatchRecord[] {
    return [...this.#batches.values()].filter((record) => maySee(record, ownerId, reach)).sort(newestFirst);
  }

  /** The batches that have not ended, the oldest first. */
  get open(): BatchRecord[] {
    return [...this.#batches.values()].filter(isOpen).sort((a, b) => -newestFirst(a, b));
  }

  #write(record: BatchRecord): Promise<void> {
    return writeAtomically(join(this.#folder, record.id + RECORD), JSON.stringify(record));
  }

  owners(): Iterable<string> {
    return Array.from(this.#batches.values(), ({ ownerId }) => ownerId);
  }

  /** Deletes the record of a batch that has ended. */
  async delete({ id }: BatchRecord): Promise<void> {
    this.#batches.delete(id);
    await rm(join(this.#folder, id + RECORD), { force: true });
  }

  /** Deletes the oldest record of the owner who has the most batches that have ended. */
  async #forgetOldest(): Promise<void> {
    const byOwner = new Map<string, BatchRecord[]>();
    for (const record of this.#batches.values())
      if (!isOpen(record)) byOwner.set(record.ownerId, [...(byOwner.get(record.ownerId) ?? []), record]);
    const most = [...byOwner.values()].reduce<BatchRecord[]>(
      (best, records) => (records.length > best.length ? records : best),
      [],
    );
    const oldest = most.sort(newestFirst).at(-1);
    if (oldest !== undefined) await this.delete(oldest);
  }
}

function isBatchRecord({ id, status }: Partial<BatchRecord>): boolean {
  return typeof id === 'string' && typeof status === 'string';
}
