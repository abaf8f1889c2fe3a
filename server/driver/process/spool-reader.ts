import { open, readdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { type NewLogLine, type SpoolPosition, streamOf } from '../logs/log-line';
import type { LogStore } from '../logs/log-store';

/** Longer than any line in it. */
const CHUNK_BYTES = 256 * 1024;
const RETRY_MS = 1_000;
const RECORD = /^(\d+) ([oes]) (.*)$/s;

export interface SpoolReaderOptions {
  folder: string;
  logs: Pick<LogStore, 'append' | 'positionOf'>;
  logId: string;
  replicaId: string;
  ordinal: number;
  /** Hears each line; some of them again where the disk was full. */
  onLine: (line: NewLogLine) => void;
}

/** Takes up what a supervisor writes to its spool: each line once, whatever crashes between, as the log itself keeps how far it has been read. */
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

  /** There may be more. Resolves when all that was there by now is in the log; while the disk is full, that takes until it is not. */
  read(): Promise<void> {
    this.#isWanted = true;
    this.#reading ??= this.#run();
    return this.#reading;
  }

  /** The same, and resolves as well once the disk did not take it; the rest follows when there is room. */
  async readIfRoom(): Promise<void> {
    await Promise.race([
      this.read(),
      new Promise<void>((resolve) => {
        this.#onTrouble = resolve;
      }),
    ]);
  }

  /** Reads no more. */
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
        // The disk is full: what the spool holds is not lost.
        this.#onTrouble?.();
        await this.#wait();
        this.#isWanted = true;
      }
    }
    // NOTE: with nothing between this and the last look at what is wanted.
    this.#reading = undefined;
  }

  /** Whether there may be more. */
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

/** Whole records alone. */
async function readRecords(file: string, offset: number): Promise<Buffer> {
  const handle = await open(file, 'r');
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(CHUNK_BYTES), 0, CHUNK_BYTES, offset);
    return buffer.subarray(0, buffer.subarray(0, bytesRead).lastIndexOf(0x0a) + 1);
  } finally {
    await handle.close();
  }
}
