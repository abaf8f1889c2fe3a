import { parentPort, workerData } from 'node:worker_threads';
import { serveStore } from '../access/serve-store';
import { openServiceStore, type ServiceStoreOptions } from './store';

if (parentPort !== null)
  serveStore(parentPort, (workerData as ServiceStoreOptions).location, () =>
    openServiceStore(workerData as ServiceStoreOptions),
  );
