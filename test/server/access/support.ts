import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import pg from 'pg';
import type { DatabaseLocation } from '../../../server/access/store/location';
import { numCases } from '../../fakes/sample';
import { DEFAULT_OWNER, type OwnerName } from '../../../server/access/owner-names';

export const ROOT = path.join(__dirname, '..', '..', '..');
export const REGISTER = path.join(ROOT, 'test', 'oracle', 'register-ts.cjs');
export const ACCESS_DIR = path.join(ROOT, 'server', 'access');

export const ALICE: OwnerName = DEFAULT_OWNER;
export const BOB: OwnerName = { type: 'user', name: 'bob' };
export const LAB: OwnerName = { type: 'org', name: 'lab' };

const folders: string[] = [];

export function makeFolder(): string {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'capstan-access-'));
  folders.push(folder);
  return folder;
}

const DATABASE_ROOT = process.env.CAPSTAN_TEST_DATABASES ?? os.tmpdir();

/** A folder for databases that {@link removeFolders} does not delete. */
export function makeUnlistedFolder(): string {
  return fs.mkdtempSync(path.join(DATABASE_ROOT, 'capstan-database-'));
}

function makeDatabaseFolder(): string {
  const folder = makeUnlistedFolder();
  folders.push(folder);
  return folder;
}

export function removeFolders(): void {
  for (const folder of folders.splice(0)) fs.rmSync(folder, { recursive: true, force: true });
}

/** PostgreSQL for tests. Without it, tests that need it are skipped. */
export const POSTGRES_URL = process.env.TEST_DATABASE_URL ?? process.env.DATABASE_URL ?? '';

/** Makes what all copies of a database begin with. */
export type Fill = (location: DatabaseLocation) => Promise<unknown>;

export interface Backend {
  name: string;
  isHere: boolean;
  /**
   * Creates an empty database, or a copy of one that `fill` has filled. Each test file calls `fill` once, because
   * migrations and password hashing would take most of the time of a test.
   */
  make: (fill?: Fill) => Promise<DatabaseLocation>;
  /** Allows later tests to get the databases of this one, once it has closed them. */
  endTest: () => Promise<void>;
  dispose: () => Promise<void>;
}

/** SQLite, and PostgreSQL if available. Store tests run over both. */
export const BACKENDS: readonly Backend[] = [libsqlBackend(), postgresBackend()];

/** Runs a suite over each of {@link BACKENDS}. `make` creates empty databases, which are removed afterwards. */
export function overBackends(suite: (make: Backend['make']) => void, backends = BACKENDS): void {
  for (const { name, isHere, make, endTest, dispose } of backends) {
    (isHere ? describe : describe.skip)(`over ${name}`, () => {
      suite(make);
      afterEach(endTest);
      afterAll(async () => {
        await dispose();
        removeFolders();
      });
    });
  }
}

/**
 * Runs a suite over SQLite, and with CAPSTAN_TEST_ALL over PostgreSQL too. For suites whose statements all run over
 * PostgreSQL in other suites, and which check nothing that depends on the database.
 */
export function overSampleOfBackends(suite: (make: Backend['make']) => void): void {
  overBackends(suite, BACKENDS.slice(0, numCases(2, 1)));
}

function libsqlBackend(): Backend {
  const templates = new Map<Fill, Promise<string>>();
  const makeTemplate = async (fill: Fill): Promise<string> => {
    const file = path.join(makeUnlistedFolder(), 'keys.db');
    await fill({ kind: 'file', file });
    return file;
  };
  return {
    name: 'libsql',
    isHere: true,
    make: async (fill) => {
      const file = path.join(makeDatabaseFolder(), 'keys.db');
      if (fill === undefined) return { kind: 'file', file };
      if (!templates.has(fill)) templates.set(fill, makeTemplate(fill));
      const template = await templates.get(fill)!;
      for (const suffix of ['', '-wal'])
        if (fs.existsSync(template + suffix)) fs.copyFileSync(template + suffix, file + suffix);
      return { kind: 'file', file };
    },
    endTest: () => Promise.resolve(),
    dispose: () => Promise.resolve(removeFolders()),
  };
}

/** A database that `fill` has filled, and its copies. */
interface Template {
  name: string;
  /** Restores the rows of the template. */
  reset: string;
  copies: { client: pg.Client; name: string; isUsed: boolean }[];
}

async function connect(database?: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: postgresUrl(database) });
  await client.connect();
  return client;
}

function postgresUrl(database?: string): string {
  const url = new URL(POSTGRES_URL);
  if (database !== undefined) url.pathname = database;
  return url.href;
}

