/** A database file whose lock another program holds. */
import path from 'node:path';
import LibsqlDatabase from 'libsql';
import { openDatabase } from '../../../../server/access/store/database';
import { ACCESS } from '../../../../server/access/store/migrations';
import type { Db } from '../../../../server/access/store/schema';
import { makeFolder, removeFolders } from '../support';

let other: LibsqlDatabase.Database;
let db: Db;
beforeEach(async () => {
  const file = path.join(makeFolder(), 'keys.db');
  db = await openDatabase({ kind: 'file', file }, [ACCESS], { busyTimeoutMs: 0 });
  other = new LibsqlDatabase(file);
});
afterEach(async () => {
  other.close();
  await db.destroy();
  removeFolders();
});

const CHANGES: readonly [string, () => Promise<unknown>][] = [
  ['a transaction', () => db.transaction().execute((tx) => tx.deleteFrom('events').execute())],
  ['a change', () => db.deleteFrom('events').execute()],
  [
    'a change that returns rows',
    () => db.updateTable('auth_state').set({ audit_seq: 0 }).returning('audit_seq').execute(),
  ],
];

test.each(CHANGES)('after %s that waited in vain for the lock, changes succeed', async (_name, change) => {
  other.exec('begin immediate');
  await expect(change()).rejects.toThrow('database is locked');
  await expect(change()).rejects.toThrow('database is locked');
  other.exec('rollback');
  await change();
  await db.transaction().execute((tx) => tx.deleteFrom('events').execute());
});

test('a change that fails leaves no transaction open', async () => {
  await expect(db.deleteFrom('nothing' as 'events').execute()).rejects.toThrow('no such table');
  await expect(db.insertInto('auth_state').defaultValues().execute()).rejects.toThrow('constraint failed');
  other.exec('begin immediate');
  other.exec('rollback');
});

test('while another program holds the lock, reads succeed', async () => {
  other.exec('begin immediate');
  expect(await db.selectFrom('auth_state').select('id').execute()).toHaveLength(1);
  other.exec('rollback');
});
