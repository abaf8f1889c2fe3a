import {
  ACCESS,
  type Change,
  change,
  type ChangeOptions,
  type Component,
  type DatabaseLocation,
  type Db,
  openDatabase,
} from 'capstan/internal';
import { ROUTING } from '../deployments/routing-schema';
import { SERVICE } from './migrations';
import type { ServiceDb, ServiceTx } from './schema';
import { UPSTREAMS } from '../upstreams/upstream-schema';
import { USAGE } from '../usage/usage-migrations';
import { MONEY } from '../money/money-schema';
import { CANARY } from '../canary/canary-schema';
import { SIGN_IN } from '../sign-in/sign-in-schema';
import { WEBHOOKS } from '../webhooks/webhook-schema';

/** A change that covers the tables of access and of the service, with one revision, one lock and one audit record. */
export type ServiceChange = Omit<Change, 'tx'> & { readonly tx: ServiceTx; readonly access: Change };

export function serviceChange<T>(
  db: ServiceDb,
  nowMs: number,
  options: ChangeOptions,
  run: (change: ServiceChange) => Promise<T>,
): Promise<T> {
  return change(db as unknown as Db, nowMs, options, (access) => run({ ...access, tx: access.tx, access }));
}

/** The tables of a service's database. */
export const SERVICE_COMPONENTS: readonly Component[] = [
  ACCESS,
  SERVICE,
  USAGE,
  WEBHOOKS,
  ROUTING,
  SIGN_IN,
  CANARY,
  MONEY,
  UPSTREAMS,
];

/** Opens the database and runs the pending migrations of access and of the service. */
export async function openServiceDatabase(location: DatabaseLocation): Promise<ServiceDb> {
  return await openDatabase(location, SERVICE_COMPONENTS);
}
