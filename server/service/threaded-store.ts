import path from 'node:path';
import type { CrossedError } from '../access/serve-store';
import { type CreateThread, openThreadedStore, reviveAccessError } from '../access/threaded-store';
import { ServiceError, type ServiceErrorCode } from './errors';
import { openServiceStore, type ServiceStore, type ServiceStoreOptions } from './store';

/** The service's store in a thread of its own; `onPush` when another process changed something and the database can tell. */
export async function openServingServiceStore(
  options: ServiceStoreOptions,
  onPush: () => void,
  createThread?: CreateThread<ServiceStoreOptions>,
): Promise<ServiceStore> {
  const store = await openThreadedStore<ServiceStore, ServiceStoreOptions>({
    file: path.join(__dirname, 'store-thread.js'),
    name: 'capstan-service',
    data: options,
    location: options.location,
    openHere: () => openServiceStore(options),
    revive,
    onPush,
    createThread,
  });
  await store.readState();
  return store;
}

function revive(error: CrossedError): Error {
  return error.name === 'ServiceError'
    ? new ServiceError(error.code as ServiceErrorCode, error.message)
    : reviveAccessError(error);
}
