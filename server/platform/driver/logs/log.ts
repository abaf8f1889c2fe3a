import { encodeLine, type LogFilter, type LogLine, matcher, type NewLogLine, type SpoolPosition } from './log-line';
import {
  createSegment,
  readSegment,
  type Recovered,
  recover,
  removeSegment,
  type Segment,
  setLast,
  writeAtEnd,
} from './segments';

export interface LogLimits {
  /** Size limit of a log. The oldest segments are removed first. */
  maxBytes: number;
  maxAgeMs: number;
  segmentBytes: number;
}

export interface LogPage {
  lines: LogLine[];
  /** Where to continue: `after` or `before` for the next page. undefined at the end. */
  next: number | undefined;
  /** First line still stored. undefined for an empty log. */
  firstSeq: number | undefined;
  lastSeq: number | undefined;
}

/** Recent lines kept in memory for followers. */
const MAX_RECENT_LINES = 256;
const MAX_RECENT_CHARS = 128 * 1024;
/** Recent lines are dropped from memory when the log has had no new line for this long. */
const IDLE_MS = 600_000;
/** Most segments searched for one page. The caller continues with `next`. */
const MAX_SEGMENTS_PER_PAGE = 16;
/** Most system lines kept in memory while the disk is full. */
const MAX_WAITING_NOTES = 100;

/** A log on disk: segments of lines. Only the last segment is written to. Writes run one after another. */
export class Log {
  readonly #folder: string;
  readonly #limits: LogLimits;
  readonly #redact: (text: string) => string;
  readonly #segments: Segment[];
  readonly #positions: Map<string, SpoolPosition>;
  #nextSeq: number;
  #recent: LogLine[] = [];
  #numRecentChars = 0;
  #notes: NewLogLine[] = [];
  #failedAt: number | undefined;
  #writing: Promise<unknown> = Promise.resolve();
  readonly #waiters = new Set<() => void>();

  static async open(folder: string, limits: LogLimits, redact: (text: string) => string): Promise<Log> {
    return new Log(folder, limits, redact, await recover(folder));
  }

  private constructor(
    folder: string,
    limits: LogLimits,
    redact: (text: string) => string,
    { segments, nextSeq, positions, lastLines }: Recovered,
  ) {
    this.#folder = folder;
    this.#limits = limits;
    this.#redact = redact;
    this.#segments = segments;
    this.#positions = positions;
    this.#nextSeq = nextSeq;
    this.#remember(lastLines);
  }

  get lastSeq(): number | undefined {
    return this.#nextSeq === 1 ? undefined : this.#nextSeq - 1;
  }

  get firstSeq(): number | undefined {
    return this.lastSeq === undefined ? undefined : this.#segments[0].firstSeq;
  }

  positionOf(replicaId: string): SpoolPosition | undefined {
    return this.#positions.get(replicaId);
  }

  /** Appends lines. Rejects when the disk is full; nothing is written then. */
  append(lines: readonly NewLogLine[], source?: { replicaId: string; position: SpoolPosition }): Promise<void> {
    const written = this.#writing.then(() => this.#write(lines, source));
    this.#writing = written.catch(() => {});
    return written;
  }

