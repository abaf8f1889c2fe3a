/** Space that the SQLite database reserves for a full disk. */
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sql } from 'kysely';
import { openDatabase } from '../../../../server/access/store/database';
import { reserveSpace } from '../../../../server/access/store/reserve';

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
  await reserveSpace(db);
  expect((await number('freelist_count')) * (await number('page_size'))).toBeGreaterThanOrEqual(RESERVE_BYTES);
  expect(statSync(`${file}-wal`).size).toBeGreaterThanOrEqual(RESERVE_BYTES);
  expect((await sql`select name from sqlite_master where name = 'disk_reserve'`.execute(db)).rows).toEqual([]);
  const { size } = statSync(file);
  expect(size).toBeGreaterThanOrEqual(RESERVE_BYTES);
  await reserveSpace(db);
  expect(statSync(file).size).toBe(size);
  await db.destroy();
});

test('a transaction that fills the disk reports that, and the next one works', async () => {
  const db = await openDatabase({ kind: 'file', file: join(folder, 'keys.db') });
  await sql`create table filler (text text)`.execute(db);
  const { rows } = await sql<{ page_count: number }>`pragma page_count`.execute(db);
  const limit = async (pages: number) => sql.raw(`pragma max_page_count = ${pages}`).execute(db);
  const fill = () =>
    db.transaction().execute((tx) => sql`insert into filler values (${'x'.repeat(1_000_000)})`.execute(tx));
  await limit(rows[0].page_count + 8);
  await expect(fill()).rejects.toThrow('database or disk is full');
  await limit(1_000_000);
  await fill();
  await db.destroy();
});
