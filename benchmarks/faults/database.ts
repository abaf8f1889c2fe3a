/** The databases of a run, and how each of them fails. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { LibsqlDatabase } from '../../server/access/store/database';
import type { DatabaseLocation } from '../../server/access/store/location';

/** Begins a fault. Resolves with what ends it. */
export type Begin = () => Promise<() => Promise<void>>;

export interface TestedDatabase {
  name: string;
  location: DatabaseLocation;
  faults: { name: string; begin: Begin }[];
  /** Its log, if it has one. */
  logFile?: string;
}

/** A database file. Another program that holds its write lock stops all changes. */
export function fileDatabase(file: string): TestedDatabase {
  const lock: Begin = async () => {
    const database = new LibsqlDatabase(file, { timeout: 0 });
    for (;;) {
      try {
        database.exec('begin immediate');
        break;
      } catch {
        await sleep(5);
      }
    }
    return () => {
      database.exec('rollback');
      database.close();
      return Promise.resolve();
    };
  };
  return { name: 'libsql', location: { kind: 'file', file }, faults: [{ name: 'database locked', begin: lock }] };
}

/** A PostgreSQL server that `.ci/with-postgres` started on this machine. */
export async function postgresDatabase(url: string): Promise<TestedDatabase> {
  const client = new pg.Client(url);
  await client.connect();
  const { rows } = await client.query<{ data_directory: string }>('show data_directory');
  await client.end();
  const folder = rows[0].data_directory;
  return {
    name: 'postgres',
    location: { kind: 'postgres', url },
    logFile: join(dirname(folder), 'server.log'),
    faults: [
      {
        name: 'database stopped',
        begin: async () => {
          await control(folder, ['stop', '--mode', 'immediate']);
          return () => control(folder, ['start', ...optionsOf(folder)]);
        },
      },
      {
        name: 'database frozen',
        begin: () => {
          const pids = processesOf(folder);
          for (const pid of pids) signal(pid, 'SIGSTOP');
          return Promise.resolve(() => {
            for (const pid of pids) signal(pid, 'SIGCONT');
            return Promise.resolve();
          });
        },
      },
    ],
  };
}

async function control(folder: string, args: readonly string[]): Promise<void> {
  const program = execFileSync('bash', ['-c', 'ls -d /usr/lib/postgresql/*/bin/pg_ctl | sort -V | tail -1'], {
    encoding: 'utf8',
  }).trim();
  const user =
    process.geteuid!() === 0 ? ['setpriv', '--reuid', 'postgres', '--regid', 'postgres', '--clear-groups'] : [];
  const [command, ...rest] = [...user, program, '--pgdata', folder, '--wait', ...args];
  // The server would keep pipes open.
  const [code] = await once(spawn(command, rest, { stdio: 'ignore', cwd: folder }), 'exit');
  if (code !== 0) throw new Error(`pg_ctl ${args[0]}: expected exit code 0, got ${code}`);
}

/** The options that the server was started with, as arguments of `pg_ctl start`. */
function optionsOf(folder: string): string[] {
  const line = readFileSync(join(folder, 'postmaster.opts'), 'utf8').trim();
  const options = [...line.matchAll(/"([^"]*)"/g)].map(([, option]) => option);
  // `pg_ctl` adds the folder itself.
  const own = options.filter((option, i) => option !== '-D' && options[i - 1] !== '-D');
  return ['--log', join(dirname(folder), 'server.log'), '--options', own.join(' ')];
}

function processesOf(folder: string): number[] {
  const [first] = readFileSync(join(folder, 'postmaster.pid'), 'utf8').split('\n');
  const children = readFileSync(`/proc/${first}/task/${first}/children`, 'utf8').trim().split(' ').filter(Boolean);
  return [Number(first), ...children.map(Number)];
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // A connection has ended meanwhile.
  }
}
