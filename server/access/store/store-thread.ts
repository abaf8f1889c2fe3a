import { parentPort, workerData } from 'node:worker_threads';
import type { DatabaseLocation } from './location';
import { serveStore } from './serve-store';
import { openStore } from './store';

if (parentPort !== null)
  serveStore(parentPort, workerData as DatabaseLocation, () => openStore(workerData as DatabaseLocation));
