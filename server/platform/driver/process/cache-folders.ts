import { lchown, lstat, mkdir } from 'node:fs/promises';
import { removeFolder } from './remove-folder';

/**
 * What a folder may hold before the supervisor stops the replica. The runtime keeps its limit, but each process that
 * shares the folder may exceed it by a sixteenth.
 */
export function hardLimit(maxMb: number): number {
  return (2 * maxMb + 1_024) * 2 ** 20;
}

/** The folders that outlive replicas. */
export class CacheFolders {
  readonly #preparing = new Map<string, Promise<void>>();

  /**
   * Creates a folder for a user if it is missing. Empties one of another user: nobody may give away what is in it.
   * Replicas that share a folder have one user, so none of them runs then. @throws Error if it cannot be created
   */
  prepare(folder: string, owner: number): Promise<void> {
    const before = this.#preparing.get(folder) ?? Promise.resolve();
    const preparing = before
      .catch(() => {})
      .then(() => prepareFolder(folder, owner))
      .finally(() => {
        if (this.#preparing.get(folder) === preparing) this.#preparing.delete(folder);
      });
    this.#preparing.set(folder, preparing);
    return preparing;
  }
}

/** Returns the user that a folder belongs to, or undefined if it is missing. */
export async function ownerOf(folder: string): Promise<number | undefined> {
  return (await lstat(folder).catch(() => undefined))?.uid;
}

async function prepareFolder(folder: string, owner: number): Promise<void> {
  const found = await lstat(folder).catch(() => undefined);
  if (found?.isDirectory() === true && found.uid === owner) return;
  if (found !== undefined) await removeFolder(folder);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  if (owner !== process.geteuid!()) await lchown(folder, owner, owner);
}
