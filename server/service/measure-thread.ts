import { parentPort, workerData } from 'node:worker_threads';
import { type FolderMeasure, measureFolder, type MeasureLimits } from './measure-folder';

export interface MeasureTask {
  folder: string;
  limits: MeasureLimits;
}

export type MeasureAnswer = { measure: FolderMeasure } | { error: string };

if (parentPort !== null) {
  const port = parentPort;
  const { folder, limits } = workerData as MeasureTask;
  void measureFolder(folder, limits)
    .then(
      (measure): MeasureAnswer => ({ measure }),
      (error: unknown): MeasureAnswer => ({ error: (error as Error).message }),
    )
    .then((answer) => port.postMessage(answer));
}
