import { type FileHandle, mkdir, open, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { CapstanError } from '../errors';
import { ifMissing } from './cache';
import { type HubSystem, throwIfAborted } from './system';

/** Pause between two attempts to take a lock. */
const POLL_MS = 500;
/** As huggingface_hub creates them, so that users of one group can share a cache. */
const LOCK_MODE = 0o664;

/**
 * Runs work while this process has the lock of a file. Waits for another process. The system ends the lock when its
 * process ends, so a lock is never left behind. huggingface_hub takes the same locks.
 */
export async function withFileLock<T>(
  path: string,
  system: Pick<HubSystem, 'tryLock' | 'sleep'>,
  signal: AbortSignal,
  work: () => Promise<T>,
): Promise<T> {
  const file = await acquire(path, system, signal);
  try {
    return await work();
  } finally {
    await file.close();
  }
}

async function acquire(
  path: string,
  { tryLock, sleep }: Pick<HubSystem, 'tryLock' | 'sleep'>,
  signal: AbortSignal,
): Promise<FileHandle> {
  for (;;) {
    throwIfAborted(signal, 'download');
    // A process that deletes the model deletes the folder too.
    await mkdir(dirname(path), { recursive: true });
    const file = await lockOnce(path, tryLock).catch(ifDeleted);
    if (file !== undefined) return file;
    await sleep(POLL_MS, signal).catch(() => throwIfAborted(signal, 'download'));
  }
}

function ifDeleted(error: unknown): undefined {
  if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
}

/** Returns the open file if its lock was free. */
export async function lockOnce(path: string, tryLock: HubSystem['tryLock']): Promise<FileHandle | undefined> {
  const file = await open(path, 'a', LOCK_MODE);
  try {
    // A former owner may have deleted the file, so that another process locks a new one.
    if (lockOf(file, path, tryLock) && (await isCurrent(file, path))) return file;
  } catch (error) {
    await file.close();
    throw error;
  }
  await file.close();
  return undefined;
}

/** @throws CapstanError `io_error` for a file system that has no locks. */
function lockOf({ fd }: FileHandle, path: string, tryLock: HubSystem['tryLock']): boolean {
  try {
    return tryLock(fd);
  } catch (cause) {
    throw new CapstanError(
      'io_error',
      `cannot lock ${path}: ${(cause as Error).message}. Set HF_HUB_CACHE to a folder on a local disk`,
      { cause },
    );
  }
}

async function isCurrent(file: FileHandle, path: string): Promise<boolean> {
  const [own, named] = await Promise.all([file.stat(), stat(path).catch(ifMissing(undefined))]);
  return named !== undefined && own.ino === named.ino && own.dev === named.dev;
}
