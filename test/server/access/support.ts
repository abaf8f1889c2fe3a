import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import pg from 'pg';
import type { DatabaseLocation } from '../../../server/access/store/location';
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
  dispose: () => Promise<void>;
}

/** SQLite, and PostgreSQL if available. Store tests run over both. */
export const BACKENDS: readonly Backend[] = [libsqlBackend(), postgresBackend()];

/** Runs a suite over each of {@link BACKENDS}. `make` creates empty databases, which are removed afterwards. */
export function overBackends(suite: (make: Backend['make']) => void): void {
  for (const { name, isHere, make, dispose } of BACKENDS) {
    (isHere ? describe : describe.skip)(`over ${name}`, () => {
      suite(make);
      afterAll(async () => {
        await dispose();
        removeFolders();
      });
    });
  }
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
    dispose: () => Promise.resolve(removeFolders()),
  };
}

function postgresBackend(): Backend {
  const schemas: string[] = [];
  const databases: string[] = [];
  const templates = new Map<Fill, Promise<string>>();
  const admin = async (statements: readonly string[]) => {
    const client = new pg.Client({ connectionString: POSTGRES_URL });
    await client.connect();
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
  const makeDatabase = async (options = ''): Promise<{ name: string; location: DatabaseLocation }> => {
    const name = newName();
    databases.push(name);
    await admin([`create database ${name} ${options}`]);
    const url = new URL(POSTGRES_URL);
    url.pathname = name;
    return { name, location: { kind: 'postgres', url: url.href } };
  };
  const makeTemplate = async (fill: Fill): Promise<string> => {
    const { name, location } = await makeDatabase();
    await fill(location);
    return name;
  };
  return {
    name: 'PostgreSQL',
    isHere: POSTGRES_URL !== '',
    make: async (fill) => {
      if (fill === undefined) return makeSchema();
      if (!templates.has(fill)) templates.set(fill, makeTemplate(fill));
      // Copies files, which is several times as fast as the default of PostgreSQL 15 and newer.
      return (await makeDatabase(`template ${await templates.get(fill)!} strategy file_copy`)).location;
    },
    dispose: async () => {
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
