import fs from 'node:fs';
import path from 'node:path';
import { copyFolder, type CopyOptions } from './copy-folder';
import { sourceFolder } from './data-roots';

/**
 * Copies of home folders, one for each version. The copy is made when the version is created, so later edits of the
 * source do not change the version.
 */
export class HomeSnapshots {
  readonly #folder: string;
  readonly #options: CopyOptions;

  /** @param folder Created if missing. */
  constructor(folder: string, options: CopyOptions = {}) {
    this.#folder = folder;
    this.#options = options;
  }

  folderOf(versionId: string): string {
    return path.join(this.#folder, versionId);
  }

  /** Copies `source` if there is no copy yet. @throws Error if `source` is not a folder below a data root. */
  async takeInside(versionId: string, source: string, dataRoots: readonly string[]): Promise<void> {
    const folder = sourceFolder(source, dataRoots);
    if (folder === undefined && !fs.existsSync(this.folderOf(versionId)))
      throw new Error('expected an existing folder below a data root: it was deleted, moved or replaced by a link');
    if (folder !== undefined) await this.take(versionId, folder);
  }

  /** Copies the real path `source` atomically. An interrupted copy starts again from the beginning. */
  async take(versionId: string, source: string): Promise<void> {
    const folder = this.folderOf(versionId);
    if (fs.existsSync(folder)) return;
    const unfinished = `${folder}.part`;
    await fs.promises.rm(unfinished, { recursive: true, force: true });
    await fs.promises.mkdir(this.#folder, { recursive: true, mode: 0o700 });
    try {
      await copyFolder(source, unfinished, this.#options);
      await fs.promises.rename(unfinished, folder);
    } catch (error) {
      // A partial copy only takes disk space.
      await fs.promises.rm(unfinished, { recursive: true, force: true }).catch(() => {});
      throw error;
    }
  }

  async remove(versionId: string): Promise<void> {
    for (const folder of [this.folderOf(versionId), `${this.folderOf(versionId)}.part`])
      await fs.promises.rm(folder, { recursive: true, force: true });
  }
}
