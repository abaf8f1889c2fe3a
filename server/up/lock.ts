import fs from 'node:fs';
import path from 'node:path';
import Database from 'libsql';

/** One running service per data directory. */
export interface DataDirLock {
  /** Lets others see whom they met. */
  describe(holder: Holder): void;
  release(): void;
}

export interface Holder {
  pid: number;
  /** Of the console. */
  url: string;
}

/**
 * NOTE: the lock is SQLite's on a file of its own, so the kernel ends it with the process, however that ends: there is no stale one to
 * clean up, and a process number that was given anew misleads nobody. Replicas do not inherit it.
 * @throws Error that says who holds it.
 */
export function lockDataDir(root: string): DataDirLock {
  const holderFile = path.join(root, 'service.json');
  const database = new Database(path.join(root, 'service.lock'), { timeout: 0 });
  try {
    database.exec('begin exclusive');
  } catch (error) {
    database.close();
    if (!/locked|busy/i.test((error as Error).message)) throw error;
    const holder = readHolder(holderFile);
    const who = holder === undefined ? 'another service' : `another service (process ${holder.pid}, ${holder.url})`;
    throw Object.assign(new Error(`${who} runs on ${root}: stop it, or give this one a --data-dir of its own`), {
      code: 'data_dir_locked',
    });
  }
  fs.rmSync(holderFile, { force: true });
  return {
    describe: (holder) => fs.writeFileSync(holderFile, `${JSON.stringify(holder)}\n`, { mode: 0o600 }),
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
    // It is about to write it.
    return undefined;
  }
}
