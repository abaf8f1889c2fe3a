import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Log, type LogLimits, type LogPage } from './log';
import type { LogFilter, LogLine, NewLogLine, SpoolPosition } from './log-line';
import { expireClosed } from './segments';

export interface LogStoreOptions extends Partial<LogLimits> {
  /** Of all logs; each has a folder in it. */
  folder: string;
  /** Takes secrets out of a line before it is written. */
  redact: (text: string) => string;
}

const DEFAULT_LIMITS: LogLimits = { maxBytes: 64 << 20, maxAgeMs: 30 * 86_400_000, segmentBytes: 4 << 20 };
const EXPIRY_INTERVAL_MS = 600_000;
/** An id is the name of a folder. */
const LOG_ID = /^[a-z]{2,10}_[0-9A-Za-z]{1,64}$/;

/** A line before the first that there still is was asked for. */
export class LogExpiredError extends Error {
  override readonly name = 'LogExpiredError';
  readonly firstSeq: number;

  constructor(asked: number, firstSeq: number) {
    super(`lines up to ${firstSeq - 1} have expired: expected after ${firstSeq - 1} or later, got ${asked}`);
    this.firstSeq = firstSeq;
  }
}

/** Which lines, and how many at most: those after a number, else the last before one, else the last of all. */
export interface LogQuery extends LogFilter {
  after?: number;
  before?: number;
  limit: number;
}

/** The logs of versions and containers, in append-only files below one folder. */
export class LogStore {
  readonly #options: LogStoreOptions;
  readonly #limits: LogLimits;
  readonly #logs = new Map<string, Promise<Log>>();
  readonly #expiry: NodeJS.Timeout;

  constructor(options: LogStoreOptions) {
    this.#options = options;
    const { maxBytes, maxAgeMs, segmentBytes } = { ...DEFAULT_LIMITS, ...options };
    this.#limits = { maxBytes, maxAgeMs, segmentBytes };
    this.#expiry = setInterval(() => void this.expire().catch(() => {}), EXPIRY_INTERVAL_MS);
    this.#expiry.unref();
  }

  /**
   * Adds lines; those of a replica together with how far its spool has been read, so that after a crash each line is there once.
   * Rejects when the disk does not take them; then nothing of them is there, and they may be given again.
   */
  async append(
    logId: string,
    lines: readonly NewLogLine[],
    source?: { replicaId: string; position: SpoolPosition },
  ): Promise<void> {
    await (await this.#open(logId)).append(lines, source);
  }

  /** A line of the service's own. Never rejects: it waits where the disk is full. */
  async note(logId: string, replica: number, text: string): Promise<void> {
    await (await this.#open(logId)).note(replica, text);
  }

  async positionOf(logId: string, replicaId: string): Promise<SpoolPosition | undefined> {
    return (await this.#open(logId)).positionOf(replicaId);
  }

  /** @throws LogExpiredError */
  async read(logId: string, { after, before, limit, ...filter }: LogQuery): Promise<LogPage> {
    const log = await this.#open(logId);
    if (after === undefined) return log.readBefore(before ?? Number.MAX_SAFE_INTEGER, limit, filter);
    checkThere(log, after);
    return log.readAfter(after, limit, filter);
  }

  /** The last lines, as they stand. */
  async last(logId: string, limit: number): Promise<LogLine[]> {
    return (await this.read(logId, { limit })).lines;
  }

  /**
   * Lines after a number that match, then those that come, in groups, until the signal is aborted. A slow reader reads from the disk: nothing piles up.
   * @throws LogExpiredError
   */
  async *follow(
    logId: string,
    after: number,
    filter: LogFilter,
    signal: AbortSignal,
  ): AsyncGenerator<readonly LogLine[], void> {
    const log = await this.#open(logId);
    checkThere(log, after);
    for (let at = after; !signal.aborted;) {
      const { lines, next, lastSeq } = await log.readAfter(at, 1_000, filter);
      if (lines.length > 0) yield lines;
      at = next ?? Math.max(lastSeq ?? 0, at);
      if (next === undefined) await log.grown(at, signal);
    }
  }

  async expire(nowMs = Date.now()): Promise<void> {
    for (const logId of await this.#ids()) {
      const open = this.#logs.get(logId);
      if (open === undefined) await expireClosed(join(this.#options.folder, logId), nowMs - this.#limits.maxAgeMs);
      else await (await open).expire(nowMs);
    }
  }

  async #ids(): Promise<string[]> {
    return (await readdir(this.#options.folder).catch(() => [])).filter((name) => LOG_ID.test(name));
  }

  async delete(logId: string): Promise<void> {
    const log = this.#logs.get(checked(logId));
    this.#logs.delete(logId);
    await (await log)?.settled();
    await rm(join(this.#options.folder, logId), { recursive: true, force: true });
  }

  /** Once all that was given to it is written. */
  async close(): Promise<void> {
    clearInterval(this.#expiry);
    for (const log of this.#logs.values()) await (await log).settled();
    this.#logs.clear();
  }

  #open(logId: string): Promise<Log> {
    const known = this.#logs.get(checked(logId));
    if (known !== undefined) return known;
    const opening = Log.open(join(this.#options.folder, logId), this.#limits, this.#options.redact);
    this.#logs.set(logId, opening);
    // The disk may be there again the next time.
    opening.catch(() => this.#logs.delete(logId));
    return opening;
  }
}

function checked(logId: string): string {
  if (!LOG_ID.test(logId)) throw new Error(`expected an id such as ver_01ABC, got '${logId.slice(0, 100)}'`);
  return logId;
}

function checkThere(log: Log, after: number): void {
  const { firstSeq } = log;
  if (firstSeq !== undefined && after > 0 && after < firstSeq - 1) throw new LogExpiredError(after, firstSeq);
}
