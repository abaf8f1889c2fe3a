import { type Change, change, type ChangeOptions } from '../access/change';
import { openDatabase } from '../access/database';
import type { DatabaseLocation } from '../access/location';
import { ACCESS } from '../access/migrations';
import type { Db } from '../access/schema';
import { SERVICE } from './migrations';
import type { ServiceDb, ServiceTx } from './schema';
import { USAGE } from './usage-migrations';
import { WEBHOOKS } from './webhook-schema';

/** A change of access that also reaches the service's tables: one revision, one lock, one audit. */
export type ServiceChange = Omit<Change, 'tx'> & { readonly tx: ServiceTx; readonly access: Change };

export function serviceChange<T>(
  db: ServiceDb,
  nowMs: number,
  options: ChangeOptions,
  run: (change: ServiceChange) => Promise<T>,
): Promise<T> {
  return change(db as unknown as Db, nowMs, options, (access) => run({ ...access, tx: access.tx, access }));
}

/** The tables of access and of the service, made and brought up to date where needed. */
export async function openServiceDatabase(location: DatabaseLocation): Promise<ServiceDb> {
  return await openDatabase(location, [ACCESS, SERVICE, USAGE, WEBHOOKS]);
}
