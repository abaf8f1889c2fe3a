import {
  AccessError,
  cannotOpen,
  type Component,
  connectDatabase,
  type DatabaseLocation,
  hasTable,
  needsMigration,
} from 'capstan/internal';
import { readLease, releaseLease, renewLease, takeLease } from '../control/lease';
import { SERVICE_COMPONENTS } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb } from '../store/schema';
import { LeaseKeeper, type LeaseKeeperOptions } from './lease-keeper';

interface MigrationLeaseOptions extends Omit<LeaseKeeperOptions, 'store' | 'isAlone'> {
  location: DatabaseLocation;
  /** The clock of the lease. See `loopClock`. */
  loopNow: () => number;
  signal: AbortSignal;
  /** Called once, if another service holds the lease. */
  onStandby: () => void;
  components?: readonly Component[];
}

/**
 * If this release changes the tables of the database, waits until no other service holds the lease, and takes it. The
 * control loop of the earlier service can save nothing after that. NOTE: its API can, until its next renewal fails.
 * Call the returned function after the tables are changed. It ends the renewals and does not release the lease.
 */
export async function leaseForMigration(options: MigrationLeaseOptions): Promise<() => Promise<void>> {
  const { location, loopNow, signal, onStandby, components = SERVICE_COMPONENTS, log } = options;
  const access = connectDatabase(location);
  const db = access as unknown as ServiceDb;
  const close = (): Promise<void> => access.destroy();
  try {
    // Releases before the lease ran one service for each database.
    if (!(await needsMigration(access, components)) || !(await hasTable(access, 'control_lease'))) {
      await close();
      return () => Promise.resolve();
    }
    const keeper = new LeaseKeeper({
      ...options,
      isAlone: false,
      store: {
        readLease: () => readLease(db),
        takeLease: (holder, seen) => takeLease(db, holder, seen, loopNow()),
        renewLease: (epoch) => renewLease(db, epoch, loopNow()),
        releaseLease: (epoch) => releaseLease(db, epoch),
      },
    });
    await keeper.acquire(signal, () => {
      log.info({}, 'waiting for another service to end. This release changes the tables of the database after that');
      onStandby();
    });
    return () => keeper.close().then(close);
  } catch (error) {
    await close();
    throw error instanceof AccessError || error instanceof ServiceError ? error : cannotOpen(location, error);
  }
}
