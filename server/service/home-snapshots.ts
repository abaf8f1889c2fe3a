import fs from 'node:fs';
import path from 'node:path';
import { resolveInside } from './data-roots';

/** The copies of home folders that versions start from: taken once, when a version is made, so that what happens to the original later changes no version. */
export class HomeSnapshots {
  readonly #folder: string;

  /** @param folder Made where missing. */
  constructor(folder: string) {
    this.#folder = folder;
  }

  folderOf(versionId: string): string {
    return path.join(this.#folder, versionId);
  }

  /** @throws Error when the source is gone, or lies no longer below a data root. */
  async takeInside(versionId: string, source: string, dataRoots: readonly string[]): Promise<void> {
    const folder = resolveInside(source, dataRoots);
    if (folder === undefined && !fs.existsSync(this.folderOf(versionId)))
      throw new Error('the folder is gone, or lies no longer below a data root');
    if (folder !== undefined) await this.take(versionId, folder);
  }

  /** Whole, or not at all: a copy that was cut off is made again. */
  async take(versionId: string, source: string): Promise<void> {
    const folder = this.folderOf(versionId);
    if (fs.existsSync(folder)) return;
    const unfinished = `${folder}.part`;
    await fs.promises.rm(unfinished, { recursive: true, force: true });
    await fs.promises.mkdir(this.#folder, { recursive: true, mode: 0o700 });
    try {
      await fs.promises.cp(source, unfinished, {
        recursive: true,
        mode: fs.constants.COPYFILE_FICLONE,
        verbatimSymlinks: true,
        filter: isCopied,
      });
      await fs.promises.rename(unfinished, folder);
    } catch (error) {
      // Half a copy only takes room.
      await fs.promises.rm(unfinished, { recursive: true, force: true }).catch(() => {});
      throw error;
    }
  }

  async remove(versionId: string): Promise<void> {
    for (const folder of [this.folderOf(versionId), `${this.folderOf(versionId)}.part`])
      await fs.promises.rm(folder, { recursive: true, force: true });
  }
}

/** Sockets, pipes and devices are nothing that a copy could hold. */
async function isCopied(file: string): Promise<boolean> {
  const stat = await fs.promises.lstat(file);
  return stat.isFile() || stat.isDirectory() || stat.isSymbolicLink();
}
