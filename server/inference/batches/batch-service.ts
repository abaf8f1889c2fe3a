import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Engine } from '../../../ts';
import type { Access } from '../../access';
import { ApiError } from '../../base/errors';
import { newId } from '../../base/ids';
import type { Log } from '../../base/log';
import { ANONYMOUS, type ClientIdentity } from '../../http/routes';
import type { App } from '../app';
import { type BatchRunnerOptions, BatchRunner, type LineOutcome } from './batch-runner';
import { BatchStore } from './batch-store';
import { FileStore } from './file-store';
import type { BatchLine } from './input-file';
import type { BatchLimits } from './limits';
import { LineReply, lineRequest } from './line-reply';
import { type BatchRecord, type FileRecord, isOpen } from './records';

/** Lines give way to all other requests. */
const BATCH_PRIORITY = 1;
/** Slots for sequences of an engine without `maxNumSeqs`. */
const DEFAULT_SLOTS = { cpu: 64, cuda: 256 };
/** With more lines at the same time, an urgent request waits longer for the step that runs. */
const CPU_LINES = 16;

/** Errors after which a line runs again, and when. */
const RETRIES_MS: Readonly<Record<string, number>> = { queue_full: 1_000, model_loading: 2_000 };
/** Errors after which no line can run. */
const HALTS: ReadonlySet<string> = new Set(['engine_dead', 'shutting_down']);
/** Denials that end by themselves. */
const DENIAL_RETRIES_MS: Readonly<Record<string, number>> = { budget_exceeded: 60_000, auth_unavailable: 5_000 };

export interface BatchServiceOptions extends BatchLimits {
  maxNumSeqs: number | undefined;
  dataDir: string;
  log: Log;
  access: Access | undefined;
}

/** Returns the engines that are loaded now. */
export type LoadedEngines = () => Iterable<{ readonly engine: Engine }>;

/** What a client asks for with a batch. */
export interface BatchOrder {
  endpoint: string;
  inputFileId: string;
  completionWindow: string;
  windowS: number;
  metadata: Readonly<Record<string, string>> | null;
  identity: ClientIdentity;
  address: string;
}

