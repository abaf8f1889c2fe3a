import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { removeFolder } from '../driver/process/remove-folder';

/** The prefix caches of deployments on this machine: a folder for each deployment, which its replicas share. */
export class PrefixCaches {
  readonly #folder: string;

  /** @param folder Created with the first cache. */
  constructor(folder: string) {
    this.#folder = folder;
  }

  folderOf(deploymentId: string): string {
    return path.join(this.#folder, deploymentId);
  }

  async remove(deploymentId: string): Promise<void> {
    const folder = this.folderOf(deploymentId);
    // A replica that starts meanwhile finds the whole folder, or none.
    const removed = `${folder}.${randomUUID()}`;
    try {
      await fs.promises.rename(folder, removed);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw error;
    }
    await removeFolder(removed);
  }

  /** Removes the folders of all other deployments, such as one whose deletion was interrupted. */
  async keepOnly(deploymentIds: readonly string[]): Promise<void> {
    const kept = new Set(deploymentIds);
    const names = await fs.promises.readdir(this.#folder).catch(() => []);
    for (const name of names)
      if (name.startsWith('dep_') && !kept.has(name)) await removeFolder(path.join(this.#folder, name));
  }
}
