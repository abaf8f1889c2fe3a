import { mkdir, open, readdir, readFile, stat, truncate, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { decodeLine, decodeMark, encodeMark, type LogLine, type Mark, type SpoolPosition } from './log-line';

export interface Segment {
  readonly file: string;
  /** Number of the first line. Also the file name. */
  readonly firstSeq: number;
  numBytes: number;
  /** Time of the last write. */
  modifiedMs: number;
}

/** State of a log on disk. */
export interface Recovered {
  segments: Segment[];
  nextSeq: number;
  /** By replica. */
  positions: Map<string, SpoolPosition>;
  /** Lines of the last segment. */
  lastLines: LogLine[];
}

/** Most spool positions carried over to a new segment. Positions of replicas that have ended are not needed. */
const MAX_POSITIONS = 128;
const NAME = /^(\d{12})\.log$/;

/** Opens a log. Truncates lines that were not written completely before a crash. */
export async function recover(folder: string): Promise<Recovered> {
  await mkdir(folder, { recursive: true });
  const names = (await readdir(folder)).filter((name) => NAME.test(name)).sort();
  const segments = await Promise.all(names.map((name) => toSegment(join(folder, name), Number(NAME.exec(name)![1]))));
  const last = segments.at(-1);
  if (last === undefined) return { segments, nextSeq: 1, positions: new Map(), lastLines: [] };
  const bytes = await readFile(last.file);
  const end = endOfLastMark(bytes);
  if (end < bytes.length) await truncate(last.file, end);
  last.numBytes = end;
  const { lines, positions } = parse(bytes.subarray(0, end));
  return { segments, nextSeq: (lines.at(-1)?.seq ?? last.firstSeq - 1) + 1, positions, lastLines: lines };
}

async function toSegment(file: string, firstSeq: number): Promise<Segment> {
  const { size, mtimeMs } = await stat(file);
  return { file, firstSeq, numBytes: size, modifiedMs: mtimeMs };
}

function endOfLastMark(bytes: Buffer): number {
  for (let end = bytes.lastIndexOf(0x0a); end >= 0;) {
    const start = end === 0 ? 0 : bytes.lastIndexOf(0x0a, end - 1) + 1;
    if (decodeMark(bytes.toString('utf8', start, end)) !== undefined) return end + 1;
    end = start - 1;
  }
  return 0;
}

function parse(bytes: Buffer): { lines: LogLine[]; positions: Map<string, SpoolPosition> } {
  const lines: LogLine[] = [];
  const positions = new Map<string, SpoolPosition>();
  for (const text of bytes.toString('utf8').split('\n')) {
    const mark = text.startsWith('#') ? decodeMark(text) : undefined;
    if (mark?.replicaId !== undefined && mark.position !== undefined) setLast(positions, mark.replicaId, mark.position);
    const line = mark === undefined ? decodeLine(text) : undefined;
    if (line !== undefined) lines.push(line);
  }
  return { lines, positions };
}

/** Keeps the map ordered by last change. */
export function setLast(positions: Map<string, SpoolPosition>, replicaId: string, position: SpoolPosition): void {
  positions.delete(replicaId);
  positions.set(replicaId, position);
}

/** Reads a segment. Returns no lines if it has expired. */
export async function readSegment({ file }: Segment): Promise<LogLine[]> {
  try {
    return parse(await readFile(file)).lines;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

/** Creates a segment that starts with the current spool positions, so that earlier segments can be removed. */
export async function createSegment(
  folder: string,
  firstSeq: number,
  positions: ReadonlyMap<string, SpoolPosition>,
): Promise<Segment> {
  const segment: Segment = {
    file: join(folder, `${String(firstSeq).padStart(12, '0')}.log`),
    firstSeq,
    numBytes: 0,
    modifiedMs: Date.now(),
  };
  const marks = [...positions]
    .slice(-MAX_POSITIONS)
    .map(([replicaId, position]) => encodeMark({ replicaId, position }));
  await writeAtEnd(segment, marks.join(''), {});
  return segment;
}

/** Appends all of the lines or none: a partial write is truncated. */
export async function writeAtEnd(segment: Segment, lines: string, mark: Mark): Promise<void> {
  const bytes = Buffer.from(lines + encodeMark(mark));
  const file = await open(segment.file, 'a', 0o600);
  try {
    for (let done = 0; done < bytes.length;) done += (await file.write(bytes, done)).bytesWritten;
  } catch (error) {
    await file.truncate(segment.numBytes).catch(() => {});
    throw error;
  } finally {
    await file.close();
  }
  segment.numBytes += bytes.length;
  segment.modifiedMs = Date.now();
}

/** Removes expired segments of a log that is not open. Keeps its last segment. */
export async function expireClosed(folder: string, beforeMs: number): Promise<void> {
  const names = (await readdir(folder)).filter((candidate) => NAME.test(candidate)).sort();
  for (const name of names.slice(0, -1)) {
    const segment = await toSegment(join(folder, name), 0);
    if (segment.modifiedMs < beforeMs) await removeSegment(segment);
  }
}

export async function removeSegment({ file }: Segment): Promise<void> {
  await unlink(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
  });
}
