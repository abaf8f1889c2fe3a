import fs from 'node:fs';
import path from 'node:path';
import LibsqlDatabase from '#libsql';
import { Kysely, PostgresDialect, type SqliteDatabase, SqliteDialect } from 'kysely';
import pg from 'pg';
import { makeFolder } from '../../../ts/make-folder';
import { DISK_FULL } from '../../base/disk-full';
import { AccessError } from '../errors';
import { describeLocation, type DatabaseLocation } from './location';
import { ACCESS, type Component, hasTable, migrate } from './migrations';
import type { AccessTables, Db } from './schema';

export { LibsqlDatabase };

const BUSY_TIMEOUT_MS = 5_000;
const PG_CONNECT_TIMEOUT_MS = 5_000;
const PG_STATEMENT_TIMEOUT_MS = 10_000;
const INT8_OID = 20;

/** Opens the database, and creates or migrates it if needed. The caller closes it with `destroy()`. */
export async function openDatabase(
  location: DatabaseLocation,
  components: readonly Component[] = [ACCESS],
  { busyTimeoutMs = BUSY_TIMEOUT_MS }: { busyTimeoutMs?: number } = {},
): Promise<Db> {
  let db: Db | undefined;
  try {
    db = connectDatabase(location, busyTimeoutMs);
    await migrate(db, components);
    return db;
  } catch (error) {
    await db?.destroy().catch(() => {});
    if (error instanceof AccessError) throw error;
    throw cannotOpen(location, error);
  }
}

/** Opens the database without migrating it. The caller closes it with `destroy()`. */
export function connectDatabase(location: DatabaseLocation, busyTimeoutMs = BUSY_TIMEOUT_MS): Db {
  return new Kysely<AccessTables>({
    dialect: location.kind === 'file' ? fileDialect(location.file, busyTimeoutMs) : postgresDialect(location.url),
  });
}

/** Returns whether the file exists, or whether the PostgreSQL database has our tables. Creates nothing. */
export async function databaseExists(location: DatabaseLocation): Promise<boolean> {
  if (location.kind === 'file') return fs.existsSync(location.file);
  const db = connectDatabase(location);
  try {
    return await hasTable(db, 'schema_versions');
  } catch (error) {
    throw cannotOpen(location, error);
  } finally {
    await db.destroy();
  }
}

export function cannotOpen(location: DatabaseLocation, error: unknown): AccessError {
  const { message } = error as Error;
  const advice = adviceFor(location, error as NodeJS.ErrnoException);
  return new AccessError(
    'database_error',
    `cannot open the database ${describeLocation(location)}: ${message}${advice}`,
    { cause: error },
  );
}

function adviceFor({ kind }: DatabaseLocation, { code = '', message }: NodeJS.ErrnoException): string {
  if (DISK_FULL.test(message)) return '. Free space, or choose a folder on another disk';
  return kind === 'postgres' && /^E[A-Z_]+$/.test(code) ? '. Check its address, and that PostgreSQL runs there' : '';
}

/** Uses a single connection, so that writers of this process never wait for each other inside SQLite. */
function fileDialect(file: string, busyTimeoutMs: number): SqliteDialect {
  if (!fs.existsSync(file)) {
    makeFolder(path.dirname(file), 0o700);
    // SQLite would create it with wider permissions. The -wal and -shm files inherit the mode.
    fs.closeSync(fs.openSync(file, 'a', 0o600));
  }
  const database = new LibsqlDatabase(file, { timeout: busyTimeoutMs });
  database.pragma('journal_mode = WAL');
  database.pragma('synchronous = FULL');
  database.pragma('foreign_keys = ON');
  return new SqliteDialect({ database: immediate(database) });
}

/** Statements that neither change data nor wait for the write lock. */
const UNLOCKED = /^\s*(?:select|pragma|commit|rollback)\b/i;

const NO_STATEMENT: ReturnType<SqliteDatabase['prepare']> = {
  reader: false,
  all: () => [],
  run: () => ({ changes: 0, lastInsertRowid: 0 }),
  iterate: () => [][Symbol.iterator](),
};

/**
 * Makes every transaction take the write lock at its start. Otherwise a transaction that reads and then writes fails
 * at once if another process wrote in between. A change outside a transaction gets its own.
 * NOTE: libsql does not reset a statement that waited for the lock in vain. Until it is collected as garbage, no
 * transaction of the connection can commit. Running it again resets it, so one statement takes the lock every time.
 */
function immediate(database: LibsqlDatabase.Database): SqliteDatabase {
  const begin = database.prepare('begin immediate');
  const inTransaction = <T>(change: () => T): T => {
    begin.run([]);
    try {
      const result = change();
      database.exec('commit');
      return result;
    } catch (error) {
      if (database.inTransaction) database.exec('rollback');
      throw error;
    }
  };
  return {
    prepare: (text) => {
      if (text === 'begin') return begin;
      // SQLite itself rolls back when the disk is full. A second rollback would hide that error.
      if (text === 'rollback' && !database.inTransaction) return NO_STATEMENT;
      const statement = database.prepare(text);
      if (database.inTransaction || UNLOCKED.test(text)) return statement;
      return {
        reader: statement.reader,
        all: (parameters) => inTransaction(() => statement.all(parameters)),
        run: (parameters) => inTransaction(() => statement.run(parameters)),
        iterate: (parameters) => statement.iterate(parameters),
      };
    },
    close: () => {
      database.close();
    },
  };
}

function postgresDialect(connectionString: string): PostgresDialect {
  const pool = new pg.Pool({
    connectionString,
    max: 4,
    connectionTimeoutMillis: PG_CONNECT_TIMEOUT_MS,
    statement_timeout: PG_STATEMENT_TIMEOUT_MS,
    query_timeout: PG_STATEMENT_TIMEOUT_MS + 1_000,
    application_name: 'capstan',
    // Parse bigint as a number: times and revisions are below 2^53.
    types: {
      getTypeParser: (oid: number, format: unknown) =>
        (oid === INT8_OID ? Number : pg.types.getTypeParser(oid, format as 'text')) as never,
    },
  });
  // The pool replaces a broken idle connection at the next query.
  pool.on('error', () => {});
  // A connection that breaks inside a transaction fails the next query. Without a listener it would end the process.
  pool.on('connect', (client) => client.on('error', () => {}));
  return new PostgresDialect({ pool });
}
