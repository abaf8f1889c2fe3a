import type { ServiceDb } from '../store/schema';

/** Returns the names of objects by id: an email address, a slug or a name. Deleted objects are missing. */
export async function objectNames(db: ServiceDb, ids: readonly string[]): Promise<Map<string, string>> {
  const names = new Map<string, string>();
  const add = (rows: readonly { id: string; name: string }[]) => {
    for (const { id, name } of rows) names.set(id, name);
  };
  const wanted = (prefix: string) => [...new Set(ids.filter((id) => id.startsWith(`${prefix}_`)))];
  for (const [prefix, table] of [
    ['usr', 'users'],
    ['org', 'organizations'],
    ['key', 'api_keys'],
  ] as const) {
    const some = wanted(prefix);
    if (some.length > 0)
      add(
        await db
          .selectFrom(table)
          .select(['id', 'name'])
          .where('id', 'in', some)
          .where('status', '!=', 'deleted')
          .execute(),
      );
  }
  for (const [prefix, table] of [
    ['dep', 'deployments'],
    ['con', 'containers'],
    ['src', 'data_sources'],
  ] as const) {
    const some = wanted(prefix);
    if (some.length > 0) add(await db.selectFrom(table).select(['id', 'name']).where('id', 'in', some).execute());
  }
  return names;
}
