import { createHash, type Hash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';

export interface FolderMeasure {
  /** Of all files together. */
  sizeBytes: number;
  numFiles: number;
  /** `sha256:…` over names, sizes and contents; null where it holds more than is read. */
  digest: string | null;
  /** Why there is no digest. */
  note: string | null;
}

export interface MeasureLimits {
  /** Files, links and folders. */
  maxEntries: number;
  /** Of contents that are read. */
  maxDigestBytes: number;
}

export const DEFAULT_MEASURE_LIMITS: MeasureLimits = { maxEntries: 200_000, maxDigestBytes: 256 * 2 ** 30 };
const CHUNK_BYTES = 1 << 20;

interface Entry {
  /** Within the folder, with slashes. */
  name: string;
  type: 'file' | 'link' | 'folder';
  size: number;
}

/**
 * How large a folder is, and what tells its contents apart from any other: SHA-256 over one line for each folder, file and link below it, in the order of their names, with a file's size and the SHA-256 of its contents,
 * and where a link points. Links are not followed; owners, rights and times are no contents. Equal folders have equal digests on every machine.
 * @throws Error for people, where it has too many entries, or changes while it is read.
 */
export async function measureFolder(
  folder: string,
  { maxEntries, maxDigestBytes }: MeasureLimits,
  signal?: AbortSignal,
): Promise<FolderMeasure> {
  const entries: Entry[] = [];
  await list(folder, '', entries, maxEntries, signal);
  const files = entries.filter(({ type }) => type === 'file');
  const sizeBytes = files.reduce((sum, { size }) => sum + size, 0);
  const known = { sizeBytes, numFiles: files.length };
  if (sizeBytes > maxDigestBytes)
    return {
      ...known,
      digest: null,
      note: `it holds more than the ${maxDigestBytes / 2 ** 30} GiB of which a digest is made`,
    };
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(CHUNK_BYTES);
  for (const entry of entries.sort((a, b) => (a.name < b.name ? -1 : 1)))
    hash.update(await lineOf(folder, entry, buffer, signal));
  return { ...known, digest: `sha256:${hash.digest('hex')}`, note: null };
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
    const type = found.isFile() ? 'file' : found.isDirectory() ? 'folder' : found.isSymbolicLink() ? 'link' : undefined;
    // Sockets, pipes and devices are nothing that a copy could hold.
    if (type === undefined) continue;
    if (entries.length >= maxEntries) throw new Error(`it has more than ${maxEntries} files and folders`);
    entries.push({
      name: below,
      type,
      size: type === 'file' ? (await fs.promises.lstat(path.join(root, below))).size : 0,
    });
    if (type === 'folder') await list(root, below, entries, maxEntries, signal);
  }
}

/** `file SIZE SHA256 "name"`. */
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
  if (read !== size) throw new Error(`it changed while it was read: ${name}`);
  return `file ${size} ${hash.digest('hex')} ${JSON.stringify(name)}\n`;
}

async function readInto(hash: Hash, file: string, buffer: Buffer, signal: AbortSignal | undefined): Promise<number> {
  // What has become a link meanwhile is not followed either.
  const handle = await fs.promises.open(file, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW);
  try {
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
