import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ApiError } from '../../base/errors';
import { newId } from '../../base/ids';
import type { Log } from '../../base/log';
import type { Reach } from '../../base/reach';
import type { ClientIdentity } from '../../http/routes';
import { BatchRunner, type BatchRunnerOptions } from './batch-runner';
import { BatchStore } from './batch-store';
import { FileStore } from './file-store';
import { type BatchLimits, MAX_RUNNING_BATCHES } from './limits';
import { type BatchRecord, type FileRecord, isOpen, newOwned } from './records';

/** Files of results that a batch can have. */
const RESULT_FILES = 2;

export interface BatchServiceOptions extends BatchLimits {
  dataDir: string;
  log: Log;
  /** The share of the files (results included) and of the open batches that one owner may have. Default: 1. */
  ownerShare?: number;
  /** Batches whose lines run in turn. Default: {@link MAX_RUNNING_BATCHES}. */
  maxRunningBatches?: number;
}

/** How the lines of batches run. */
export interface BatchWork extends Pick<BatchRunnerOptions, 'execute' | 'numPlaces' | 'numPlacesOfOwner' | 'enter'> {
  /** The endpoints that lines may name. */
  endpoints(): readonly string[];
}

/** What a client asks for with a batch. */
export interface BatchOrder {
  endpoint: string;
  inputFileId: string;
  completionWindow: string;
  windowS: number;
  metadata: Readonly<Record<string, string>> | null;
  identity: ClientIdentity;
  address: string;
  /** The deployment whose URL got the request. Undefined: the lines name their models themselves. */
  deploymentId?: string;
  /** The deployments that the client may call. Default: all. */
  reach?: Reach;
}

/** Files and batches in the data directory of a server. */
export class BatchService {
  readonly files: FileStore;
  readonly batches: BatchStore;
  readonly #options: BatchServiceOptions;
  readonly #lock: { close(): void };
  #runner: BatchRunner | undefined;
  /** Set when batches run. */
  #work: BatchWork | undefined;

  private constructor(
    options: BatchServiceOptions,
    { files, batches, lock }: { files: FileStore; batches: BatchStore; lock: { close(): void } },
  ) {
    this.#options = options;
    this.files = files;
    this.batches = batches;
    this.#lock = lock;
  }

  /** Returns undefined if another server uses the folder. */
  static async open(options: BatchServiceOptions): Promise<BatchService | undefined> {
    const folder = join(options.dataDir, 'batches');
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const lock = await tryLock(join(folder, 'server.lock'));
    if (lock === undefined) return undefined;
    try {
      const batches = await BatchStore.open(join(folder, 'batches'), options.log);
      const writers = new Map(
        batches.open.flatMap(({ ownerId, outputFileId, errorFileId }) => [
          [outputFileId, ownerId],
          [errorFileId, ownerId],
        ]),
      );
      const files = await FileStore.open(join(folder, 'files'), {
        maxBytes: options.maxStorageBytes,
        ownerShare: options.ownerShare ?? 1,
        writerOf: (id) => writers.get(id),
        log: options.log,
      });
      return new BatchService(options, { files, batches, lock });
    } catch (error) {
      lock.close();
      throw error;
    }
  }

