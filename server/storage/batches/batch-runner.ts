import { ApiError } from '../../base/errors';
import type { Log } from '../../base/log';
import type { BatchStore } from './batch-store';
import type { FileStore } from './file-store';
import { type BatchLine, InvalidInput } from './input-file';
import { type BatchError, type BatchRecord, type BatchStatus, OPEN_STATUSES } from './records';
import { type LineResult, RunningBatch } from './running-batch';

/** What became of a line. */
export type LineOutcome =
  | { kind: 'done'; result: LineResult }
  /** It can run later. */
  | { kind: 'retry'; afterMs: number }
  /** No line of any batch can run until the server is started again. */
  | { kind: 'halt' }
  /** No line of this batch may run. */
  | { kind: 'refused'; error: BatchError };

export interface BatchRunnerOptions {
  files: FileStore;
  batches: BatchStore;
  log: Log;
  execute(this: void, batch: BatchRecord, line: BatchLine, signal: AbortSignal): Promise<LineOutcome>;
  /** Returns how many lines may be in progress. */
  numPlaces(this: void): number;
  /** Returns how many lines of a batch may be in progress. Default: any number. */
  numPlacesOf?(this: void, batch: BatchRecord): number;
  /** Batches whose lines run in turn. Others wait for one of them to end. */
  maxRunningBatches: number;
}

/** Until the next look for a place, while others use all of them. */
const PLACES_RETRY_MS = 100;
/** Until the next attempt after the disk was full. */
const STORAGE_RETRY_MS = 30_000;
/** The longest time of a timer of Node. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** Runs the lines of batches, a line of each in turn. */
export class BatchRunner {
  readonly #options: BatchRunnerOptions;
  /** The oldest first. */
  readonly #waiting: BatchRecord[] = [];
  /** Batches whose lines run. The first is next. */
  readonly #running: RunningBatch[] = [];
  #opening: Promise<void> | undefined;
  /** No batch is opened before this time, in milliseconds. */
  #openAfter = 0;
  #timer: NodeJS.Timeout | undefined;
  #isHalted = false;
  #isClosed = false;
  #isStorageFull = false;
  /** Batches of deleted owners. Nothing of them is written any more. */
  readonly #dropped = new WeakSet<BatchRecord>();
  readonly #onIdle: (() => void)[] = [];

  constructor(options: BatchRunnerOptions) {
    this.#options = options;
  }

  add(record: BatchRecord): void {
    this.#waiting.push(record);
    this.#pump();
  }

  /** Ends a batch that has not ended. Its results so far stay. */
  async cancel(record: BatchRecord): Promise<void> {
    await this.#options.batches.move(record, ['validating', 'in_progress'], 'cancelling');
    if (record.status !== 'cancelling') return;
    this.#running.find((running) => running.record === record)?.stop();
    this.#pump();
  }

  /**
   * Ends a batch without saving anything, so that a full disk does not matter. It is `cancelled`, in memory only, when
   * its lines have ended. Another call tries again.
   */
  drop(record: BatchRecord): void {
    this.#dropped.add(record);
    const index = this.#waiting.indexOf(record);
    if (index >= 0) this.#waiting.splice(index, 1);
    const batch = this.#running.find((running) => running.record === record);
    batch?.stop();
    if (batch !== undefined) batch.pausedUntil = 0;
    else if (index >= 0) record.status = 'cancelled';
    this.#pump();
  }

