import fs from 'node:fs/promises';
import path from 'node:path';
import { PullError } from './pull-error';

/** Replicas of other users open a folder by its name. Only the service can list the names. */
const PARENT_MODE = 0o711;
const FOLDER_MODE = 0o755;
const FILE_MODE = 0o644;
/** Beside the folder of a source: the download, the new model before it replaces the old one, and the old one. */
const SUFFIXES = ['.part', '.new', '.old'] as const;

/** Returns the folder of the unfinished download of a source. */
export function downloadFolder(folder: string): string {
  return `${folder}.part`;
}

/**
 * Creates the folder that holds the models from the hub, and the one of a download.
 * @throws PullError if the folder was replaced by a link
 */
export async function prepareFolders(folder: string): Promise<void> {
  const parent = path.dirname(folder);
  await fs.mkdir(parent, { recursive: true, mode: PARENT_MODE });
  if ((await fs.realpath(parent)) !== parent)
    throw new PullError(
      'io_error',
      `expected the folder ${path.basename(parent)} in the data root, got a link: remove the link ${path.basename(parent)} in the data root`,
    );
  // The umask of the service may forbid it.
  await fs.chmod(parent, PARENT_MODE);
  await fs.mkdir(downloadFolder(folder), { recursive: true, mode: 0o700 });
}

/**
 * Makes files of a snapshot the content of a folder. What was there before is replaced at once. The download stays.
 * @param snapshot A snapshot of huggingface_hub: links to contents in the same cache.
 * @param names The files of the model. A snapshot may have those of another quantization too.
 */
export async function installModel(
  snapshot: string,
  names: readonly string[],
  folder: string,
  format: 'safetensors' | 'gguf',
): Promise<void> {
  const [fresh, old] = [`${folder}.new`, `${folder}.old`];
  await removeAll([fresh, old]);
  await fs.mkdir(fresh);
  for (const name of names) {
    // Of a model in GGUF, only its files are needed. They must be at the top of the folder.
    if (format === 'gguf' && !/\.gguf$/i.test(name)) continue;
    const target = path.join(fresh, format === 'gguf' ? path.basename(name) : name);
    await fs.mkdir(path.dirname(target), { recursive: true });
    await shareFile(await fs.realpath(path.join(snapshot, name)), target);
  }
  await makeReadable(fresh);
  await fs.rename(folder, old).catch(ifMissing);
  await fs.rename(fresh, folder);
  await removeAll([old]);
}

/** Returns the bytes of a download: of complete files and of parts of files. */
export async function sizeOfDownload(folder: string): Promise<number> {
  const root = downloadFolder(folder);
  const infos = (await listFiles(root, '')).map((name) => fs.lstat(path.join(root, name)));
  // A snapshot has links to the files.
  return (await Promise.all(infos)).reduce((sum, info) => sum + (info.isFile() ? info.size : 0), 0);
}

/** Deletes the download of a source. */
export function removeDownload(folder: string): Promise<void> {
  return removeAll([downloadFolder(folder)]);
}

/** Deletes the model of a source and its download. */
export function removeModelFolder(folder: string): Promise<void> {
  return removeAll([folder, ...SUFFIXES.map((suffix) => folder + suffix)]);
}

/** Deletes what no source needs: folders of deleted sources, and what an interrupted installation has left. */
export async function removeLeftovers(
  root: string,
  sources: readonly { id: string; isDone: boolean }[],
): Promise<void> {
  const kept = new Set(sources.flatMap(({ id, isDone }) => (isDone ? [id] : [id, `${id}.part`])));
  // An installation that was interrupted between its two steps has moved the old model away.
  for (const { id } of sources) {
    const folder = path.join(root, id);
    if (!(await exists(folder))) await fs.rename(`${folder}.old`, folder).catch(ifMissing);
  }
  const names = await fs.readdir(root).catch(() => []);
  await removeAll(names.filter((name) => !kept.has(name)).map((name) => path.join(root, name)));
}

/** Links the content, so that it is on the disk once. Copies it on file systems without hard links. */
async function shareFile(content: string, target: string): Promise<void> {
  await fs.link(content, target).catch((error: NodeJS.ErrnoException) => {
    if (!['EPERM', 'ENOTSUP', 'EXDEV', 'ENOSYS', 'EMLINK'].includes(error.code ?? '')) throw error;
    return fs.copyFile(content, target);
  });
}

async function makeReadable(folder: string): Promise<void> {
  await fs.chmod(folder, FOLDER_MODE);
  for (const entry of await fs.readdir(folder, { withFileTypes: true })) {
    const below = path.join(folder, entry.name);
    if (entry.isDirectory()) await makeReadable(below);
    else await fs.chmod(below, FILE_MODE);
  }
}

async function listFiles(root: string, folder: string): Promise<string[]> {
  const entries = await fs.readdir(path.join(root, folder), { withFileTypes: true });
  const found = entries.map((entry) => {
    const below = path.join(folder, entry.name);
    return entry.isDirectory() ? listFiles(root, below) : Promise.resolve([below]);
  });
  return (await Promise.all(found)).flat();
}

async function removeAll(paths: readonly string[]): Promise<void> {
  for (const each of paths) await fs.rm(each, { recursive: true, force: true });
}

function exists(file: string): Promise<boolean> {
  return fs.access(file).then(
    () => true,
    () => false,
  );
}

function ifMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
