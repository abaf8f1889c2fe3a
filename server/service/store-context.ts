import type { DatabaseLocation } from '../access/location';
import type { Machine } from './machine';
import type { ServiceDb } from './schema';
import type { SecretBox } from './secret-box';

/** What the service's store needs to know from its start on, in values that can cross a thread. */
export interface ServiceStoreOptions {
  location: DatabaseLocation;
  /** See `loadSecretKey`. */
  secretKey: Uint8Array;
  /** Of the program: that of the built-in runtime. Without it no image is seeded. */
  version?: string;
  /** Where replicas run; default none, for commands that run nothing. */
  machine?: Machine;
}

export interface StoreContext {
  readonly db: ServiceDb;
  readonly now: () => number;
  /** Seals what has to be read again. */
  readonly box: SecretBox;
  readonly options: ServiceStoreOptions & { readonly machine: Machine };
}
