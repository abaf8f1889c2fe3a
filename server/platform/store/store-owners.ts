import type { StoreContext } from './store-context';

export interface OwnerStore {
  /** Returns the ids of all users and organizations that exist. */
  readOwnerIds(): Promise<string[]>;
}

export function ownerMethods({ db }: Pick<StoreContext, 'db'>): OwnerStore {
  return {
    readOwnerIds: async () => {
      const rows = await db
        .selectFrom('users')
        .select('id')
        .where('status', '=', 'active')
        .unionAll(db.selectFrom('organizations').select('id').where('status', '=', 'active'))
        .execute();
      return rows.map(({ id }) => id);
    },
  };
}
