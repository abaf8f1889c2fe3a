import { lchown, lstat, mkdir, realpath } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { ReplicaSpec } from '../driver';
import { removeFolder } from './remove-folder';

/**
 * Returns the bytes that a folder may hold before the supervisors stop its replicas. The runtime keeps its limit, but
 * each process that shares the folder may exceed it by a sixteenth. A process with a smaller limit than those before it
 * removes what is too much after it has loaded its model.
 */
export function hardLimit({ maxMb, sharedMb, maxReplicas }: NonNullable<ReplicaSpec['cache']>): number {
  return (Math.max(2, 1.5 + maxReplicas / 16) * Math.max(maxMb, sharedMb) + 1_024) * 2 ** 20;
}

/** The folders that outlive replicas. */
export class CacheFolders {
  readonly #preparing = new Map<string, Promise<string>>();

  /**
   * Creates a folder for a user if it is missing. Empties one of another user. Replicas that share a folder have one
   * user, so none of them runs then. Returns the folder.
   * @throws Error if it cannot be created
   */
  prepare(folder: string, owner: number): Promise<string> {
    const before = this.#preparing.get(folder) ?? Promise.resolve(folder);
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

/** Returns the path of a folder without links. The folder may be missing: its parent is created. */
export async function locateFolder(folder: string): Promise<string> {
  await mkdir(dirname(folder), { recursive: true, mode: 0o700 });
  return join(await realpath(dirname(folder)), basename(folder));
}

/** Returns the user that a folder belongs to, or undefined if it is missing. */
export async function ownerOf(folder: string): Promise<number | undefined> {
  return (await lstat(folder).catch(() => undefined))?.uid;
}

async function prepareFolder(folder: string, owner: number): Promise<string> {
  const found = await lstat(folder).catch(() => undefined);
  if (found?.isDirectory() === true && found.uid === owner) return folder;
  if (found !== undefined) await removeFolder(folder);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  if (owner !== process.geteuid!()) await lchown(folder, owner, owner);
  return folder;
}
