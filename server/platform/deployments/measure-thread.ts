import { parentPort, workerData } from 'node:worker_threads';
import { type FolderMeasure, measureFolder, type MeasureLimits } from './measure-folder';

export interface MeasureTask {
  folder: string;
  limits: MeasureLimits;
}

export type MeasureResult = { measure: FolderMeasure } | { error: string };

if (parentPort !== null) {
  const port = parentPort;
  const { folder, limits } = workerData as MeasureTask;
  void measureFolder(folder, limits)
    .then(
      (measure): MeasureResult => ({ measure }),
      (error: unknown): MeasureResult => ({ error: (error as Error).message }),
    )
    .then((result) => port.postMessage(result));
}
