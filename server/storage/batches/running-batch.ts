import type { FileStore } from './file-store';
import { type BatchLine, InputFile } from './input-file';
import type { BatchRecord } from './records';
import { ResultFile } from './result-file';

/** The end of one line. */
export interface LineResult {
  /** Of the response, or null without one. */
  status: number | null;
  /** JSON of the response, or the error that took its place. */
  body: string;
  requestId: string;
}

/** A batch whose lines run: its input, its results, and which lines are done. */
export class RunningBatch {
  readonly record: BatchRecord;
  /** Lines in progress. */
  numInProgress = 0;
  /** No line is taken before this time, in milliseconds. */
  pausedUntil = 0;
  /** Set when the remaining lines will not run. */
  isStopped = false;
  isFinishing = false;
  readonly #files: FileStore;
  readonly #input: InputFile;
  readonly #output: ResultFile;
  readonly #errors: ResultFile;
  /** By line: whether it is done or in progress. */
  readonly #taken: Uint8Array;
  #numDone: number;
  /** Of results that are being written. */
  #numPendingBytes = 0;
  /** Lines before this one are taken, but for those that were put back. */
  #next = 0;
  readonly #putBack: number[] = [];
  readonly #aborter = new AbortController();

  private constructor(
    record: BatchRecord,
    files: FileStore,
    { input, output, errors }: { input: InputFile; output: ResultFile; errors: ResultFile },
    taken: Uint8Array,
  ) {
    this.record = record;
    this.#files = files;
    this.#input = input;
    this.#output = output;
    this.#errors = errors;
    this.#taken = taken;
    this.#numDone = taken.reduce((sum, value) => sum + value, 0);
    this.#count();
  }

  /** @throws InvalidInput, or ApiError `storage_full`. */
  static async open(record: BatchRecord, files: FileStore): Promise<RunningBatch> {
    const done = new Set<string>();
    const isDone: number[] = [];
    const opened: { close(): Promise<void> }[] = [];
    const keep = <T extends { close(): Promise<void> }>(file: T): T => {
      opened.push(file);
      return file;
    };
    try {
      const onResult = (customId: string) => void done.add(customId);
      const output = keep(await ResultFile.open(files.contentPath(record.outputFileId), onResult));
      const errors = keep(await ResultFile.open(files.contentPath(record.errorFileId), onResult));
      const input = keep(
        await InputFile.open(files.contentPath(record.inputFileId), record.endpoint, (customId) =>
          isDone.push(done.has(customId) ? 1 : 0),
        ),
      );
      return new RunningBatch(record, files, { input, output, errors }, Uint8Array.from(isDone));
    } catch (error) {
      for (const file of opened) await file.close();
      throw error;
    }
  }

  /** Aborted when the batch stops. */
  get signal(): AbortSignal {
    return this.#aborter.signal;
  }

  get isDone(): boolean {
    return this.#numDone === this.#input.numLines;
  }

  /** Returns a line that is not done and not in progress, or undefined. The caller settles it or puts it back. */
  take(): number | undefined {
    if (this.isStopped) return undefined;
    let index = this.#putBack.pop();
    if (index === undefined) {
      while (this.#next < this.#taken.length && this.#taken[this.#next] === 1) this.#next++;
      if (this.#next === this.#taken.length) return undefined;
      index = this.#next;
    }
    this.#taken[index] = 1;
    this.numInProgress++;
    return index;
  }

  read(index: number): Promise<BatchLine> {
    return this.#input.read(index);
  }

  putBack(index: number): void {
    this.#taken[index] = 0;
    this.#putBack.push(index);
    this.numInProgress--;
  }

  /** Writes the result of a line that was taken. @throws ApiError `storage_full`; the line is still taken then. */
  async settle(line: Pick<BatchLine, 'customId'>, result: LineResult): Promise<void> {
    const { length } = result.body;
    this.#files.checkSpace(length, this.record.ownerId);
    this.#numPendingBytes += length;
    this.#count();
    try {
      await this.#write(line.customId, result);
    } finally {
      this.#numPendingBytes -= length;
      this.#count();
    }
    this.numInProgress--;
  }

  /** Writes the same error for all lines without a result. */
  async failRest(code: string, message: string): Promise<void> {
    const body = JSON.stringify({ code, message });
    for (let index = 0; index < this.#taken.length; index++) {
      if (this.#taken[index] === 1) continue;
      const { customId } = await this.read(index);
      await this.#write(customId, { status: null, body, requestId: `${this.record.id}-${index}` });
      this.#taken[index] = 1;
    }
  }

  /** Ends the lines in progress. Lines without a result do not run. */
  stop(): void {
    // Nothing waits for the end of a pause any more. A later pause after an error holds.
    if (!this.isStopped) this.pausedUntil = 0;
    this.isStopped = true;
    this.#aborter.abort();
  }

  /** Publishes the results, which are complete. */
  async publish(): Promise<void> {
    const { record } = this;
    record.hasOutput = await this.#publishFile(this.#output, record.outputFileId, `${record.id}_output.jsonl`);
    record.hasErrors = await this.#publishFile(this.#errors, record.errorFileId, `${record.id}_errors.jsonl`);
  }

  async close(): Promise<void> {
    for (const file of [this.#input, this.#output, this.#errors]) await file.close();
  }

  async #publishFile(file: ResultFile, id: string, filename: string): Promise<boolean> {
    await file.sync();
    if (file.numLines === 0) {
      await this.#files.deleteContent(id);
      return false;
    }
    const { ownerId } = this.record;
    if (!this.#files.has(id))
      await this.#files.publish({ id, ownerId, filename, purpose: 'batch_output', bytes: file.size });
    return true;
  }

  async #write(customId: string, { status, body, requestId }: LineResult): Promise<void> {
    const file = status === 200 ? this.#output : this.#errors;
    const response =
      status === null
        ? `null,"error":${body}`
        : `{"status_code":${status},"request_id":${JSON.stringify(requestId)},"body":${body}},"error":null`;
    await file.append(
      `{"id":${JSON.stringify(requestId)},"custom_id":${JSON.stringify(customId)},"response":${response}}`,
    );
    this.#numDone++;
    this.#count();
  }

  #count(): void {
    const { record } = this;
    const count = (id: string, bytes: number) =>
      this.#files.setUnpublished(id, this.#files.has(id) ? 0 : bytes, record.ownerId);
    count(record.outputFileId, this.#output.size + this.#numPendingBytes);
    count(record.errorFileId, this.#errors.size);
    record.counts = {
      total: this.#input.numLines,
      completed: this.#output.numLines,
      failed: this.#errors.numLines,
    };
  }
}
