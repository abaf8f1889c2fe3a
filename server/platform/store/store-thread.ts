import { parentPort, workerData } from 'node:worker_threads';
import { serveStore } from 'capstan/internal';
import { openServiceStore, type ServiceStoreOptions } from './store';

if (parentPort !== null)
  serveStore(parentPort, (workerData as ServiceStoreOptions).location, () =>
    openServiceStore(workerData as ServiceStoreOptions),
  );
