import { type FileHandle, open } from 'node:fs/promises';
import { toStorageError, writeAll } from './disk';
import { readLines } from './lines';

/** How long written lines may be lost by a power failure. They survive the end of the process. */
const SYNC_MS = 1_000;

/**
 * A file of results that grows by whole lines. What a crash or a full disk leaves of a line is removed, so that the
 * request runs again and its result is in the file once.
 */
export class ResultFile {
  readonly #file: FileHandle;
  #size: number;
  #numLines: number;
  #tail: Promise<unknown> = Promise.resolve();
  #syncing: NodeJS.Timeout | undefined;

  private constructor(file: FileHandle, size: number, numLines: number) {
    this.#file = file;
    this.#size = size;
    this.#numLines = numLines;
  }

  /** Opens or creates a file. @param onLine Receives the `custom_id` of each complete line. */
  static async open(path: string, onLine: (customId: string) => void): Promise<ResultFile> {
    const file = await open(path, 'a+', 0o600)
      .then((created) => created.close())
      .then(() => open(path, 'r+'))
      .catch((error: unknown) => {
        throw toStorageError(error);
      });
    try {
      let size = 0;
      let numLines = 0;
      for await (const { offset, bytes, isComplete } of readLines(path, Infinity)) {
        const customId = isComplete ? customIdOf(bytes) : undefined;
        if (customId === undefined) break;
        onLine(customId);
        size = offset + bytes.length + 1;
        numLines++;
      }
      await file.truncate(size);
      return new ResultFile(file, size, numLines);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  get size(): number {
    return this.#size;
  }

  get numLines(): number {
    return this.#numLines;
  }

  /** @param line Without its newline. @throws ApiError `storage_full`. */
  append(line: string): Promise<void> {
    const writing = this.#tail.then(async () => {
      const bytes = Buffer.from(`${line}\n`);
      try {
        await writeAll(this.#file, bytes, this.#size);
      } catch (error) {
        await this.#file.truncate(this.#size).catch(() => {});
        throw toStorageError(error);
      }
      this.#size += bytes.length;
      this.#numLines++;
      this.#syncing ??= setTimeout(() => this.#syncLater(), SYNC_MS).unref();
    });
    this.#tail = writing.catch(() => {});
    return writing;
  }

  /** Makes all lines survive a power failure. @throws ApiError `storage_full`. */
  async sync(): Promise<void> {
    await this.#tail;
    await this.#file.sync().catch((error: unknown) => {
      throw toStorageError(error);
    });
  }

  async close(): Promise<void> {
    clearTimeout(this.#syncing);
    await this.#tail;
    await this.#file.close();
  }

  #syncLater(): void {
    this.#syncing = undefined;
    // An error of the disk shows at the next line, or when the batch ends.
    this.#tail = this.#tail.then(() => this.#file.datasync()).catch(() => {});
  }
}

function customIdOf(bytes: Buffer): string | undefined {
  try {
    const { custom_id: customId } = JSON.parse(bytes.toString()) as { custom_id?: unknown };
    return typeof customId === 'string' ? customId : undefined;
  } catch {
    return undefined;
  }
}
