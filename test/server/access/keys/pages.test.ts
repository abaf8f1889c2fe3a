/** Lists of many keys stay fast. Checks query plans instead of time. */
import path from 'node:path';
import { CompiledQuery, createQueryId, type KyselyPlugin, type RootOperationNode } from 'kysely';
import { openDatabase } from '../../../../server/access/store/database';
import { pageKeys } from '../../../../server/access/keys/pages';
import { KEY_SORTS } from '../../../../server/access/keys/sorts';
import type { KeyFilter } from '../../../../server/access/keys/queries';
import type { Db } from '../../../../server/access/store/schema';
import { makeFolder, removeFolders } from '../support';

let db: Db;
beforeAll(async () => {
  db = await openDatabase({ kind: 'file', file: path.join(makeFolder(), 'capstan.db') });
});
afterAll(async () => {
  await db.destroy();
  removeFolders();
});

/** Returns the plan of the first query of a page, one line per step. */
async function planOf(filter: KeyFilter, paging: Parameters<typeof pageKeys>[2]): Promise<string> {
  const seen: RootOperationNode[] = [];
  const watcher: KyselyPlugin = {
    transformQuery: ({ node }) => {
      seen.push(node);
      return node;
    },
    transformResult: ({ result }) => Promise.resolve(result),
  };
  await pageKeys(db.withPlugin(watcher), filter, paging, 0);
  const { sql, parameters } = db.getExecutor().compileQuery(seen[0], createQueryId());
  const { rows } = await db.executeQuery<{ detail: string }>(
    CompiledQuery.raw(`explain query plan ${sql}`, [...parameters]),
  );
  return rows.map(({ detail }) => detail).join('\n');
}

const after = (sort: string, descending: boolean) =>
  Buffer.from(JSON.stringify([`${sort}${descending ? '-' : '+'}`, sort === 'name' ? 'n' : 5, 'key_1'])).toString(
    'base64url',
  );

describe.each(KEY_SORTS)('a page by %s', (sort) => {
  test.each<[string, KeyFilter]>([
    ['an owner', { ownerId: 'usr_1' }],
    ['a deployment', { deploymentId: 'dep_1' }],
    ['an owner, searched', { ownerId: 'usr_1', search: 'x' }],
  ])('of %s reads an index from its first key', async (_name, filter) => {
    for (const descending of [false, true]) {
      for (const paging of [
        { sort, descending },
        { sort, descending, after: after(sort, descending) },
      ]) {
        const plan = await planOf(filter, paging);
        expect(plan).toMatch(/SEARCH api_keys USING (?:COVERING )?INDEX api_keys_\w+ \(owner_id=\?/);
        // Sorted by name, only keys of equal name need sorting after the index.
        if (sort !== 'name') expect(plan).not.toContain('TEMP B-TREE');
        if ('after' in paging) expect(plan).toMatch(/owner_id=\? AND [^\n]+[<>]\?/);
      }
    }
  });
});