  /** Appends a line of the service itself. Kept in memory while the disk is full. */
  async note(replica: number, text: string): Promise<void> {
    this.#notes = [...this.#notes, { at: Date.now(), stream: 'system' as const, replica, text }].slice(
      -MAX_WAITING_NOTES,
    );
    await this.append([]).catch(() => {});
  }

  async #write(lines: readonly NewLogLine[], source?: { replicaId: string; position: SpoolPosition }): Promise<void> {
    const notes = this.#notes;
    const all = [...this.#interruption(), ...notes, ...lines].map((line, i): LogLine => ({
      ...line,
      seq: this.#nextSeq + i,
      text: this.#redact(line.text),
    }));
    if (all.length === 0 && source === undefined) return;
    try {
      const segment = await this.#writableSegment();
      await writeAtEnd(segment, all.map(encodeLine).join(''), source ?? {});
    } catch (error) {
      this.#failedAt ??= Date.now();
      throw error;
    }
    this.#failedAt = undefined;
    this.#notes = this.#notes.slice(notes.length);
    if (source !== undefined) setLast(this.#positions, source.replicaId, source.position);
    this.#nextSeq += all.length;
    this.#remember(all);
    for (const resolve of [...this.#waiters]) resolve();
  }

  #interruption(): NewLogLine[] {
    if (this.#failedAt === undefined) return [];
    const text = `The log could not be written since ${new Date(this.#failedAt).toISOString()}, probably because the disk was full`;
    return [{ at: Date.now(), stream: 'system', replica: 0, text }];
  }

  async #writableSegment(): Promise<Segment> {
    const last = this.#segments.at(-1);
    if (last !== undefined && last.numBytes < this.#limits.segmentBytes) return last;
    const segment = await createSegment(this.#folder, this.#nextSeq, this.#positions);
    this.#segments.push(segment);
    await this.#expire(Date.now());
    return segment;
  }

  #remember(lines: readonly LogLine[]): void {
    for (const line of lines.slice(-MAX_RECENT_LINES)) {
      this.#recent.push(line);
      this.#numRecentChars += line.text.length;
    }
    while (this.#recent.length > MAX_RECENT_LINES || this.#numRecentChars > MAX_RECENT_CHARS)
      this.#numRecentChars -= this.#recent.shift()!.text.length;
  }

  /** Reads lines after `after`, in order. */
  async readAfter(after: number, limit: number, filter: LogFilter): Promise<LogPage> {
    const matches = matcher(filter);
    const lines: LogLine[] = [];
    // NOTE: a write in progress may be read partially. Its lines are left for the next read.
    const end = this.#nextSeq;
    let seen = after;
    for await (const some of this.#segmentsAfter(after, filter.since)) {
      for (const line of some) {
        if (line.seq <= after || line.seq >= end) continue;
        if (lines.length === limit) return this.#page(lines, lines.at(-1)!.seq, end);
        seen = line.seq;
        if (matches(line)) lines.push(line);
      }
    }
    return this.#page(lines, seen < end - 1 ? seen : undefined, end);
  }

  async *#segmentsAfter(after: number, since = 0): AsyncGenerator<readonly LogLine[]> {
    if (this.#recent.length > 0 && after >= this.#recent[0].seq - 1) {
      yield this.#recent;
      return;
    }
    const from = Math.max(
      0,
      this.#segments.findLastIndex(({ firstSeq }) => firstSeq <= after + 1),
    );
    const wanted = this.#segments
      .slice(from)
      .filter(({ modifiedMs }, i, all) => i === all.length - 1 || modifiedMs >= since);
    for (const segment of wanted.slice(0, MAX_SEGMENTS_PER_PAGE)) yield await readSegment(segment);
  }

  /** Reads the last lines before `before`, in order. */
  async readBefore(before: number, limit: number, filter: LogFilter): Promise<LogPage> {
    const matches = matcher(filter);
    const end = this.#nextSeq;
    let lines: LogLine[] = [];
    let seen: number | undefined;
    const wanted = this.#segments.filter(({ firstSeq }) => firstSeq < before).reverse();
    for (const [i, segment] of wanted.slice(0, MAX_SEGMENTS_PER_PAGE).entries()) {
      const found = (await readSegment(segment)).filter((line) => line.seq < Math.min(before, end) && matches(line));
      lines = [...found, ...lines];
      seen = i === wanted.length - 1 ? undefined : segment.firstSeq;
      if (lines.length >= limit) break;
    }
    const page = lines.slice(-limit);
    return this.#page(page, lines.length > limit ? page[0].seq : seen, end);
  }

  /** NOTE: `lastSeq` is from the start of the read, so that a reader that continues after it misses nothing. */
  #page(lines: LogLine[], next: number | undefined, end: number): LogPage {
    return { lines, next, firstSeq: this.firstSeq, lastSeq: end === 1 ? undefined : end - 1 };
  }

  /** Resolves when a line after `after` exists, or when the signal aborts. */
  async waitForMore(after: number, signal: AbortSignal): Promise<void> {
    if (this.#nextSeq - 1 > after || signal.aborted) return;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        signal.removeEventListener('abort', done);
        this.#waiters.delete(done);
        resolve();
      };
      signal.addEventListener('abort', done);
      this.#waiters.add(done);
    });
  }

  /** Removes whole segments that are too old, or over the size limit. Keeps the last segment. */
  expire(nowMs: number): Promise<void> {
    const expired = this.#writing.then(() => this.#expire(nowMs));
    this.#writing = expired.catch(() => {});
    return expired;
  }

  async #expire(nowMs: number): Promise<void> {
    const { maxBytes, maxAgeMs } = this.#limits;
    if ((this.#segments.at(-1)?.modifiedMs ?? 0) < nowMs - IDLE_MS) {
      this.#recent = [];
      this.#numRecentChars = 0;
    }
    let numBytes = this.#segments.reduce((sum, segment) => sum + segment.numBytes, 0);
    while (this.#segments.length > 1 && (numBytes > maxBytes || this.#segments[0].modifiedMs < nowMs - maxAgeMs)) {
      await removeSegment(this.#segments[0]);
      numBytes -= this.#segments.shift()!.numBytes;
    }
  }

  /** Resolves when all pending writes are done. */
  async settled(): Promise<void> {
    await this.#writing;
  }
}
