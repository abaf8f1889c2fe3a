import { createReadStream } from 'node:fs';

const CHUNK_BYTES = 256 * 1024;
const NEWLINE = 0x0a;

/** A line of a file, without its newline. */
export interface FileLine {
  /** Offset of its first byte. */
  offset: number;
  /** Only the first ones of a line that is too long. */
  bytes: Buffer;
  isTooLong: boolean;
  /** Whether a newline follows. */
  isComplete: boolean;
}

/** Yields the lines of a file one by one. Yields to the event loop with each chunk. */
export async function* readLines(path: string, maxLineBytes: number): AsyncGenerator<FileLine> {
  let offset = 0;
  let parts: Buffer[] = [];
  let numBytes = 0;
  const take = (part: Buffer): void => {
    if (numBytes <= maxLineBytes) parts.push(part);
    numBytes += part.length;
  };
  const line = (isComplete: boolean): FileLine => {
    const bytes = parts.length === 1 ? parts[0] : Buffer.concat(parts);
    const found = { offset, bytes, isTooLong: numBytes > maxLineBytes, isComplete };
    offset += numBytes + 1;
    parts = [];
    numBytes = 0;
    return found;
  };
  for await (const chunk of createReadStream(path, { highWaterMark: CHUNK_BYTES }) as AsyncIterable<Buffer>) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      take(chunk.subarray(start, end));
      yield line(true);
      start = end + 1;
    }
    if (start < chunk.length) take(chunk.subarray(start));
  }
  if (numBytes > 0) yield line(false);
}
