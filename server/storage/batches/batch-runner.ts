import { ApiError } from '../../base/errors';
import type { Log } from '../../base/log';
import type { BatchStore } from './batch-store';
import type { FileStore } from './file-store';
import { InvalidInput } from './input-file';
import { LinesInProgress } from './lines-in-progress';
import { type BatchError, type BatchRecord, type BatchStatus, OPEN_STATUSES } from './records';
import { type BatchLine, type LineResult, RunningBatch, type TakenLine } from './running-batch';

/** What became of a line. */
export type LineOutcome =
  | { kind: 'done'; result: LineResult }
  /** It and all lines that name the same model can run later. Failures are counted in `BatchLine.numFailures`. */
  | { kind: 'retry'; afterMs: number; isFailure?: true }
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
  /** Returns how many lines of one owner may be in progress. Default: any number. */
  numPlacesOfOwner?(this: void): number;
  /**
   * Takes a place for a line of a batch that names a model. Returns what gives it back, or undefined if there is none
   * now. Default: there is always one.
   */
  enter?(this: void, batch: BatchRecord, model: string | undefined): (() => void) | undefined;
  /** Batches whose lines run in turn. Others wait for one of them to end. */
  maxRunningBatches: number;
  /** Until the next attempt to write after the disk was full. Default: 30 seconds. */
  storageRetryMs?: number;
}

