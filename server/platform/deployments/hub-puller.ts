import fs from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import {
  CapstanError,
  type DownloadProgress,
  fitWarning,
  type ModelInfo,
  type PulledModel,
  uncheckedWarning,
} from 'capstan/internal';
import type { DeploymentStore } from '../store/store-deployments';
import { pullRoot } from './data-pulls';
import { PullError } from './pull-error';
import {
  downloadFolder,
  installModel,
  prepareFolders,
  removeDownload,
  removeLeftovers,
  removeModelFolder,
  sizeOfDownload,
} from './pull-folder';
import { type PullJob, type PullKey, type PullListing, QUOTA_EXCEEDED } from './pull-jobs';
import { type PullHooks, type PullMessage, pullHere, type PullTask } from './pull-thread';

export interface HubPullerOptions {
  store: Pick<
    DeploymentStore,
    'takePull' | 'admitPull' | 'savePullProgress' | 'finishPull' | 'failPull' | 'listPulledSources'
  >;
  dataRoots: readonly string[];
  /** Id of this service, which names its folder below the data root. */
  node?: string;
  log: { info(fields: object, message: string): void; warn(fields: object, message: string): void };
  /** Called when a download has ended: complete, failed or cancelled. */
  onEnd: (sourceId: string) => void;
  pull?: (task: PullTask, hooks: PullHooks) => Promise<PulledModel>;
  /** How often progress is saved. */
  saveMs?: number;
}

/** Downloads at the same time. Each downloads several files at once. */
const MAX_PULLS = 2;
const SAVE_MS = 1_000;
/** Delay after a database error. */
const RETRY_MS = 5_000;
/** What a download may have beside its own files: marks and locks, and config.json, which comes before the listing. */
const MAX_OTHER_BYTES = 2 ** 21;
/** The speed is that of the last ten saves. */
const SPEED_SAMPLES = 10;

interface Active {
  abort: AbortController;
  ended: Promise<void>;
}

/**
 * Downloads models from the hub into the folders of data sources, in the background. The requests are in the database,
 * so a restart continues them.
 */
export class HubPuller {
  readonly #options: HubPullerOptions;
  readonly #active = new Map<string, Active>();
  #starting: Promise<void> | undefined;
  #isNotified = false;
  #isStarted = false;
  #isClosed = false;

  constructor(options: HubPullerOptions) {
    this.#options = options;
  }

  /** Deletes what an earlier service has left, then continues its downloads. */
  async start(): Promise<void> {
    const { store, dataRoots, node, log } = this.#options;
    try {
      const sources = await store.listPulledSources();
      for (const root of dataRoots.slice(0, 1)) await removeLeftovers(pullRoot(root, node), sources);
    } catch (error) {
      log.warn({ reason: (error as Error).message }, 'cannot delete the folders of deleted data sources');
    }
    this.#isStarted = true;
    this.notify();
  }

  /** Starts downloads, unless start() has not ended, which then does. Call after a pull is requested. */
  notify(): void {
    this.#isNotified = true;
    if (!this.#isStarted || this.#isClosed || this.#starting !== undefined) return;
    this.#starting = this.#startAll().finally(() => {
      this.#starting = undefined;
      if (this.#isNotified) this.notify();
    });
  }

  /** Stops a download that was cancelled, also one that waits. */
  cancel(sourceId: string): void {
    const active = this.#active.get(sourceId);
    if (active !== undefined) active.abort.abort();
    else if (!this.#isClosed) this.#options.onEnd(sourceId);
  }

  /** Stops the download of a deleted source and deletes its folder. Logs what it cannot delete. */
  async remove(sourceId: string, folder: string): Promise<void> {
    const active = this.#active.get(sourceId);
    active?.abort.abort();
    await active?.ended;
    await removeModelFolder(folder).catch((error: unknown) =>
      this.#options.log.warn(
        { sourceId, reason: (error as Error).message },
        'cannot delete the folder of a data source. The next start of the service deletes it',
      ),
    );
  }

