import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Log, type LogLimits, type LogPage } from './log';
import type { LogFilter, LogLine, NewLogLine, SpoolPosition } from './log-line';
import { expireClosed } from './segments';

export interface LogStoreOptions extends Partial<LogLimits> {
  /** Contains a subfolder for each log. */
  folder: string;
  /** Removes secrets from a line before it is written. */
  redact: (text: string) => string;
}

const DEFAULT_LIMITS: LogLimits = { maxBytes: 64 << 20, maxAgeMs: 30 * 86_400_000, segmentBytes: 4 << 20 };
const EXPIRY_INTERVAL_MS = 600_000;
/** Log ids are folder names. */
const LOG_ID = /^[a-z]{2,10}_[0-9A-Za-z]{1,64}$/;

/** The requested lines have expired. */
export class LogExpiredError extends Error {
  override readonly name = 'LogExpiredError';
  readonly firstSeq: number;

  constructor(after: number, firstSeq: number) {
    super(`lines up to ${firstSeq - 1} have expired: expected after ${firstSeq - 1} or later, got ${after}`);
    this.firstSeq = firstSeq;
  }
}

/** At most `limit` lines: those after `after`, else the last before `before`, else the last of all. */
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
   * Appends lines. `source` is written with them, so that after a crash no line is missing or repeated.
   * Rejects when the disk is full. Nothing is written then, and the caller may retry.
   */
  async append(
    logId: string,
    lines: readonly NewLogLine[],
    source?: { replicaId: string; position: SpoolPosition },
  ): Promise<void> {
    await (await this.#open(logId)).append(lines, source);
  }

  /**
   * Appends a line of the service itself. Never rejects: the line is kept in memory while the disk is full. It is lost
   * if the log cannot even be read.
   */
  async note(logId: string, replica: number, text: string): Promise<void> {
    const log = await this.#open(logId).catch(() => undefined);
    await log?.note(replica, text);
  }

  async positionOf(logId: string, replicaId: string): Promise<SpoolPosition | undefined> {
    return (await this.#open(logId)).positionOf(replicaId);
  }

  /** Throws LogExpiredError. */
  async read(logId: string, { after, before, limit, ...filter }: LogQuery): Promise<LogPage> {
    const log = await this.#open(logId);
    if (after === undefined) return log.readBefore(before ?? Number.MAX_SAFE_INTEGER, limit, filter);
    checkNotExpired(log, after);
    return log.readAfter(after, limit, filter);
  }

  /** Returns the last lines. */
  async last(logId: string, limit: number): Promise<LogLine[]> {
    return (await this.read(logId, { limit })).lines;
  }

  /**
   * Yields matching lines after `after`, then new ones in groups until the signal aborts. A slow reader reads from
   * disk, so no lines accumulate in memory. Throws LogExpiredError.
   */
  async *follow(
    logId: string,
    after: number,
    filter: LogFilter,
    signal: AbortSignal,
  ): AsyncGenerator<readonly LogLine[], void> {
    const log = await this.#open(logId);
    checkNotExpired(log, after);
    for (let at = after; !signal.aborted;) {
      const { lines, next, lastSeq } = await log.readAfter(at, 1_000, filter);
      if (lines.length > 0) yield lines;
      at = next ?? Math.max(lastSeq ?? 0, at);
      if (next === undefined) await log.waitForMore(at, signal);
    }
  }

  async expire(nowMs = Date.now()): Promise<void> {
    // A log that cannot be read does not keep the others from expiring.
    for (const logId of await this.#ids()) await this.#expireOne(logId, nowMs).catch(() => {});
  }

  async #expireOne(logId: string, nowMs: number): Promise<void> {
    const open = this.#logs.get(logId);
    if (open === undefined) await expireClosed(join(this.#options.folder, logId), nowMs - this.#limits.maxAgeMs);
    else await (await open).expire(nowMs);
  }

  /** Ids of all logs on disk. */
  async #ids(): Promise<string[]> {
    return (await readdir(this.#options.folder).catch(() => [])).filter((name) => LOG_ID.test(name));
  }

  async delete(logId: string): Promise<void> {
    const log = this.#logs.get(checked(logId));
    this.#logs.delete(logId);
    await (await log?.catch(() => undefined))?.settled();
    await rm(join(this.#options.folder, logId), { recursive: true, force: true });
  }

  /** Resolves when all pending writes are done. */
  async close(): Promise<void> {
    clearInterval(this.#expiry);
    for (const log of this.#logs.values()) await (await log.catch(() => undefined))?.settled();
    this.#logs.clear();
  }

  #open(logId: string): Promise<Log> {
    const known = this.#logs.get(checked(logId));
    if (known !== undefined) return known;
    const opening = Log.open(join(this.#options.folder, logId), this.#limits, this.#options.redact);
    this.#logs.set(logId, opening);
    // A later call may succeed, for example after the disk is mounted again.
    opening.catch(() => this.#logs.delete(logId));
    return opening;
  }
}

function checked(logId: string): string {
  if (!LOG_ID.test(logId)) throw new Error(`expected an id such as ver_01ABC, got '${logId.slice(0, 100)}'`);
  return logId;
}

function checkNotExpired(log: Log, after: number): void {
  const { firstSeq } = log;
  if (firstSeq !== undefined && after > 0 && after < firstSeq - 1) throw new LogExpiredError(after, firstSeq);
}