/** Until the next look for a place, while others use all of them. */
const PLACES_RETRY_MS = 100;
/** Until the next look for a place that appeared while lines are in progress. */
const MORE_PLACES_RETRY_MS = 1_000;
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
  readonly #inProgress = new LinesInProgress();
  /** No line starts before this time, in milliseconds, because a result could not be written. */
  #startAfter = 0;
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
    while (this.#running.some(({ numInProgress, isWriting }) => numInProgress > 0 || isWriting))
      await new Promise<void>((resolve) => this.#onIdle.push(resolve));
    for (const batch of this.#running.splice(0)) {
      if (!this.#dropped.has(batch.record))
        await batch.saveRest().catch((error: unknown) => this.#report(error, batch.record));
      await batch.close();
    }
  }

  /** Starts what can start. Called after every change. */
  #pump(): void {
    if (this.#isClosed) return;
    if (this.#hasToOpen) this.#opening ??= this.#openWaiting();
    for (const batch of [...this.#running]) this.#writeIfDue(batch);
    const numPlaces = this.#isHalted || this.#startAfter > Date.now() ? 0 : this.#options.numPlaces();
    while (this.#inProgress.numLines < numPlaces && this.#startLine());
    this.#wakeLater();
  }

  /** Starts a line of the next batch that has one. */
  #startLine(): boolean {
    const nowMs = Date.now();
    const { numPlacesOfOwner } = this.#options;
    const maxOwn = numPlacesOfOwner?.() ?? Infinity;
    for (let i = 0; i < this.#running.length; i++) {
      const batch = this.#running.shift()!;
      this.#running.push(batch);
      if (this.#inProgress.numLinesOf(batch.record.ownerId) >= maxOwn) continue;
      const taken = this.#take(batch, nowMs);
      if (taken === undefined) continue;
      void this.#runLine(batch, taken).finally(() => {
        taken.claimed();
        this.#changed();
      });
      return true;
    }
    return false;
  }

  /** Takes a line of a batch, and a place for it. `claimed` gives the place back. */
  #take(batch: RunningBatch, nowMs: number): (TakenLine & { claimed: () => void }) | undefined {
    const { record } = batch;
    try {
      return batch.take(nowMs, ({ model }, bytes) => {
        if (!this.#inProgress.hasSpace(record.ownerId, bytes)) return undefined;
        const { enter } = this.#options;
        const leave = enter === undefined ? () => {} : enter(record, model);
        if (leave === undefined) return undefined;
        const end = this.#inProgress.enter(record.ownerId, bytes);
        return () => {
          leave();
          end();
        };
      });
    } catch (error) {
      this.#pauseAfter(error, batch);
      return undefined;
    }
  }

  async #runLine(batch: RunningBatch, taken: TakenLine): Promise<void> {
    let line: BatchLine;
    let outcome: LineOutcome;
    try {
      line = await batch.read(taken);
      outcome = await this.#options.execute(batch.record, line, batch.signal);
    } catch (error) {
      batch.putBack(taken);
      this.#pauseAfter(error, batch);
      return;
    }
    if (outcome.kind === 'done') {
      await batch.settle(taken, line, outcome.result).then(
        () => {
          // A short result may find space where others wait for it.
          this.#isStorageFull &&= this.#running.some(({ hasUnsaved }) => hasUnsaved);
        },
        (error: unknown) => this.#pauseAfterWrite(error, batch),
      );
      return;
    }
    batch.putBack(taken);
    if (outcome.kind === 'halt') this.#isHalted = true;
    else if (outcome.kind === 'refused') this.#refuse(batch, outcome.error);
    else {
      if (outcome.isFailure === true) batch.countFailure(taken);
      taken.group.pausedUntil = Date.now() + outcome.afterMs;
    }
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
    batch.pausedUntil = Date.now() + this.#storageRetryMs;
    this.#report(error, batch.record);
  }

  /** On a full disk, the results of other batches would not fit either. That an owner has no space does not matter. */
  #pauseAfterWrite(error: unknown, batch: RunningBatch): void {
    this.#pauseAfter(error, batch);
    // A limit has no cause.
    if (isStorageFull(error) && (error as ApiError).cause !== undefined) this.#startAfter = batch.pausedUntil;
  }

  get #storageRetryMs(): number {
    return this.#options.storageRetryMs ?? STORAGE_RETRY_MS;
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
      try {
        await batches.move(record, ['validating'], 'in_progress');
      } catch (error) {
        await batch.close();
        throw error;
      }
      if (isOver(record) || this.#dropped.has(record)) batch.stop();
      this.#running.push(batch);
    } catch (error) {
      if (this.#dropped.has(record)) {
        record.status = 'cancelled';
      } else if (isStorageFull(error)) {
        this.#waiting.unshift(record);
        this.#openAfter = Date.now() + this.#storageRetryMs;
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

  /** Ends a batch that is over, or writes results that could not be written before. */
  #writeIfDue(batch: RunningBatch): void {
    const { record } = batch;
    const isExpired = record.expiresAt * 1000 <= Date.now();
    if (isExpired && !batch.isDone) batch.stop();
    if (batch.isWriting || batch.pausedUntil > Date.now()) return;
    const isOver = batch.numInProgress === 0 && (batch.isDone || batch.isStopped);
    if (!isOver && (!batch.hasUnsaved || this.#dropped.has(record))) return;
    batch.isWriting = true;
    void (isOver ? this.#finish(batch) : batch.saveRest())
      .catch((error: unknown) => this.#pauseAfterWrite(error, batch))
      .finally(() => {
        batch.isWriting = false;
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
    await batch.saveRest();
    // Saved before results are published and lines fail, so that another attempt ends the batch in the same way.
    record.end ??= endOf(batch);
    await this.#options.batches.move(record, ['validating', 'in_progress'], 'finalizing');
    const status = record.status === 'cancelling' ? 'cancelled' : record.end;
    if (status === 'expired')
      await batch.failRest('batch_expired', 'This request did not run before the end of the completion window');
    await batch.publish();
    await this.#options.batches.move(record, [...OPEN_STATUSES], status);
    this.#running.splice(this.#running.indexOf(batch), 1);
    await batch.close();
    this.#options.log.info({ batch: record.id, status, ...record.counts }, 'a batch has ended');
  }

  /** Wakes up when a pause or a completion window ends, or to look for a place. */
  #wakeLater(): void {
    clearTimeout(this.#timer);
    const nowMs = Date.now();
    const times = [
      this.#openAfter,
      this.#startAfter,
      ...this.#waiting.map(({ expiresAt }) => expiresAt * 1000),
      ...this.#running.flatMap((batch) => [batch.record.expiresAt * 1000, batch.pauseEnd(nowMs) ?? 0]),
    ];
    const retryMs = this.#inProgress.numLines === 0 ? PLACES_RETRY_MS : MORE_PLACES_RETRY_MS;
    const hasWork = !this.#isHalted && this.#running.length > 0;
    const next = Math.min(...times.filter((time) => time > nowMs), hasWork ? nowMs + retryMs : Infinity);
    if (next === Infinity) return;
    this.#timer = setTimeout(() => this.#pump(), Math.min(next - nowMs + 1, MAX_TIMER_MS)).unref();
  }
}

/** Returns the status that a batch reaches whose lines do not run any more. */
function endOf({ record, isDone }: RunningBatch): BatchStatus {
  if (record.status === 'cancelling') return 'cancelled';
  if (record.errors.length > 0) return 'failed';
  return isDone ? 'completed' : 'expired';
}

/** Whether no line of a batch runs any more. */
function isOver({ status, end, expiresAt }: BatchRecord): boolean {
  return status === 'cancelling' || end !== undefined || expiresAt * 1000 <= Date.now();
}

function isStorageFull(error: unknown): boolean {
  return error instanceof ApiError && error.code === 'storage_full';
}
