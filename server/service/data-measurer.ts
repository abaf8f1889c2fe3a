import fs from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { resolveInside } from './data-roots';
import { DEFAULT_MEASURE_LIMITS, type FolderMeasure, measureFolder, type MeasureLimits } from './measure-folder';
import type { MeasureAnswer, MeasureTask } from './measure-thread';
import type { DeploymentStore } from './store-deployments';

export interface DataMeasurerOptions {
  store: Pick<DeploymentStore, 'findUnmeasured' | 'saveMeasure'>;
  dataRoots: readonly string[];
  log: { warn(fields: object, message: string): void };
  measure?: typeof measureInThread;
}

/** After the database did not answer. */
const RETRY_MS = 5_000;

/** Learns how large data sources are and what they hold, one at a time and beside everything else. What waits is in the database: the next process goes on with it. */
export class DataMeasurer {
  readonly #options: DataMeasurerOptions;
  #running: Promise<void> | undefined;
  #current: { id: string; ending: AbortController } | undefined;
  #isPoked = false;
  #isClosed = false;

  constructor(options: DataMeasurerOptions) {
    this.#options = options;
  }

  /** There may be something to measure. */
  poke(): void {
    this.#isPoked = true;
    if (this.#isClosed || this.#running !== undefined) return;
    this.#running = this.#run().finally(() => {
      this.#running = undefined;
      if (this.#isPoked) this.poke();
    });
  }

  /** Nobody wants to know of this one any more, or not of its folder as it was. */
  cancel(sourceId: string): void {
    if (this.#current?.id === sourceId) this.#current.ending.abort();
  }

  /** When nothing is left to measure. */
  async settled(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#current?.ending.abort();
    await this.settled();
  }

  async #run(): Promise<void> {
    const { store, log } = this.#options;
    try {
      while (!this.#isClosed) {
        this.#isPoked = false;
        const source = await store.findUnmeasured();
        if (source === undefined) return;
        const outcome = await this.#measure(source);
        if (outcome !== undefined) await store.saveMeasure(source, outcome);
      }
    } catch (error) {
      log.warn({ reason: (error as Error).message }, 'data sources could not be measured; it is tried again');
      setTimeout(() => this.poke(), RETRY_MS).unref();
    }
  }

  /** Undefined where it was cancelled. */
  async #measure({
    id,
    path: folder,
  }: {
    id: string;
    path: string;
  }): Promise<FolderMeasure | { error: string } | undefined> {
    const { dataRoots, measure = measureInThread } = this.#options;
    const inside = resolveInside(folder, dataRoots);
    if (inside === undefined) return { error: 'the folder is gone, or lies no longer below a data root' };
    const ending = new AbortController();
    this.#current = { id, ending };
    try {
      return await measure(inside, DEFAULT_MEASURE_LIMITS, ending.signal);
    } catch (error) {
      return ending.signal.aborted ? undefined : { error: (error as Error).message };
    } finally {
      this.#current = undefined;
    }
  }
}

/** In a thread of its own, which ends with the signal. Run from sources that are not compiled, where the thread has no file, it stays in this one. */
export function measureInThread(folder: string, limits: MeasureLimits, signal: AbortSignal): Promise<FolderMeasure> {
  const file = path.join(__dirname, 'measure-thread.js');
  if (!fs.existsSync(file)) return measureFolder(folder, limits, signal);
  return new Promise((resolve, reject) => {
    const worker = new Worker(file, { workerData: { folder, limits } satisfies MeasureTask, name: 'capstan-measure' });
    const end = () => void worker.terminate();
    signal.addEventListener('abort', end, { once: true });
    worker.unref();
    worker.once('message', (answer: MeasureAnswer) => {
      if ('measure' in answer) resolve(answer.measure);
      else reject(new Error(answer.error));
    });
    worker.once('error', reject);
    worker.once('exit', () => {
      signal.removeEventListener('abort', end);
      reject(new Error('the measuring ended'));
    });
  });
}
