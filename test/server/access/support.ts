import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import pg from 'pg';
import type { DatabaseLocation } from '../../../server/access/store/location';
import { DEFAULT_OWNER, type OwnerName } from '../../../server/access/owners';

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

export interface Backend {
  name: string;
  isHere: boolean;
  /** Creates an empty database. */
  make: () => Promise<DatabaseLocation>;
  dispose: () => Promise<void>;
}

/** SQLite, and PostgreSQL if available. Store tests run over both. */
export const BACKENDS: readonly Backend[] = [
  {
    name: 'libsql',
    isHere: true,
    make: () => Promise.resolve({ kind: 'file', file: path.join(makeDatabaseFolder(), 'keys.db') }),
    dispose: () => Promise.resolve(removeFolders()),
  },
  postgresBackend(),
];

/** Runs a suite over each of {@link BACKENDS}. `make` creates empty databases, which are removed afterwards. */
export function overBackends(suite: (make: Backend['make']) => void): void {
  for (const { name, isHere, make, dispose } of BACKENDS) {
    (isHere ? describe : describe.skip)(`over ${name}`, () => {
      suite(make);
      afterAll(dispose);
    });
  }
}

function postgresBackend(): Backend {
  const names: string[] = [];
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
  return {
    name: 'PostgreSQL',
    isHere: POSTGRES_URL !== '',
    make: async () => {
      const name = `capstan_test_${process.pid}_${Date.now()}_${names.length}`;
      await admin([`create schema ${name}`]);
      names.push(name);
      const url = new URL(POSTGRES_URL);
      url.searchParams.set('options', `-c search_path=${name}`);
      return { kind: 'postgres', url: url.href };
    },
    dispose: async () => {
      if (names.length > 0) await admin(names.splice(0).map((name) => `drop schema ${name} cascade`));
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
