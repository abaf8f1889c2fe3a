/** Space that the SQLite database reserves for a full disk. */
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sql } from 'kysely';
import { openDatabase } from '../../../../server/access/store/database';
import { reserveRoom } from '../../../../server/access/store/reserve';

const RESERVE_BYTES = 4 * 2 ** 20;
let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'capstan-reserve-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

test('reserves free pages and log space without a table, and reuses them at each start', async () => {
  const file = join(folder, 'keys.db');
  const db = await openDatabase({ kind: 'file', file });
  const number = async (name: string): Promise<number> =>
    Object.values((await sql<Record<string, number>>`${sql.raw(`pragma ${name}`)}`.execute(db)).rows[0])[0];
  await reserveRoom(db);
  expect((await number('freelist_count')) * (await number('page_size'))).toBeGreaterThanOrEqual(RESERVE_BYTES);
  expect(statSync(`${file}-wal`).size).toBeGreaterThanOrEqual(RESERVE_BYTES);
  expect((await sql`select name from sqlite_master where name = 'disk_reserve'`.execute(db)).rows).toEqual([]);
  const { size } = statSync(file);
  expect(size).toBeGreaterThanOrEqual(RESERVE_BYTES);
  await reserveRoom(db);
  expect(statSync(file).size).toBe(size);
  await db.destroy();
});
