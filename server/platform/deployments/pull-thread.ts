import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { CapstanError, type DownloadProgress, type ModelInfo, type PulledModel, pullModel } from 'capstan/internal';

/** A download. The token is a secret. */
export interface PullTask {
  model: string;
  hub: 'huggingface' | 'modelscope';
  token: string | null;
  cacheDir: string;
}

export interface PullHooks {
  signal: AbortSignal;
  onProgress: (progress: DownloadProgress) => void;
  /** Called before the weights are downloaded, which wait for it. */
  onListing: (info: ModelInfo) => Promise<void>;
}

export type PullMessage =
  | { type: 'progress'; progress: DownloadProgress }
  | { type: 'listing'; info: ModelInfo }
  | { type: 'done'; model: PulledModel }
  | { type: 'failed'; code: string; message: string };

/** Downloads in this thread. */
export function pullHere({ model, ...options }: PullTask, { onListing, ...hooks }: PullHooks): Promise<PulledModel> {
  return pullModel(model, { ...options, ...hooks, onDownload: onListing });
}

/** How often a thread reports progress. A fast download has thousands of pieces a second. */
const REPORT_MS = 200;

/** Runs a download in a thread. The other side terminates it, or answers a listing to continue. */
export async function servePull(port: MessagePort, task: PullTask): Promise<void> {
  const send = (message: PullMessage): void => port.postMessage(message);
  let latest: DownloadProgress | undefined;
  const report = (): void => {
    if (latest !== undefined) send({ type: 'progress', progress: latest });
    latest = undefined;
  };
  const timer = setInterval(report, REPORT_MS);
  try {
    const model = await pullHere(task, {
      signal: new AbortController().signal,
      onProgress: (progress) => {
        latest = progress;
      },
      onListing: (info) =>
        new Promise((resolve) => {
          port.once('message', () => resolve());
          send({ type: 'listing', info });
        }),
    });
    report();
    send({ type: 'done', model });
  } catch (error) {
    const code = error instanceof CapstanError ? error.code : 'download_failed';
    report();
    send({ type: 'failed', code, message: (error as Error).message });
  } finally {
    clearInterval(timer);
  }
}

if (parentPort !== null) void servePull(parentPort, workerData as PullTask).finally(() => parentPort?.close());
