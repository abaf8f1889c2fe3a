import type { Owner } from '../api/objects';
import type { OwnerRef } from '../access/owners';
import type { ServiceDb, ServiceTx } from './schema';

/** By id: a user's address, an organization's slug. Those that are gone are missing. */
export async function ownerViews(db: ServiceDb | ServiceTx, owners: readonly OwnerRef[]): Promise<Map<string, Owner>> {
  const views = new Map<string, Owner>();
  for (const [type, table] of [
    ['user', 'users'],
    ['org', 'organizations'],
  ] as const) {
    const ids = [...new Set(owners.filter((owner) => owner.type === type).map(({ id }) => id))];
    if (ids.length === 0) continue;
    const rows = await db
      .selectFrom(table)
      .select(['id', 'name'])
      .where('id', 'in', ids)
      .where('status', '=', 'active')
      .execute();
    for (const { id, name } of rows) views.set(id, { type, id, name });
  }
  return views;
}

export function viewOf(views: ReadonlyMap<string, Owner>, id: string): Owner {
  return views.get(id) ?? { type: 'user', id, name: '' };
}
