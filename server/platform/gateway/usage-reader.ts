import { parseUsage, type ReplicaUsage, USAGE_COMMENT } from 'capstan/internal';

/** Extracts token usage from a response as it passes. */
export interface UsageReader {
  /** Returns the bytes for the client. May be empty, or withhold a few bytes. */
  take(piece: Buffer): Buffer;
  /** Returns the withheld bytes at the end of the response. */
  finish(): Buffer;
  /** Available after `finish`. */
  readonly usage: ReplicaUsage | undefined;
  /** More output followed the usage that has been reported. Its prompt is right, its completion is not. */
  readonly isPartial?: boolean;
  /** Events of a stream so far, about one per token. 0: no stream. */
  readonly numEvents?: number;
  /** The response reported an error after its start, or broke off. */
  readonly hasFailed?: boolean;
  /** Releases its memory. */
  close?(): void;
}

const EMPTY: Buffer = Buffer.alloc(0);
const MARK = Buffer.from(USAGE_COMMENT);
const LINE_END = 0x0a;

/**
 * For streams of the built-in runtime: removes the usage comment at their end. It starts a line and may arrive in
 * pieces.
 */
export class UsageComment implements UsageReader {
  #held = EMPTY;
  #isFound = false;
  #isLineStart = true;
  #usage: ReplicaUsage | undefined;

  get usage(): ReplicaUsage | undefined {
    return this.#usage;
  }

  take(piece: Buffer): Buffer {
    const bytes = this.#held.length === 0 ? piece : Buffer.concat([this.#held, piece]);
    if (this.#isFound) {
      this.#held = bytes;
      return EMPTY;
    }
    const at = this.#find(bytes);
    this.#isFound = at.isComplete;
    this.#held = bytes.subarray(at.index);
    const passed = bytes.subarray(0, at.index);
    if (passed.length > 0) this.#isLineStart = passed[passed.length - 1] === LINE_END;
    return passed;
  }

  finish(): Buffer {
    const text = this.#held.toString('latin1');
    this.#usage = this.#isFound ? parseUsage(text.slice(MARK.length).trim()) : undefined;
    const rest = this.#usage === undefined ? this.#held : EMPTY;
    this.#held = EMPTY;
    return rest;
  }

  /** Returns where the comment begins, or where the end of the piece may be its beginning. */
  #find(bytes: Buffer): { index: number; isComplete: boolean } {
    for (let index = bytes.indexOf(MARK); index >= 0; index = bytes.indexOf(MARK, index + 1)) {
      if (this.#beginsLine(bytes, index)) return { index, isComplete: true };
    }
    const start = bytes.lastIndexOf(LINE_END) + 1;
    const tail = bytes.subarray(start);
    const isBeginning =
      tail.length > 0 &&
      tail.length < MARK.length &&
      this.#beginsLine(bytes, start) &&
      MARK.subarray(0, tail.length).equals(tail);
    return { index: isBeginning ? start : bytes.length, isComplete: false };
  }

  #beginsLine(bytes: Buffer, index: number): boolean {
    return index === 0 ? this.#isLineStart : bytes[index - 1] === LINE_END;
  }
}

/** Enough for the usage object, which is near the end, or near the start of a ranking. */
const TAIL_BYTES = 8 * 1024;
const HEAD_BYTES = 2 * 1024;
const EVENT_START = Buffer.from('data: ');
const USAGE_OBJECT = /(?<!\\)"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})/g;

/** For JSON and event streams of other runtimes: uses their last `usage` object. */
export class UsageTail implements UsageReader {
  #head = EMPTY;
  #pieces: Buffer[] = [];
  #numBytes = 0;
  #numEvents = 0;
  #usage: ReplicaUsage | undefined;

  get usage(): ReplicaUsage | undefined {
    return this.#usage;
  }

  get numEvents(): number {
    return this.#numEvents;
  }

  take(piece: Buffer): Buffer {
    this.#numEvents += countEvents(piece);
    if (this.#head.length < HEAD_BYTES)
      this.#head = Buffer.concat([this.#head, piece.subarray(0, HEAD_BYTES - this.#head.length)]);
    this.#pieces.push(piece);
    this.#numBytes += piece.length;
    while (this.#numBytes - this.#pieces[0].length >= TAIL_BYTES)
      this.#numBytes -= (this.#pieces.shift() as Buffer).length;
    return piece;
  }

  finish(): Buffer {
    const tail = Buffer.concat(this.#pieces).toString('utf8').slice(-TAIL_BYTES);
    const head = this.#head.toString('utf8');
    const found = lastUsage(tail) ?? lastUsage(head);
    this.#usage =
      found === undefined ? undefined : usageOf(hasInput(found) ? found : { ...startUsage(head), ...found });
    this.#pieces = [];
    return EMPTY;
  }
}

/** Returns how many events with data begin in a piece of a stream. */
export function countEvents(piece: Buffer): number {
  let numEvents = 0;
  for (let at = piece.indexOf(EVENT_START); at >= 0; at = piece.indexOf(EVENT_START, at + 1)) numEvents++;
  return numEvents;
}

type WireUsage = Readonly<Record<string, unknown>>;

function hasInput({ prompt_tokens: prompt, input_tokens: input, total_tokens: total }: WireUsage): boolean {
  return prompt !== undefined || input !== undefined || total !== undefined;
}

const EVENT_DATA = /^data: ?(.*)$/m;

/**
 * Returns the input that the first event of an Anthropic stream counts: the last event may count only the output.
 * Looks nowhere else, because other streams begin with the client's own JSON, such as its tools.
 */
function startUsage(head: string): WireUsage | undefined {
  const event = asJson(EVENT_DATA.exec(head)?.[1]) as
    { type?: unknown; message?: { usage?: WireUsage | null } | null } | null | undefined;
  if (event?.type !== 'message_start') return undefined;
  const { input_tokens, cache_read_input_tokens, cache_creation_input_tokens } = event.message?.usage ?? {};
  return { input_tokens, cache_read_input_tokens, cache_creation_input_tokens };
}

function lastUsage(text: string): WireUsage | undefined {
  return asJson([...text.matchAll(USAGE_OBJECT)].at(-1)?.[1]) as WireUsage | undefined;
}

function asJson(text: string | undefined): unknown {
  try {
    return text === undefined ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Reads the usage of chat completions, of responses (`input_tokens_details`) and of Anthropic's messages. */
export function usageOf(usage: WireUsage): ReplicaUsage | undefined {
  const {
    total_tokens: totalTokens,
    input_tokens: inputTokens = totalTokens,
    output_tokens: outputTokens = 0,
    // A ranking may have only the total.
    prompt_tokens: promptTokens = inputTokens,
    completion_tokens: completionTokens = outputTokens,
    prompt_tokens_details: promptDetails,
    input_tokens_details: details = promptDetails,
    cache_read_input_tokens: readTokens,
    cache_creation_input_tokens: createdTokens,
  } = usage;
  const cachedTokens = (details as { cached_tokens?: unknown } | null | undefined)?.cached_tokens ?? readTokens ?? 0;
  // Anthropic's input tokens leave out those of the cache. `prompt_tokens` includes them.
  const further = usage.prompt_tokens === undefined ? [readTokens ?? 0, createdTokens ?? 0] : [];
  if (![promptTokens, completionTokens, cachedTokens, ...further].every(isCount)) return undefined;
  const sum = further.reduce<number>((total, count) => total + (count as number), promptTokens as number);
  return { promptTokens: sum, completionTokens: completionTokens as number, cachedTokens: cachedTokens as number };
}

const MAX_COUNT = 1e9;

function isCount(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_COUNT;
}