  /** Starts to run batches: new ones, and those that an earlier process did not end. */
  serve(work: BatchWork): void {
    this.#work = work;
    const { files, batches } = this;
    const { log, maxRunningBatches = MAX_RUNNING_BATCHES } = this.#options;
    this.#runner = new BatchRunner({
      files,
      batches,
      log,
      maxRunningBatches,
      execute: (batch, line, signal) => work.execute(batch, line, signal),
      numPlaces: () => work.numPlaces(),
      ...(work.numPlacesOfOwner === undefined ? {} : { numPlacesOfOwner: () => work.numPlacesOfOwner!() }),
      ...(work.enter === undefined ? {} : { enter: (batch, model) => work.enter!(batch, model) }),
    });
    const { open } = batches;
    if (open.length > 0) log.info({ batches: open.length }, 'continuing with batches');
    for (const record of open) this.#runner.add(record);
  }

  /** The endpoints that lines may name. */
  endpoints(): readonly string[] {
    return this.#work?.endpoints() ?? [];
  }

  /** @throws ApiError. */
  async create({ identity, reach = null, ...order }: BatchOrder): Promise<BatchRecord> {
    const ownerId = identity.ownerId ?? '';
    if (this.#runner === undefined) throw new ApiError('model_loading', 'The model is still loading');
    const file = this.files.get(ownerId, order.inputFileId, reach, 'input_file_id');
    if (file.purpose !== 'batch')
      throw new ApiError(
        'invalid_value',
        `input_file_id: expected a file with the purpose batch, got ${file.purpose}`,
        {
          param: 'input_file_id',
        },
      );
    this.#checkLimits(ownerId);
    const now = Math.floor(Date.now() / 1000);
    const { windowS, ...fields } = order;
    const record: BatchRecord = {
      ...fields,
      ...newOwned(ownerId, reach, order.deploymentId),
      id: newId('batch'),
      ...(identity.keyId === undefined ? {} : { keyId: identity.keyId }),
      cacheSalt: identity.cacheSalt,
      outputFileId: newId('file'),
      errorFileId: newId('file'),
      createdAt: now,
      expiresAt: now + windowS,
      status: 'validating',
      times: {},
      hasOutput: false,
      hasErrors: false,
      counts: { total: 0, completed: 0, failed: 0 },
      errors: [],
    };
    await this.batches.add(record);
    this.#runner.add(record);
    return record;
  }

  async cancel(record: BatchRecord): Promise<void> {
    if (!isOpen(record))
      throw new ApiError(
        'invalid_value',
        `batch_id: expected a batch that has not ended, got one that is ${record.status}`,
        {
          param: 'batch_id',
        },
      );
    await this.#runner?.cancel(record);
  }

  /** @throws ApiError `invalid_value` while a batch reads or writes the file. */
  async deleteFile(file: FileRecord): Promise<void> {
    for (const { id, inputFileId, outputFileId, errorFileId } of this.batches.open) {
      if (![inputFileId, outputFileId, errorFileId].includes(file.id)) continue;
      const use = file.id === inputFileId ? 'reads' : 'writes';
      throw new ApiError('invalid_value', `file_id: expected a file that no batch ${use}, got one that ${id} ${use}`, {
        param: 'file_id',
      });
    }
    await this.files.delete(file);
  }

  /** All owners of files and batches. */
  owners(): ReadonlySet<string> {
    return new Set([...this.files.owners(), ...this.batches.owners()]);
  }

  /**
   * Deletes the files and batches of an owner, also on a full disk. Returns whether nothing is left: the lines of
   * batches in progress are ended, and a later call deletes these batches.
   */
  async deleteOwner(ownerId: string): Promise<boolean> {
    for (const record of this.batches.list(ownerId)) {
      if (isOpen(record)) this.#runner?.drop(record);
      if (isOpen(record)) continue;
      for (const id of [record.outputFileId, record.errorFileId])
        if (!this.files.has(id)) await this.files.deleteContent(id);
      await this.batches.delete(record);
    }
    if (this.batches.list(ownerId).length > 0) return false;
    for (const file of this.files.list(ownerId)) await this.files.delete(file);
    return true;
  }

  /** Ends the lines in progress, which run again after the next start. */
  async close(): Promise<void> {
    await this.#runner?.close();
    this.#lock.close();
  }

  /** Checks that one more batch may be open, and that its results fit the limits of files. */
  #checkLimits(ownerId: string): void {
    const { maxOpenBatches, ownerShare = 1 } = this.#options;
    const { open } = this.batches;
    if (open.length >= maxOpenBatches)
      throw new ApiError(
        'queue_full',
        `The queue is full: ${open.length} of at most ${maxOpenBatches} batches (--max-batches) have not ended`,
      );
    const numOwn = open.filter((record) => record.ownerId === ownerId).length;
    const maxOwn = Math.max(1, Math.floor(maxOpenBatches * ownerShare));
    if (numOwn >= maxOwn)
      throw new ApiError(
        'queue_full',
        `The queue is full: ${numOwn} of at most ${maxOwn} batches of one owner have not ended`,
      );
    this.files.checkNumFiles(RESULT_FILES * (open.length + 1), RESULT_FILES * (numOwn + 1), ownerId);
    this.files.checkSpace(1, ownerId);
  }
}

/** Locks a folder until the process ends. Returns undefined if another process has it. */
async function tryLock(path: string): Promise<{ close(): void } | undefined> {
  // Imported here, because a server without batches needs no database library.
  const { LibsqlDatabase } = await import('../../access/store/database.js');
  const database = new LibsqlDatabase(path, { timeout: 0 });
  try {
    database.exec('begin exclusive');
    return database;
  } catch (error) {
    database.close();
    if (/locked|busy/i.test((error as Error).message)) return undefined;
    throw error;
  }
}
