import type { OwnerRef } from 'capstan/internal';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** An owner as shown to users. `name` is a user's email address or an organization's slug. */
export interface OwnerView extends OwnerRef {
  name: string;
}

/** Returns the views of `owners` by id. Deleted owners are missing. */
export async function ownerViews(
  db: ServiceDb | ServiceTx,
  owners: readonly OwnerRef[],
): Promise<Map<string, OwnerView>> {
  const views = new Map<string, OwnerView>();
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

/** Returns the view of an owner, with an empty name when the owner is deleted. */
export function viewOf(views: ReadonlyMap<string, OwnerView>, id: string): OwnerView {
  return views.get(id) ?? { type: 'user', id, name: '' };
}
