import path from 'node:path';
import { type CreateThread, openThreadedStore, reviveAccessError, type SerializedError } from 'capstan/internal';
import { ServiceError, type ServiceErrorCode } from './errors';
import { openServiceStore, type ServiceStore, type ServiceStoreOptions } from './store';

/** Opens the store in a worker thread. Calls `onPush` when another process may have changed the database. */
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

function revive(error: SerializedError): Error {
  return error.name === 'ServiceError'
    ? new ServiceError(error.code as ServiceErrorCode, error.message)
    : reviveAccessError(error);
}
