import type { DatabaseLocation } from 'capstan/internal';
import type { Machine } from '../deployments/machine';
import type { ServiceDb } from './schema';
import type { SecretBox } from '../accounts/secret-box';

/** Options of the service's store. Structured-cloneable. */
export interface ServiceStoreOptions {
  location: DatabaseLocation;
  /** See `loadSecretKey`. */
  secretKey: Uint8Array;
  /** The program's version, for the image of the built-in runtime. Without it no images are inserted. */
  version?: string;
  /** Default: none, for commands that run no replicas. */
  machine?: Machine;
  /** Bytes that a service reserves on the disk (`reserveSpace`). Default: 4 MiB. Tests pass 0 to save time. */
  reserveBytes?: number;
  /** Id of this service, as the holder of the control lease. Without it no replica counts as another machine's. */
  node?: string;
  /** `LOOP_OFFSET_MS` of the process. Without it the control loop follows the time of day. */
  loopOffsetMs?: number;
}

export interface StoreContext {
  readonly db: ServiceDb;
  readonly now: () => number;
  /** The clock of the control loop. See `loopClock`. */
  readonly loopNow: () => number;
  /** Encrypts secrets that must be decrypted later. */
  readonly box: SecretBox;
  readonly options: ServiceStoreOptions & { readonly machine: Machine };
}
