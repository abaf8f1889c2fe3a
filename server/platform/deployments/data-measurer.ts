import fs from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { sourceFolder } from './data-roots';
import { DEFAULT_MEASURE_LIMITS, type FolderMeasure, measureFolder, type MeasureLimits } from './measure-folder';
import type { MeasureResult, MeasureTask } from './measure-thread';
import type { DeploymentStore } from '../store/store-deployments';

export interface DataMeasurerOptions {
  store: Pick<DeploymentStore, 'findUnmeasured' | 'saveMeasure'>;
  dataRoots: readonly string[];
  log: { warn(fields: object, message: string): void };
  measure?: typeof measureInThread;
}

/** Delay after a database error. */
const RETRY_MS = 5_000;

/**
 * Measures pending data sources in the background, one at a time. The queue is in the database, so a restart continues
 * it.
 */
export class DataMeasurer {
  readonly #options: DataMeasurerOptions;
  #running: Promise<void> | undefined;
  #current: { id: string; abort: AbortController } | undefined;
  #isNotified = false;
  #isClosed = false;

  constructor(options: DataMeasurerOptions) {
    this.#options = options;
  }

  /** Starts measuring. Call after a data source becomes pending. */
  notify(): void {
    this.#isNotified = true;
    if (this.#isClosed || this.#running !== undefined) return;
    this.#running = this.#run().finally(() => {
      this.#running = undefined;
      if (this.#isNotified) this.notify();
    });
  }

  /** Stops measuring this data source: it was deleted, cancelled, or has another folder now. */
  cancel(sourceId: string): void {
    if (this.#current?.id === sourceId) this.#current.abort.abort();
  }

  /** Resolves when no data source is pending. */
  async settled(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#current?.abort.abort();
    await this.settled();
  }

  async #run(): Promise<void> {
    const { store, log } = this.#options;
    try {
      while (!this.#isClosed) {
        this.#isNotified = false;
        const source = await store.findUnmeasured();
        if (source === undefined) return;
        const outcome = await this.#measure(source);
        if (outcome !== undefined) await store.saveMeasure(source, outcome);
      }
    } catch (error) {
      log.warn({ reason: (error as Error).message }, `cannot measure data sources, retrying in ${RETRY_MS / 1000} s`);
      setTimeout(() => this.notify(), RETRY_MS).unref();
    }
  }

  /** Returns undefined if the measurement was cancelled. */
  async #measure({
    id,
    path: folder,
  }: {
    id: string;
    path: string;
  }): Promise<FolderMeasure | { error: string } | undefined> {
    const { dataRoots, measure = measureInThread } = this.#options;
    const inside = sourceFolder(folder, dataRoots);
    if (inside === undefined)
      return { error: 'expected an existing folder below a data root: it was deleted, moved or replaced by a link' };
    const abort = new AbortController();
    this.#current = { id, abort };
    try {
      return await measure(inside, DEFAULT_MEASURE_LIMITS, abort.signal);
    } catch (error) {
      return abort.signal.aborted ? undefined : { error: (error as Error).message };
    } finally {
      this.#current = undefined;
    }
  }
}

/**
 * Measures in a worker thread, which `signal` terminates. Measures in this thread when the compiled thread file does
 * not exist, that is when running from TypeScript sources.
 */
function measureInThread(folder: string, limits: MeasureLimits, signal: AbortSignal): Promise<FolderMeasure> {
  const file = path.join(__dirname, 'measure-thread.js');
  if (!fs.existsSync(file)) return measureFolder(folder, limits, signal);
  return new Promise((resolve, reject) => {
    const worker = new Worker(file, { workerData: { folder, limits } satisfies MeasureTask, name: 'capstan-measure' });
    const terminate = () => void worker.terminate();
    signal.addEventListener('abort', terminate, { once: true });
    worker.unref();
    worker.once('message', (result: MeasureResult) => {
      if ('measure' in result) resolve(result.measure);
      else reject(new Error(result.error));
    });
    worker.once('error', reject);
    worker.once('exit', () => {
      signal.removeEventListener('abort', terminate);
      reject(new Error('the measuring thread exited'));
    });
  });
}