  /** Resolves when nothing is being downloaded. */
  async settled(): Promise<void> {
    while (this.#starting !== undefined || this.#active.size > 0) {
      await this.#starting;
      await Promise.all([...this.#active.values()].map(({ ended }) => ended));
    }
  }

  /** Interrupts the downloads. The next service continues them. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { abort } of this.#active.values()) abort.abort();
    await this.settled();
  }

  async #startAll(): Promise<void> {
    const { store, log } = this.#options;
    try {
      while (!this.#isClosed && this.#active.size < MAX_PULLS) {
        this.#isNotified = false;
        const job = await store.takePull([...this.#active.keys()]);
        if (job === undefined) return;
        const abort = new AbortController();
        const ended = this.#run(job, abort).finally(() => {
          this.#active.delete(job.sourceId);
          this.notify();
        });
        this.#active.set(job.sourceId, { abort, ended });
      }
      this.#isNotified = false;
    } catch (error) {
      log.warn({ reason: (error as Error).message }, `cannot start downloads, retrying in ${RETRY_MS / 1000} s`);
      setTimeout(() => this.notify(), RETRY_MS).unref();
    }
  }

  async #run(job: PullJob, abort: AbortController): Promise<void> {
    const { store, log, onEnd } = this.#options;
    const { sourceId, model, hub } = job;
    try {
      await this.#download(job, abort);
      await store.finishPull(keyOf(job));
      await removeDownload(job.folder);
      log.info({ sourceId, hub, model }, 'downloaded a model');
    } catch (error) {
      // Cancelled, deleted, or to be continued by the next service.
      if (!abort.signal.aborted) await this.#fail(job, error);
    }
    if (!this.#isClosed) onEnd(sourceId);
  }

  async #download(job: PullJob, abort: AbortController): Promise<void> {
    const { store, pull = pullInThread, saveMs = SAVE_MS } = this.#options;
    const { signal } = abort;
    const { folder, model, hub, token, tokenError } = job;
    if (tokenError !== undefined) throw new PullError('access_denied', tokenError);
    await prepareFolders(folder);
    const task: PullTask = { model, hub, token, cacheDir: downloadFolder(folder) };
    const meter = new Meter();
    const save = async (): Promise<void> => {
      const progress = meter.sample();
      if (progress !== undefined && !(await store.savePullProgress(keyOf(job), progress))) abort.abort();
    };
    let saving = Promise.resolve();
    const timer = setInterval(() => {
      saving = saving.then(save).catch(() => {});
    }, saveMs);
    try {
      const hooks: PullHooks = {
        signal,
        onProgress: (progress) => meter.update(progress),
        onListing: async (info) => {
          if ((await sizeOfDownload(folder)) + info.downloadBytes > info.totalBytes + MAX_OTHER_BYTES)
            throw new OtherModelError();
          const refusal = await store.admitPull(keyOf(job), listingOf(info));
          if (refusal !== undefined) throw new PullError(QUOTA_EXCEEDED, refusal);
        },
      };
      const pulled = await pull(task, hooks).catch(async (error: unknown) => {
        if (!(error instanceof OtherModelError)) throw error;
        await removeDownload(folder);
        await prepareFolders(folder);
        return pull(task, hooks);
      });
      signal.throwIfAborted();
      const format = /\.gguf$/i.test(pulled.path) ? 'gguf' : 'safetensors';
      await installModel(snapshotOf(pulled), pulled.files, folder, format);
    } finally {
      clearInterval(timer);
      await saving;
    }
  }

  async #fail(job: PullJob, error: unknown): Promise<void> {
    const { store, log } = this.#options;
    const { sourceId, model, folder } = job;
    const code = codeOf(error);
    // Only administrators may see paths of the machine.
    const message = (error as Error).message
      .replaceAll(downloadFolder(folder), 'the folder of the data source')
      .replaceAll(path.dirname(folder), 'the data root');
    log.warn({ sourceId, model, code, reason: message }, 'cannot download a model');
    if (code === QUOTA_EXCEEDED)
      await removeDownload(folder).catch((cause: unknown) =>
        log.warn({ sourceId, reason: (cause as Error).message }, 'cannot delete a download above the quota'),
      );
    await store
      .failPull(keyOf(job), { code, message })
      .catch((cause: unknown) =>
        log.warn({ sourceId, reason: (cause as Error).message }, 'cannot save that a download failed'),
      );
  }
}

/** The download has files of another model or commit, which no quota counts. */
class OtherModelError extends Error {}

function codeOf(error: unknown): string {
  if (error instanceof PullError || error instanceof CapstanError) return error.code;
  return (error as NodeJS.ErrnoException).syscall === undefined ? 'download_failed' : 'io_error';
}

function keyOf({ sourceId, attempt }: PullJob): PullKey {
  return { sourceId, attempt };
}

function listingOf(info: ModelInfo): PullListing {
  const { commit, format, quantization, totalBytes, downloadBytes, problem } = info;
  const doneBytes = Math.max(0, totalBytes - downloadBytes);
  const notes = [
    problem === null ? undefined : `this version cannot run the model: ${problem}`,
    fitWarning(info),
    uncheckedWarning(info),
  ].filter((note) => note !== undefined);
  return { commit, format, quantization, totalBytes, doneBytes, note: notes.length === 0 ? null : notes.join('. ') };
}

/** Returns the folder of a snapshot. The path of a GGUF model is a file in it. */
function snapshotOf({ path: found, commit }: PulledModel): string {
  const marker = `${path.sep}snapshots${path.sep}${commit}`;
  return found.slice(0, found.indexOf(marker) + marker.length);
}

/** The last progress and the speed of a download. */
class Meter {
  #latest: DownloadProgress | undefined;
  #saved: string | undefined;
  #samples: { atMs: number; doneBytes: number }[] = [];

  update(progress: DownloadProgress): void {
    this.#latest = progress;
  }

  /** Returns undefined if nothing has changed since the last sample. */
  sample(): (DownloadProgress & { bytesPerSecond: number | null }) | undefined {
    if (this.#latest === undefined) return undefined;
    const { doneBytes } = this.#latest;
    this.#samples = [...this.#samples.slice(1 - SPEED_SAMPLES), { atMs: performance.now(), doneBytes }];
    const [first, last] = [this.#samples[0], this.#samples[this.#samples.length - 1]];
    const seconds = (last.atMs - first.atMs) / 1000;
    const speed = seconds > 0 ? Math.max(0, Math.round((last.doneBytes - first.doneBytes) / seconds)) : null;
    const progress = { ...this.#latest, bytesPerSecond: speed };
    if (JSON.stringify(progress) === this.#saved) return undefined;
    this.#saved = JSON.stringify(progress);
    return progress;
  }
}

/**
 * Downloads in a worker thread, which `signal` terminates: checking hashes keeps a core busy. Downloads in this thread
 * when the compiled thread file does not exist, that is when running from TypeScript sources.
 */
function pullInThread(task: PullTask, hooks: PullHooks): Promise<PulledModel> {
  const file = path.join(__dirname, 'pull-thread.js');
  if (!fs.existsSync(file)) return pullHere(task, hooks);
  const { signal, onProgress, onListing } = hooks;
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const worker = new Worker(file, { workerData: task, name: 'capstan-pull' });
    let hasEnded = false;
    const end = (settle: () => void): void => {
      if (hasEnded) return;
      hasEnded = true;
      signal.removeEventListener('abort', onAbort);
      // Files are closed when the thread has ended.
      void worker.terminate().then(settle);
    };
    const onAbort = (): void => end(() => reject(signal.reason as Error));
    signal.addEventListener('abort', onAbort, { once: true });
    worker.unref();
    worker.on('message', (message: PullMessage) => {
      switch (message.type) {
        case 'progress':
          return onProgress(message.progress);
        case 'listing':
          return void onListing(message.info).then(
            () => worker.postMessage('continue'),
            (error: Error) => end(() => reject(error)),
          );
        case 'done':
          return end(() => resolve(message.model));
        case 'failed':
          return end(() => reject(new PullError(message.code, message.message)));
      }
    });
    worker.once('error', (error) => end(() => reject(error)));
    worker.once('exit', () => end(() => reject(new Error('the download thread exited'))));
  });
}
