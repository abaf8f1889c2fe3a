import { sql } from 'kysely';
import type { OwnerRef, OwnerType } from 'capstan/internal';
import { changeOptions, demandAdmin, type ServiceActor } from '../accounts/actor';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import { QUOTA_COLUMNS, type Quotas, quotasOf, type QuotaUse } from '../accounts/quota-columns';
import { useOf } from '../control/owner-use';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** An owner's limits and current use. */
export interface OwnerQuota {
  owner: OwnerRef & { name: string };
  quotas: Quotas;
  used: QuotaUse;
  /** Whether the owner is an administrator of the service. */
  isAdmin: boolean;
  /** The revision of the account or of the organization's settings. */
  rev: number;
}

export type QuotaEdit = Partial<Quotas>;

export interface QuotaFilter {
  /** Part of an email address or slug, in any case. */
  q?: string;
  after?: string;
  limit: number;
}

const MAX_QUOTA = 1_000_000_000;

/**
 * Returns quotas of accounts and organizations, ordered by id. Returns `limit + 1` entries when there is a next page.
 * @throws ServiceError
 */
export async function listQuotas(
  db: ServiceDb,
  actor: ServiceActor,
  { q, after, limit }: QuotaFilter,
): Promise<OwnerQuota[]> {
  demandAdmin(actor);
  let query = owners(db)
    .orderBy('id')
    .limit(limit + 1);
  if (after !== undefined) query = query.where('id', '>', after);
  if (q !== undefined)
    query = query.where(sql<boolean>`lower(name) like ${`%${q.toLowerCase().replace(/[%_!]/g, '!$&')}%`} escape '!'`);
  return withUse(db, await query.execute());
}

/** @throws ServiceError */
export async function findQuota(db: ServiceDb, actor: ServiceActor, ownerId: string): Promise<OwnerQuota> {
  demandAdmin(actor);
  return (await withUse(db, [await findRow(db, ownerId)]))[0];
}

/** A smaller quota stops nothing that runs. It only refuses new requests. @throws ServiceError */
export async function editQuota(
  db: ServiceDb,
  actor: ServiceActor,
  ownerId: string,
  edit: QuotaEdit,
  nowMs: number,
  ifRev?: number,
): Promise<OwnerQuota> {
  demandAdmin(actor);
  await serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const row = await findRow(tx, ownerId);
    if (ifRev !== undefined && ifRev !== row.rev)
      throw new ServiceError('stale', `the owner has changed: its revision is ${row.rev}, not ${ifRev}`);
    const before = quotasOf(row);
    const after = Object.fromEntries(
      QUOTA_COLUMNS.map((column) => [column, checkQuota(column, edit[column], row[column])]),
    ) as Quotas;
    if (row.type === 'user')
      await tx
        .updateTable('accounts')
        .set({ ...after, updated_at: nowMs, rev })
        .where('user_id', '=', ownerId)
        .execute();
    else
      await tx
        .updateTable('org_settings')
        .set({ ...after, updated_at: nowMs, rev })
        .where('org_id', '=', ownerId)
        .execute();
    const owner = { type: row.type, id: ownerId };
    record({ action: 'owner.quota', owner, target: owner, before, after });
  });
  return findQuota(db, actor, ownerId);
}

interface Row extends Quotas {
  type: OwnerType;
  id: string;
  name: string;
  is_admin: number;
  rev: number;
}

function owners(db: ServiceDb | ServiceTx) {
  const users = db
    .selectFrom('accounts')
    .innerJoin('users', 'users.id', 'accounts.user_id')
    .where('users.status', '=', 'active')
    .select([
      sql<OwnerType>`'user'`.as('type'),
      'users.id as id',
      'users.name as name',
      ...QUOTA_COLUMNS.map((column) => `accounts.${column} as ${column}` as const),
      'accounts.is_admin as is_admin',
      'accounts.rev as rev',
    ]);
  const organizations = db
    .selectFrom('org_settings')
    .innerJoin('organizations', 'organizations.id', 'org_settings.org_id')
    .where('organizations.status', '=', 'active')
    .select([
      sql<OwnerType>`'org'`.as('type'),
      'organizations.id as id',
      'organizations.name as name',
      ...QUOTA_COLUMNS.map((column) => `org_settings.${column} as ${column}` as const),
      sql<0 | 1>`0`.as('is_admin'),
      'org_settings.rev as rev',
    ]);
  return db.selectFrom(users.unionAll(organizations).as('owners')).selectAll();
}

async function findRow(db: ServiceDb | ServiceTx, ownerId: string): Promise<Row> {
  const row = await owners(db).where('id', '=', ownerId).executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'account or organization not found');
  return row;
}

async function withUse(db: ServiceDb, rows: readonly Row[]): Promise<OwnerQuota[]> {
  const used = await useOf(
    db,
    rows.map(({ id }) => id),
  );
  return rows.map((row) => ({
    owner: { type: row.type, id: row.id, name: row.name },
    quotas: quotasOf(row),
    used: used(row.id),
    isAdmin: row.is_admin === 1,
    rev: row.rev,
  }));
}

function checkQuota(param: string, value: number | null | undefined, before: number | null): number | null {
  if (value === undefined) return before;
  if (value !== null && !(Number.isInteger(value) && value >= 0 && value <= MAX_QUOTA))
    throw new ServiceError('invalid_argument', `${param}: expected an integer from 0 to ${MAX_QUOTA}, or null`);
  return value;
}
