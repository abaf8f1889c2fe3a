import { open, readdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { type NewLogLine, type SpoolPosition, streamOf } from '../logs/log-line';
import type { LogStore } from '../logs/log-store';

/** Longer than any line in the spool. */
const CHUNK_BYTES = 256 * 1024;
const RETRY_MS = 1_000;
const RECORD = /^(\d+) ([oes]) (.*)$/s;

export interface SpoolReaderOptions {
  folder: string;
  logs: Pick<LogStore, 'append' | 'positionOf'>;
  logId: string;
  replicaId: string;
  ordinal: number;
  /** Called for each line. A line may be repeated after the disk was full. */
  onLine: (line: NewLogLine) => void;
}

/**
 * Copies a supervisor's spool to the log. Each line is copied once even after a crash, because the log stores the spool
 * position.
 */
export class SpoolReader {
  readonly #options: SpoolReaderOptions;
  #position: SpoolPosition | undefined;
  #reading: Promise<void> | undefined;
  #isWanted = false;
  #isClosed = false;
  #wake: (() => void) | undefined;
  #onTrouble: (() => void) | undefined;

  constructor(options: SpoolReaderOptions) {
    this.#options = options;
  }

  /** Starts reading. Resolves when everything written so far is in the log. While the disk is full, it waits. */
  read(): Promise<void> {
    this.#isWanted = true;
    this.#reading ??= this.#run();
    return this.#reading;
  }

  /** Like {@link read}, but also resolves when the disk is full. The remaining lines are copied later. */
  async readUnlessDiskFull(): Promise<void> {
    await Promise.race([
      this.read(),
      new Promise<void>((resolve) => {
        this.#onTrouble = resolve;
      }),
    ]);
  }

  /** Stops reading. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#wake?.();
    await this.#reading?.catch(() => {});
  }

  async #run(): Promise<void> {
    while (this.#isWanted && !this.#isClosed) {
      this.#isWanted = false;
      try {
        while (await this.#readOne()) if (this.#isClosed) break;
      } catch {
        // The disk is full. The spool keeps its lines.
        this.#onTrouble?.();
        await this.#wait();
        this.#isWanted = true;
      }
    }
    // NOTE: no await between the last check of #isWanted and this line.
    this.#reading = undefined;
  }

  /** Copies one chunk. Returns whether there may be more. */
  async #readOne(): Promise<boolean> {
    const { folder, logs, logId, replicaId } = this.#options;
    this.#position ??= (await logs.positionOf(logId, replicaId)) ?? { file: 0, offset: 0 };
    const numbers = (await readdir(folder).catch(() => []))
      .map(Number)
      .filter((number) => number > 0)
      .sort((a, b) => a - b);
    for (const done of numbers.filter((number) => number < this.#position!.file))
      await unlink(fileOf(folder, done)).catch(() => {});
    const number = numbers.find((candidate) => candidate >= this.#position!.file);
    if (number === undefined) return false;
    const at: SpoolPosition = number === this.#position.file ? this.#position : { file: number, offset: 0 };
    const records = await readRecords(fileOf(folder, number), at.offset);
    if (records.length === 0) {
      const hasNext = numbers.at(-1)! > number;
      if (hasNext) this.#position = { file: number + 1, offset: 0 };
      return hasNext;
    }
    const position = { file: number, offset: at.offset + records.length };
    const lines = this.#parse(records);
    await logs.append(logId, lines, { replicaId, position }).finally(() => lines.forEach(this.#options.onLine));
    this.#position = position;
    return true;
  }

  #parse(records: Buffer): NewLogLine[] {
    return records
      .toString('utf8')
      .split('\n')
      .slice(0, -1)
      .flatMap((record) => {
        const match = RECORD.exec(record);
        return match === null
          ? []
          : [{ at: Number(match[1]), stream: streamOf(match[2]), replica: this.#options.ordinal, text: match[3] }];
      });
  }

  async #wait(): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, RETRY_MS);
      timer.unref();
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function fileOf(folder: string, number: number): string {
  return join(folder, String(number).padStart(8, '0'));
}

/** Reads complete records only. */
async function readRecords(file: string, offset: number): Promise<Buffer> {
  const handle = await open(file, 'r');
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(CHUNK_BYTES), 0, CHUNK_BYTES, offset);
    return buffer.subarray(0, buffer.subarray(0, bytesRead).lastIndexOf(0x0a) + 1);
  } finally {
    await handle.close();
  }
}
