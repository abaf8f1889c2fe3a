import { createHash, type Hash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';

export interface FolderMeasure {
  /** The sum over all files. */
  sizeBytes: number;
  numFiles: number;
  /** `sha256:…` over names, sizes and contents. Null above {@link MeasureLimits.maxDigestBytes}. */
  digest: string | null;
  /** Why `digest` is null. */
  note: string | null;
}

export interface MeasureLimits {
  /** Maximum number of files, links and folders together. */
  maxEntries: number;
  /** Folders with more bytes than this have no digest. */
  maxDigestBytes: number;
}

export const DEFAULT_MEASURE_LIMITS: MeasureLimits = { maxEntries: 200_000, maxDigestBytes: 256 * 2 ** 30 };
const CHUNK_BYTES = 1 << 20;

interface Entry {
  /** The path below the measured folder, with slashes. */
  name: string;
  type: 'file' | 'link' | 'folder';
  size: number;
}

/**
 * Returns the size and digest of a folder. The digest is the SHA-256 of one line for each folder, file and link below
 * it, sorted by name. A file's line has its size and the SHA-256 of its contents, a link's line has its target. Links
 * are not followed. Owners, permissions and times do not matter, so equal folders have equal digests on every machine.
 * @throws Error if the folder has too many entries or changes while it is read. The message is shown to users.
 */
export async function measureFolder(
  folder: string,
  { maxEntries, maxDigestBytes }: MeasureLimits,
  signal?: AbortSignal,
): Promise<FolderMeasure> {
  const entries: Entry[] = [];
  const root = await fs.promises.realpath(folder);
  await list(root, '', entries, maxEntries, signal);
  const files = entries.filter(({ type }) => type === 'file');
  const sizeBytes = files.reduce((sum, { size }) => sum + size, 0);
  const size = { sizeBytes, numFiles: files.length };
  if (sizeBytes > maxDigestBytes)
    return { ...size, digest: null, note: `no digest: the folder is larger than ${maxDigestBytes / 2 ** 30} GiB` };
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(CHUNK_BYTES);
  for (const entry of entries.sort((a, b) => (a.name < b.name ? -1 : 1)))
    hash.update(await lineOf(root, entry, buffer, signal));
  return { ...size, digest: `sha256:${hash.digest('hex')}`, note: null };
}

async function list(
  root: string,
  name: string,
  entries: Entry[],
  maxEntries: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  signal?.throwIfAborted();
  for await (const found of await fs.promises.opendir(path.join(root, name))) {
    const below = name === '' ? found.name : `${name}/${found.name}`;
    const type = typeOf(found);
    if (type === undefined) continue;
    if (entries.length >= maxEntries) throw new Error(`the folder has more than ${maxEntries} files and folders`);
    entries.push({
      name: below,
      type,
      size: type === 'file' ? (await fs.promises.lstat(path.join(root, below))).size : 0,
    });
    if (type === 'folder') await list(root, below, entries, maxEntries, signal);
  }
}

/** Returns undefined for sockets, pipes and devices, which are skipped. */
function typeOf(entry: fs.Dirent): Entry['type'] | undefined {
  if (entry.isFile()) return 'file';
  if (entry.isDirectory()) return 'folder';
  return entry.isSymbolicLink() ? 'link' : undefined;
}

/** Returns `file SIZE SHA256 "name"`, `folder "name"` or `link "name" "target"`. */
async function lineOf(
  root: string,
  { name, type, size }: Entry,
  buffer: Buffer,
  signal: AbortSignal | undefined,
): Promise<string> {
  const file = path.join(root, name);
  if (type === 'folder') return `folder ${JSON.stringify(name)}\n`;
  if (type === 'link') return `link ${JSON.stringify(name)} ${JSON.stringify(await fs.promises.readlink(file))}\n`;
  const hash = createHash('sha256');
  const read = await readInto(hash, file, buffer, signal);
  if (read !== size) throw new Error(`a file changed while it was read: ${name}`);
  return `file ${size} ${hash.digest('hex')} ${JSON.stringify(name)}\n`;
}

/** Returns the number of bytes read, or -1 when `file` is no longer at this real path. */
async function readInto(hash: Hash, file: string, buffer: Buffer, signal: AbortSignal | undefined): Promise<number> {
  // O_NOFOLLOW: the file may have been replaced by a link since it was listed. O_NONBLOCK: or by a pipe.
  const handle = await fs.promises.open(
    file,
    fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK,
  );
  try {
    // So may a folder on the way to it.
    if ((await fs.promises.readlink(`/proc/self/fd/${handle.fd}`)) !== file) return -1;
    for (let total = 0; ;) {
      signal?.throwIfAborted();
      const { bytesRead } = await handle.read(buffer, 0, buffer.length);
      if (bytesRead === 0) return total;
      hash.update(buffer.subarray(0, bytesRead));
      total += bytesRead;
    }
  } finally {
    await handle.close();
  }
}
