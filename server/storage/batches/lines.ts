import { createReadStream } from 'node:fs';

const CHUNK_BYTES = 256 * 1024;
const NEWLINE = 0x0a;

/** A line of a file, without its newline. */
export interface FileLine {
  /** Offset of its first byte. */
  offset: number;
  bytes: Buffer;
  /** Whether a newline follows. */
  isComplete: boolean;
}

/** Yields the lines of a file that fit in memory one by one. Yields to the event loop with each chunk. */
export async function* readLines(path: string): AsyncGenerator<FileLine> {
  let offset = 0;
  let parts: Buffer[] = [];
  for await (const chunk of createReadStream(path, { highWaterMark: CHUNK_BYTES }) as AsyncIterable<Buffer>) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      parts.push(chunk.subarray(start, end));
      const bytes = parts.length === 1 ? parts[0] : Buffer.concat(parts);
      yield { offset, bytes, isComplete: true };
      offset += bytes.length + 1;
      parts = [];
      start = end + 1;
    }
    if (start < chunk.length) parts.push(chunk.subarray(start));
  }
  if (parts.length > 0) yield { offset, bytes: Buffer.concat(parts), isComplete: false };
}
