import { type AccessStore, createStore } from '../access/store';
import type { DatabaseLocation } from '../access/location';
import { openServiceDatabase } from './change';
import type { ServiceDb } from './schema';
import { SecretBox } from './secret-box';
import { type AccountStore, accountMethods } from './store-accounts';
import { type UsageStore, usageMethods } from './usage-store';

/** What the service's store needs to know from its start on, in values that can cross a thread. */
export interface ServiceStoreOptions {
  location: DatabaseLocation;
  /** See `loadSecretKey`. */
  secretKey: Uint8Array;
}

export interface StoreContext {
  readonly db: ServiceDb;
  readonly now: () => number;
  /** Seals what has to be read again. */
  readonly box: SecretBox;
  readonly options: ServiceStoreOptions;
}

/** All that the service does with its database, in values that can cross a thread. Every change is on disk when its promise resolves. */
export type ServiceStore = AccessStore & AccountStore & UsageStore;

/** In this thread: for commands and tests. */
export async function openServiceStore(options: ServiceStoreOptions, now: () => number = Date.now): Promise<ServiceStore> {
  const db = await openServiceDatabase(options.location);
  const context: StoreContext = { db, now, options, box: new SecretBox(options.secretKey) };
  return { ...createStore(db, now), ...accountMethods(context), ...usageMethods(context) };
}
