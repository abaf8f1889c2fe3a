import fs from 'node:fs';
import path from 'node:path';
import { LibsqlDatabase } from 'capstan/internal';

/** Ensures that one service at a time uses a data directory. */
export interface DataDirLock {
  /** Publishes who holds the lock, for the error message of another service. */
  describe(holder: Holder): void;
  release(): void;
}

export interface Holder {
  pid: number;
  /** URL of the console. */
  url: string;
}

/**
 * Locks the data directory. Throws Error that names the current holder.
 * NOTE: this is an SQLite lock on a separate file. The kernel releases it when the process ends, so a stale lock cannot
 * remain and a reused process id cannot mislead. Replicas do not inherit it.
 */
export function lockDataDir(root: string): DataDirLock {
  const holderFile = path.join(root, 'service.json');
  const database = new LibsqlDatabase(path.join(root, 'service.lock'), { timeout: 0 });
  try {
    database.exec('begin exclusive');
  } catch (error) {
    database.close();
    if (!/locked|busy/i.test((error as Error).message)) throw error;
    const holder = readHolder(holderFile);
    const who = holder === undefined ? 'another service' : `another service (process ${holder.pid}, ${holder.url})`;
    throw Object.assign(new Error(`${root} is in use by ${who}: stop it, or choose another --data-dir`), {
      code: 'data_dir_locked',
    });
  }
  fs.rmSync(holderFile, { force: true });
  return {
    describe: (holder) => {
      try {
        fs.writeFileSync(holderFile, `${JSON.stringify(holder)}\n`, { mode: 0o600 });
      } catch {
        // For example, the disk is full. The lock works without a name.
      }
    },
    release: () => {
      fs.rmSync(holderFile, { force: true });
      database.close();
    },
  };
}

function readHolder(file: string): Holder | undefined {
  try {
    return JSON.parse(fs.readFileSync(file, 'utf8')) as Holder;
  } catch {
    // The holder has not written it yet.
    return undefined;
  }
}