  /** Ends the lines in progress. They run again after the next start. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    for (const batch of this.#running) batch.stop();
    await this.#opening;
    while (this.#running.some(({ numInProgress, isFinishing }) => numInProgress > 0 || isFinishing))
      await new Promise<void>((resolve) => this.#onIdle.push(resolve));
    for (const batch of this.#running.splice(0)) await batch.close();
  }

  /** Starts what can start. Called after every change. */
  #pump(): void {
    if (this.#isClosed) return;
    if (this.#hasToOpen) this.#opening ??= this.#openWaiting();
    for (const batch of [...this.#running]) this.#finishIfDone(batch);
    let numInProgress = this.#running.reduce((sum, batch) => sum + batch.numInProgress, 0);
    const numPlaces = this.#isHalted ? 0 : this.#options.numPlaces();
    while (numInProgress < numPlaces && this.#startLine()) numInProgress++;
    this.#wakeLater(numInProgress);
  }

  /** Starts a line of the next batch that has one. */
  #startLine(): boolean {
    const nowMs = Date.now();
    for (let i = 0; i < this.#running.length; i++) {
      const batch = this.#running.shift()!;
      this.#running.push(batch);
      const index = batch.pausedUntil > nowMs || this.#isAtLimit(batch) ? undefined : batch.take();
      if (index === undefined) continue;
      void this.#runLine(batch, index);
      return true;
    }
    return false;
  }

  #isAtLimit({ record, numInProgress }: RunningBatch): boolean {
    return numInProgress >= (this.#options.numPlacesOf?.(record) ?? Infinity);
  }

  async #runLine(batch: RunningBatch, index: number): Promise<void> {
    try {
      const line = await batch.read(index);
      const outcome = await this.#options.execute(batch.record, line, batch.signal);
      if (outcome.kind === 'done') {
        await batch.settle(line, outcome.result);
        this.#isStorageFull = false;
      } else {
        batch.putBack(index);
        if (outcome.kind === 'retry') batch.pausedUntil = Date.now() + outcome.afterMs;
        else if (outcome.kind === 'halt') this.#isHalted = true;
        else this.#refuse(batch, outcome.error);
      }
    } catch (error) {
      batch.putBack(index);
      this.#pauseAfter(error, batch);
    }
    this.#changed();
  }

  #refuse(batch: RunningBatch, error: BatchError): void {
    if (!batch.isStopped) batch.record.errors = [error];
    batch.stop();
  }

  #changed(): void {
    this.#onIdle.splice(0).forEach((resolve) => resolve());
    this.#pump();
  }