/** Keeps a second copy of all rows in the database. Returns the statements that restore them. */
async function keepRows(database: string): Promise<string> {
  const client = await connect(database);
  const { rows } = await client.query<{ name: string }>(
    "select table_name as name from information_schema.tables where table_schema = 'public'",
  );
  const names = rows.map(({ name }) => name);
  await client.query(
    ['create schema kept', ...names.map((name) => `create table kept.${name} as table ${name}`)].join(';'),
  );
  await client.end();
  const restore = names.map((name) => `delete from ${name}; insert into ${name} select * from kept.${name}`);
  // Neither triggers nor foreign keys apply to a replica.
  return ['set session_replication_role = replica', ...restore].join(';');
}

async function hasOtherConnections(client: pg.Client): Promise<boolean> {
  const { rowCount } = await client.query(
    'select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()',
  );
  return rowCount! > 0;
}

/** Tests use databases again, because to create one and to drop it takes as long as most tests. */
function postgresBackend(): Backend {
  const schemas: string[] = [];
  const databases: string[] = [];
  const templates = new Map<Fill, Promise<Template>>();
  const allCopies = async () => (await Promise.all(templates.values())).flatMap(({ copies }) => copies);
  const admin = async (statements: readonly string[]) => {
    const client = await connect();
    try {
      // One by one, because the server limits the locks of one transaction.
      for (const statement of statements) await client.query(statement);
    } finally {
      await client.end();
    }
  };
  const newName = (): string => `capstan_test_${process.pid}_${Date.now()}_${schemas.length + databases.length}`;
  const makeSchema = async (): Promise<DatabaseLocation> => {
    const name = newName();
    schemas.push(name);
    await admin([`create schema ${name}`]);
    const url = new URL(POSTGRES_URL);
    url.searchParams.set('options', `-c search_path=${name}`);
    return { kind: 'postgres', url: url.href };
  };
  const makeDatabase = async (options = ''): Promise<string> => {
    const name = newName();
    databases.push(name);
    await admin([`create database ${name} ${options}`]);
    return name;
  };
  const makeTemplate = async (fill: Fill): Promise<Template> => {
    const name = await makeDatabase();
    await fill({ kind: 'postgres', url: postgresUrl(name) });
    return { name, reset: await keepRows(name), copies: [] };
  };
  const makeCopy = async ({ name, reset, copies }: Template): Promise<string> => {
    for (const copy of copies) {
      if (copy.isUsed || (await hasOtherConnections(copy.client))) continue;
      copy.isUsed = true;
      await copy.client.query(reset);
      return copy.name;
    }
    // Copies files, which is several times as fast as the default of PostgreSQL 15 and newer.
    const made = await makeDatabase(`template ${name} strategy file_copy`);
    copies.push({ client: await connect(made), name: made, isUsed: true });
    return made;
  };
  return {
    name: 'PostgreSQL',
    isHere: POSTGRES_URL !== '',
    make: async (fill) => {
      if (fill === undefined) return makeSchema();
      if (!templates.has(fill)) templates.set(fill, makeTemplate(fill));
      return { kind: 'postgres', url: postgresUrl(await makeCopy(await templates.get(fill)!)) };
    },
    endTest: async () => {
      for (const copy of await allCopies()) copy.isUsed = false;
    },
    dispose: async () => {
      for (const { client } of await allCopies()) await client.end();
      templates.clear();
      const dropped = [
        ...schemas.splice(0).map((name) => `drop schema ${name} cascade`),
        ...databases.splice(0).map((name) => `drop database ${name} with (force)`),
      ];
      if (dropped.length > 0) await admin(dropped);
    },
  };
}

/** Runs TypeScript in a separate process. */
export function runScript(
  script: string,
  args: readonly string[] = [],
): { status: number | null; stdout: string; stderr: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, ['-r', REGISTER, '-e', script, '--', ...args], {
    encoding: 'utf8',
    timeout: 110_000,
  });
  return { status, stdout, stderr };
}

export function bearer(key: string): { headers: [string, string][]; remoteAddress: string } {
  return {
    headers: [
      ['host', 'x'],
      ['authorization', `Bearer ${key}`],
    ],
    remoteAddress: '192.0.2.7',
  };
}

/** A clock that only `advance` moves. */
export function fakeClock(startMs = 1_800_000_000_000): { now: () => number; advance: (ms: number) => void } {
  let nowMs = startMs;
  return {
    now: () => nowMs,
    advance: (ms) => {
      nowMs += ms;
    },
  };
}
