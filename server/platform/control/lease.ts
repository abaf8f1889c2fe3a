import { AccessError, readVersion } from 'capstan/internal';
import { SERVICE_COMPONENTS } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { controlTransaction } from './control-transaction';

/** Which service runs the control loop. There is one lease for each database. */
export interface Lease {
  /** Id of the service, from its data directory. Null: no service has run the loop yet, or the last one released it. */
  holder: string | null;
  /** Grows with each new holder. Writes of the loop carry it, so that those of an earlier holder fail. */
  epoch: number;
  /** By the clock of the holder. Other services only watch whether it changes. */
  expiresAt: number;
}

/** The time in which one service holds the lease. */
export interface LeaseTerm {
  epoch: number;
  /** When its control loop began to observe the replicas, by the clock of the loop. */
  startedAt: number;
}

/** A lease is valid for this long after a renewal. */
export const LEASE_MS = 15_000;

export async function readLease(db: ServiceDb | ServiceTx): Promise<Lease> {
  const row = await db.selectFrom('control_lease').selectAll().executeTakeFirstOrThrow();
  return { holder: row.holder, epoch: row.epoch, expiresAt: row.expires_at };
}

/**
 * Takes the lease if it has not changed since `seen`. Returns the new epoch, or undefined if another was faster.
 * @throws ServiceError `lease_lost` if a service of a newer release has changed the tables
 */
export function takeLease(db: ServiceDb, holder: string, seen: Lease, nowMs: number): Promise<number | undefined> {
  // The transaction excludes a step of the earlier holder that has already checked its epoch.
  return controlTransaction(db, async (tx) => {
    await demandKnownTables(tx);
    const taken = await tx
      .updateTable('control_lease')
      .set({ holder, epoch: seen.epoch + 1, expires_at: nowMs + LEASE_MS })
      .where('epoch', '=', seen.epoch)
      .where('expires_at', '=', seen.expiresAt)
      .returning('epoch')
      .executeTakeFirst();
    return taken?.epoch;
  });
}

async function demandKnownTables(tx: ServiceTx): Promise<void> {
  try {
    for (const component of SERVICE_COMPONENTS) await readVersion(tx, component);
  } catch (error) {
    throw error instanceof AccessError ? new ServiceError('lease_lost', error.message) : error;
  }
}

/** Returns false if another service has taken the lease. An expired lease that no other service took is renewed. */
export async function renewLease(db: ServiceDb, epoch: number, nowMs: number): Promise<boolean> {
  return setExpiry(db, epoch, { expires_at: nowMs + LEASE_MS });
}

/** Releases the lease, so that another service can take it at once. */
export async function releaseLease(db: ServiceDb, epoch: number): Promise<boolean> {
  return setExpiry(db, epoch, { expires_at: 0, holder: null });
}

async function setExpiry(
  db: ServiceDb,
  epoch: number,
  values: { expires_at: number; holder?: null },
): Promise<boolean> {
  const row = await db
    .updateTable('control_lease')
    .set(values)
    .where('epoch', '=', epoch)
    .returning('epoch')
    .executeTakeFirst();
  return row !== undefined;
}

/**
 * Runs a transaction of the control loop.
 * @throws ServiceError `lease_lost` if another service runs the loop now. Nothing is written then.
 */
export function loopTransaction<T>(db: ServiceDb, epoch: number, run: (tx: ServiceTx) => Promise<T>): Promise<T> {
  return controlTransaction(db, async (tx) => {
    await demandEpoch(tx, epoch);
    return run(tx);
  });
}

/** @throws ServiceError `lease_lost` */
export async function demandEpoch(tx: ServiceTx, epoch: number): Promise<void> {
  const lease = await readLease(tx);
  if (lease.epoch === epoch) return;
  throw new ServiceError(
    'lease_lost',
    `another service (${lease.holder ?? 'none'}) controls the deployments of this database: expected epoch ${epoch}, got ${lease.epoch}`,
  );
}