/** Files and batches in the data directory of a server. */
export class BatchService {
  readonly files: FileStore;
  readonly batches: BatchStore;
  readonly #options: BatchServiceOptions;
  readonly #lock: { close(): void };
  #runner: BatchRunner | undefined;
  /** Set when batches run. */
  #served: { app: App; loaded: LoadedEngines } | undefined;

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
      const written = new Set(batches.open.flatMap(({ outputFileId, errorFileId }) => [outputFileId, errorFileId]));
      const files = await FileStore.open(join(folder, 'files'), {
        maxBytes: options.maxStorageBytes,
        isExpected: (id) => written.has(id),
        log: options.log,
      });
      return new BatchService(options, { files, batches, lock });
    } catch (error) {
      lock.close();
      throw error;
    }
  }

  /** Starts to run batches: new ones, and those that an earlier process did not end. */
  serve(app: App, loaded: LoadedEngines): void {
    this.#served = { app, loaded };
    const { files, batches } = this;
    const { log, maxNumSeqs } = this.#options;
    const options: BatchRunnerOptions = {
      files,
      batches,
      log,
      execute: (batch, line, signal) => this.#execute(batch, line, signal),
      numPlaces: () => {
        const engines = Array.from(loaded(), ({ engine }) => engine);
        if (engines.some(hasFailed)) return 0;
        const isCuda = engines.some(({ info }) => info.backend === 'cuda');
        let numIdle = maxNumSeqs ?? (isCuda ? DEFAULT_SLOTS.cuda : DEFAULT_SLOTS.cpu);
        const { concurrency = isCuda ? numIdle : CPU_LINES } = this.#options;
        for (const engine of engines) {
          const { numRunning, numWaiting, numBackground } = engine.stats();
          numIdle -= numRunning + numWaiting - numBackground;
        }
        return Math.max(0, Math.min(concurrency, numIdle));
      },
    };
    this.#runner = new BatchRunner(options);
    const { open } = batches;
    if (open.length > 0) log.info({ batches: open.length }, 'continuing with batches');
    for (const record of open) this.#runner.add(record);
  }

  /** The endpoints that lines may name. */
  endpoints(): string[] {
    const routes = this.#served?.app.routes ?? [];
    return BATCH_ENDPOINTS.filter((path) =>
      routes.some(
        (route) =>
          route.method === 'POST' && route.path === path && !('isNotImplemented' in route && route.isNotImplemented),
      ),
    );
  }

  /** @throws ApiError. */
  async create({ identity, ...order }: BatchOrder): Promise<BatchRecord> {
    const ownerId = identity.ownerId ?? '';
    if (this.#runner === undefined) throw new ApiError('model_loading', 'The model is still loading');
    const file = this.files.get(ownerId, order.inputFileId);
    if (file.purpose !== 'batch')
      throw new ApiError(
        'invalid_value',
        `input_file_id: expected a file with the purpose batch, got ${file.purpose}`,
        {
          param: 'input_file_id',
        },
      );
    const { maxOpenBatches } = this.#options;
    const numOpen = this.batches.open.length;
    if (numOpen >= maxOpenBatches)
      throw new ApiError(
        'queue_full',
        `The queue is full: ${numOpen} of at most ${maxOpenBatches} batches (--max-batches) have not ended`,
      );
    const now = Math.floor(Date.now() / 1000);
    const { windowS, ...fields } = order;
    const record: BatchRecord = {
      ...fields,
      id: newId('batch'),
      ownerId,
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

  /** @throws ApiError `invalid_value` while a batch reads the file. */
  async deleteFile(file: FileRecord): Promise<void> {
    const reader = this.batches.open.find(({ inputFileId }) => inputFileId === file.id);
    if (reader !== undefined)
      throw new ApiError(
        'invalid_value',
        `file_id: expected a file that no batch reads, got one that ${reader.id} reads`,
        {
          param: 'file_id',
        },
      );
    await this.files.delete(file);
  }

  /** Ends the lines in progress, which run again after the next start. */
  async close(): Promise<void> {
    await this.#runner?.close();
    this.#lock.close();
  }

  async #execute(batch: BatchRecord, line: BatchLine, signal: AbortSignal): Promise<LineOutcome> {
    const { app, loaded } = this.#served!;
    const requestId = newId('batch');
    if (line.isStream) return done(400, STREAM_REFUSED, requestId);
    const admitted = this.#admit(batch);
    if ('kind' in admitted) return admitted;
    const reply = new LineReply();
    try {
      await app.handleOwn(lineRequest(batch.endpoint, line.body, signal), reply, {
        requestId,
        identity: admitted,
        signal,
        priority: BATCH_PRIORITY,
      });
    } finally {
      admitted.done();
    }
    if (!reply.hasStarted) return { kind: 'retry', afterMs: 0 };
    if (reply.status !== 200) {
      const code = errorCode(reply.body);
      if (Object.hasOwn(RETRIES_MS, code)) return { kind: 'retry', afterMs: RETRIES_MS[code] };
      if (HALTS.has(code) || (reply.status >= 500 && Array.from(loaded(), ({ engine }) => engine).some(hasFailed)))
        return { kind: 'halt' };
    }
    return done(reply.status, reply.body, requestId);
  }

  /** Checks that the key of a batch still has access. */
  #admit({ keyId, ownerId, cacheSalt, address }: BatchRecord): ClientIdentity | LineOutcome {
    const { access } = this.#options;
    if (access === undefined) return { ...ANONYMOUS, cacheSalt };
    const outcome = access.resume(keyId ?? '', address);
    if (outcome.ok) return { keyId, ownerId, cacheSalt, done: (tokens) => outcome.done(tokens) };
    const { code, message } = outcome;
    if (Object.hasOwn(DENIAL_RETRIES_MS, code)) return { kind: 'retry', afterMs: DENIAL_RETRIES_MS[code] };
    return { kind: 'refused', error: { code, message, param: null, line: null } };
  }
}

/** Endpoints of batches at OpenAI that this server may have. */
const BATCH_ENDPOINTS = ['/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/responses'];

const STREAM_REFUSED = JSON.stringify({
  error: {
    message: 'stream: expected false in a batch, got true',
    type: 'invalid_request_error',
    param: 'stream',
    code: 'invalid_value',
  },
});

function done(status: number, body: string, requestId: string): LineOutcome {
  return { kind: 'done', result: { status, body: oneLine(body), requestId } };
}

/** Returns JSON without newlines between its tokens. */
function oneLine(json: string): string {
  return json.includes('\n') ? JSON.stringify(JSON.parse(json)) : json;
}

function errorCode(body: string): string {
  const { error } = JSON.parse(body) as { error?: { code?: unknown } };
  return String(error?.code);
}

function hasFailed(engine: Engine): boolean {
  try {
    return engine.stats().failure !== null;
  } catch {
    // It is closed.
    return true;
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
