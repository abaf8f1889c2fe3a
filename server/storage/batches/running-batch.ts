import { setMaxListeners } from 'node:events';
import type { FileStore } from './file-store';
import { InputFile, type InputLine } from './input-file';
import { type LineGroup, LineGroups } from './line-groups';
import { type BatchRecord, ownedOf } from './records';
import { ResultFile } from './result-file';

/** The end of one line. */
export interface LineResult {
  /** Of the response, or null without one. */
  status: number | null;
  /** JSON of the response, or the error that took its place. */
  body: string;
  requestId: string;
}

/** One request of a batch. */
export interface BatchLine extends InputLine {
  /** How often it ended with a failure that another attempt may not have. */
  numFailures: number;
}

/** A line that was taken. */
export interface TakenLine {
  index: number;
  group: LineGroup;
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
  /** Its results are being written, at its end or after an error. */
  isWriting = false;
  readonly #files: FileStore;
  readonly #input: InputFile;
  readonly #output: ResultFile;
  readonly #errors: ResultFile;
  /** By line: whether it is done or in progress. */
  readonly #taken: Uint8Array;
  #numDone: number;
  /** Of results that are being written. */
  #numPendingBytes = 0;
  readonly #groups: LineGroups;
  /** By line. */
  readonly #failures = new Map<number, number>();
  /** Results that could not be written. Their lines do not run again. */
  readonly #unsaved: { customId: string; result: LineResult }[] = [];
  readonly #aborter = new AbortController();

  private constructor(
    record: BatchRecord,
    files: FileStore,
    { input, output, errors }: { input: InputFile; output: ResultFile; errors: ResultFile },
    { taken, groups }: { taken: Uint8Array; groups: LineGroups },
  ) {
    this.record = record;
    this.#files = files;
    this.#input = input;
    this.#output = output;
    this.#errors = errors;
    this.#taken = taken;
    this.#groups = groups;
    // Each line in progress listens.
    setMaxListeners(0, this.#aborter.signal);
    this.#numDone = taken.reduce((sum, value) => sum + value, 0);
    this.#count();
  }

  /** @throws InvalidInput, or ApiError `storage_full`. */
  static async open(record: BatchRecord, files: FileStore): Promise<RunningBatch> {
    const done = new Set<string>();
    const isDone: number[] = [];
    const groups = new LineGroups();
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
        await InputFile.open(files.contentPath(record.inputFileId), record.endpoint, (customId, model) => {
          if (!done.has(customId)) groups.add(isDone.length, model);
          isDone.push(done.has(customId) ? 1 : 0);
        }),
      );
      return new RunningBatch(record, files, { input, output, errors }, { taken: Uint8Array.from(isDone), groups });
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

  get hasUnsaved(): boolean {
    return this.#unsaved.length > 0;
  }

  /** When the next pause ends, in milliseconds. Undefined without one. */
  pauseEnd(nowMs: number): number | undefined {
    const ends = [this, ...this.#groups.all].map(({ pausedUntil }) => pausedUntil).filter((time) => time > nowMs);
    return ends.length === 0 ? undefined : Math.min(...ends);
  }

  /**
   * Takes a line that is not done, not in progress and not paused, if there is one that `claim` claims. The caller
   * settles it or puts it back. @throws ApiError `storage_full` if its result may find no space.
   */
  take<T>(
    nowMs: number,
    claim: (group: LineGroup, bytes: number) => T | undefined,
  ): (TakenLine & { claimed: T }) | undefined {
    if (this.isStopped || this.hasUnsaved || this.pausedUntil > nowMs) return undefined;
    for (const group of this.#groups.all) {
      const index = group.pausedUntil > nowMs ? undefined : group.peek();
      if (index === undefined) continue;
      this.#files.checkSpace(this.#expectedBytes(), this.record.ownerId);
      const claimed = claim(group, this.#input.lengthOf(index));
      if (claimed === undefined) continue;
      this.#groups.take(group);
      this.#taken[index] = 1;
      this.numInProgress++;
      return { index, group, claimed };
    }
    return undefined;
  }

  async read({ index }: TakenLine): Promise<BatchLine> {
    return { ...(await this.#input.read(index)), numFailures: this.#failures.get(index) ?? 0 };
  }

  putBack({ index, group }: TakenLine): void {
    this.#taken[index] = 0;
    group.putBack(index);
    this.numInProgress--;
  }

  countFailure({ index }: TakenLine): void {
    this.#failures.set(index, (this.#failures.get(index) ?? 0) + 1);
  }

  /**
   * Writes the result of a line that was taken. @throws ApiError `storage_full`, or an error of the disk. The result is
   * kept then, and no line is taken until `saveRest` has written it.
   */
  async settle({ index }: TakenLine, { customId }: Pick<BatchLine, 'customId'>, result: LineResult): Promise<void> {
    this.#failures.delete(index);
    try {
      await this.#writeCounted(customId, result);
    } catch (error) {
      this.#unsaved.push({ customId, result });
      throw error;
    } finally {
      this.numInProgress--;
    }
  }

  /** Writes the results that could not be written before. @throws as `settle`. */
  async saveRest(): Promise<void> {
    for (let first = this.#unsaved.at(0); first !== undefined; first = this.#unsaved.at(0)) {
      await this.#writeCounted(first.customId, first.result);
      this.#unsaved.shift();
    }
  }

  /** Writes the same error for all lines without a result. */
  async failRest(code: string, message: string): Promise<void> {
    const body = JSON.stringify({ code, message });
    for (let index = 0; index < this.#taken.length; index++) {
      if (this.#taken[index] === 1) continue;
      const { customId } = await this.#input.read(index);
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
    if (!this.#files.has(id))
      await this.#files.publish({ ...ownedOf(this.record), id, filename, purpose: 'batch_output', bytes: file.size });
    return true;
  }

  /** The space that the results of the lines in progress and of one more need, if they are as long as the others. */
  #expectedBytes(): number {
    const numLines = this.#output.numLines + this.#errors.numLines;
    const mean = numLines === 0 ? 1 : (this.#output.size + this.#errors.size) / numLines;
    return Math.ceil(mean * (this.numInProgress + 1));
  }

  async #writeCounted(customId: string, result: LineResult): Promise<void> {
    const { length } = result.body;
    this.#files.checkSpace(length, this.record.ownerId);
    this.#numPendingBytes += length;
    this.#count();
    try {
      await this.#write(customId, result);
    } finally {
      this.#numPendingBytes -= length;
      this.#count();
    }
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