  #pauseAfter(error: unknown, batch: RunningBatch): void {
    batch.pausedUntil = Date.now() + STORAGE_RETRY_MS;
    this.#report(error, batch.record);
  }

  #report(error: unknown, { id }: BatchRecord): void {
    const isFull = isStorageFull(error);
    const fields = { batch: id, err: error instanceof ApiError ? (error.cause ?? error) : error };
    // Once per outage, not for each line.
    if (!isFull) this.#options.log.error(fields, 'a batch pauses after an error');
    else if (!this.#isStorageFull)
      this.#options.log.warn(fields, 'batches pause, because there is no space for their results');
    this.#isStorageFull ||= isFull;
  }

  /** Whether a batch waits that may be opened. Those without lines to run need no place among the running ones. */
  get #hasToOpen(): boolean {
    if (this.#waiting.length === 0 || this.#openAfter > Date.now()) return false;
    return this.#running.length < this.#options.maxRunningBatches || this.#waiting.some(isOver);
  }

  async #openWaiting(): Promise<void> {
    while (!this.#isClosed && this.#hasToOpen) {
      const record = this.#waiting.find(isOver) ?? this.#nextWaiting()!;
      this.#waiting.splice(this.#waiting.indexOf(record), 1);
      await this.#open(record);
    }
    this.#opening = undefined;
    this.#changed();
  }

  /** Returns the oldest waiting batch of the owner who has the fewest running ones. */
  #nextWaiting(): BatchRecord | undefined {
    const numRunning = (ownerId: string) => this.#running.filter(({ record }) => record.ownerId === ownerId).length;
    return this.#waiting.reduce<BatchRecord | undefined>(
      (best, record) => (best === undefined || numRunning(record.ownerId) < numRunning(best.ownerId) ? record : best),
      undefined,
    );
  }

  async #open(record: BatchRecord): Promise<void> {
    const { files, batches } = this.#options;
    try {
      const batch = await RunningBatch.open(record, files);
      this.#running.push(batch);
      await batches.move(record, ['validating'], 'in_progress');
      if (record.status === 'cancelling' || this.#dropped.has(record)) batch.stop();
    } catch (error) {
      if (this.#dropped.has(record)) {
        // It is among the running ones if only its status could not be saved.
        if (!this.#running.some((running) => running.record === record)) record.status = 'cancelled';
      } else if (isStorageFull(error)) {
        this.#waiting.unshift(record);
        this.#openAfter = Date.now() + STORAGE_RETRY_MS;
        this.#report(error, record);
      } else {
        await this.#fail(record, error);
      }
    }
  }

  /** Ends a batch that cannot be opened. */
  async #fail(record: BatchRecord, error: unknown): Promise<void> {
    const { files, batches, log } = this.#options;
    if (error instanceof InvalidInput) {
      record.errors = [...error.errors];
    } else {
      log.error({ batch: record.id, err: error }, 'cannot open a batch');
      const message = 'The server could not read the files of this batch';
      record.errors = [{ code: 'internal_error', message, param: null, line: null }];
    }
    for (const id of [record.outputFileId, record.errorFileId]) await files.deleteContent(id).catch(() => {});
    const status = record.status === 'cancelling' ? 'cancelled' : 'failed';
    await batches
      .move(record, [...OPEN_STATUSES], status)
      .catch((reason: unknown) => log.error({ batch: record.id, err: reason }, 'cannot save a batch'));
  }

  #finishIfDone(batch: RunningBatch): void {
    const { record } = batch;
    const isExpired = record.expiresAt * 1000 <= Date.now();
    if (isExpired && !batch.isDone) batch.stop();
    if (batch.isFinishing || batch.numInProgress > 0 || batch.pausedUntil > Date.now()) return;
    if (!batch.isDone && !batch.isStopped) return;
    batch.isFinishing = true;
    void this.#finish(batch)
      .catch((error: unknown) => this.#pauseAfter(error, batch))
      .finally(() => {
        batch.isFinishing = false;
        this.#changed();
      });
  }

  async #finish(batch: RunningBatch): Promise<void> {
    const { record } = batch;
    if (this.#dropped.has(record)) {
      this.#running.splice(this.#running.indexOf(batch), 1);
      await batch.close();
      record.status = 'cancelled';
      return;
    }
    let status: BatchStatus = 'completed';
    if (record.status === 'cancelling') status = 'cancelled';
    else if (record.errors.length > 0) status = 'failed';
    else if (!batch.isDone) status = 'expired';
    if (status === 'expired')
      await batch.failRest('batch_expired', 'This request did not run before the end of the completion window');
    record.times = { ...record.times, finalizing: seconds() };
    await batch.publish();
    await this.#options.batches.move(record, [...OPEN_STATUSES], status);
    this.#running.splice(this.#running.indexOf(batch), 1);
    await batch.close();
    this.#options.log.info({ batch: record.id, status, ...record.counts }, 'a batch has ended');
  }

  /** Wakes up when a pause or a completion window ends, or to look for a place. */
  #wakeLater(numInProgress: number): void {
    clearTimeout(this.#timer);
    const nowMs = Date.now();
    const times = [
      this.#openAfter,
      ...this.#waiting.map(({ expiresAt }) => expiresAt * 1000),
      ...this.#running.flatMap(({ record, pausedUntil }) => [record.expiresAt * 1000, pausedUntil]),
    ];
    const hasWork = !this.#isHalted && numInProgress === 0 && this.#running.length > 0;
    const next = Math.min(...times.filter((time) => time > nowMs), hasWork ? nowMs + PLACES_RETRY_MS : Infinity);
    if (next === Infinity) return;
    this.#timer = setTimeout(() => this.#pump(), Math.min(next - nowMs + 1, MAX_TIMER_MS)).unref();
  }
}

/** Whether no line of a batch runs any more. */
function isOver({ status, expiresAt }: BatchRecord): boolean {
  return status === 'cancelling' || expiresAt * 1000 <= Date.now();
}

function isStorageFull(error: unknown): boolean {
  return error instanceof ApiError && error.code === 'storage_full';
}

function seconds(): number {
  return Math.floor(Date.now() / 1000);
}
