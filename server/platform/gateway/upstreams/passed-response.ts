import { isLightReply, type ReplicaUsage, sseData, SseSplitter } from 'capstan/internal';
import { countEvents, usageOf, type UsageReader, UsageTail } from '../usage-reader';
import type { UpstreamRoute } from './routes';

/** A longer response that is not a stream passes unchanged. */
const MAX_JSON_BYTES = 4 * 1024 * 1024;
const EMPTY: Buffer = Buffer.alloc(0);

export interface PassedOptions {
  route: UpstreamRoute;
  /** The name of the model in the request. undefined: names stay. */
  shownModel: string | undefined;
  /** The client did not ask for the usage of its stream. */
  stripsUsage: boolean;
}

type Json = Record<string, unknown>;

/** Reads a stream in the client's own interface: renames the model, and reads and strips the usage. */
export class PassedStream implements UsageReader {
  readonly #options: PassedOptions;
  readonly #splitter = new SseSplitter();
  #counts: Json | undefined;
  /** The start of an Anthropic stream counts the prompt, and its output as one token. */
  #isStartCount = false;
  #isCountOld = false;
  #isOver = false;
  numEvents = 0;

  constructor(options: PassedOptions) {
    this.#options = options;
  }

  get usage(): ReplicaUsage | undefined {
    return this.#counts === undefined ? undefined : usageOf(this.#counts);
  }

  get isPartial(): boolean {
    return this.#isStartCount || (this.#isCountOld && !this.#isOver);
  }

  take(piece: Buffer): Buffer {
    this.numEvents += countEvents(piece);
    const events = this.#splitter.take(piece).map((event) => this.#passed(event));
    return events.length === 0 ? EMPTY : Buffer.from(events.join(''));
  }

  finish(): Buffer {
    this.#isOver = true;
    const rest = this.#splitter.rest();
    return rest === '' ? EMPTY : Buffer.from(this.#passed(rest));
  }

  /** An event that cannot be parsed or written passes unchanged. */
  #passed(event: string): string {
    try {
      return this.#rewritten(event);
    } catch {
      return `${event}\n\n`;
    }
  }

  #rewritten(event: string): string {
    const value = objectOf(sseData(event));
    if (value === undefined) return `${event}\n\n`;
    if (!this.#rewrite(value)) return '';
    const others = event.split('\n').filter((line) => !line.startsWith('data:'));
    return [...others, `data: ${JSON.stringify(value)}`, '', ''].join('\n');
  }

  /** Returns false for an event that the client does not get. */
  #rewrite(value: Json): boolean {
    const { shownModel, stripsUsage, route } = this.#options;
    const holder = holderOf(value, route);
    if (shownModel !== undefined && typeof holder.model === 'string') holder.model = shownModel;
    // The last event of Anthropic's interface may count the output alone.
    const usage = asObject(holder.usage) ?? asObject(value.usage);
    if (usage !== undefined) {
      this.#counts = { ...this.#counts, ...withoutNulls(usage) };
      this.#isStartCount = value.type === 'message_start';
    }
    this.#isCountOld = usage === undefined && value.type !== 'message_stop';
    if (!stripsUsage || !('usage' in value)) return true;
    const isUsageEvent = usage !== undefined && Array.isArray(value.choices) && value.choices.length === 0;
    delete value.usage;
    return !isUsageEvent;
  }
}

/** The object with the fields `model` and `usage`. */
function holderOf(value: Json, route: UpstreamRoute): Json {
  if (route === 'responses') return asObject(value.response) ?? value;
  return route === 'messages' ? (asObject(value.message) ?? value) : value;
}

/** Reads a JSON response in the client's own interface: renames the model and reads the usage. */
export class PassedJson implements UsageReader {
  readonly #shownModel: string | undefined;
  /** For a response that is not parsed. */
  readonly #tail = new UsageTail();
  #usage: ReplicaUsage | undefined;
  #isParsed = false;
  #pieces: Buffer[] | undefined = [];
  #numBytes = 0;

  constructor({ shownModel }: PassedOptions) {
    this.#shownModel = shownModel;
  }

  get usage(): ReplicaUsage | undefined {
    return this.#isParsed ? this.#usage : this.#tail.usage;
  }

  take(piece: Buffer): Buffer {
    this.#tail.take(piece);
    if (this.#pieces === undefined) return piece;
    this.#pieces.push(piece);
    this.#numBytes += piece.length;
    if (this.#numBytes <= MAX_JSON_BYTES) return EMPTY;
    const held = Buffer.concat(this.#pieces);
    this.#pieces = undefined;
    return held;
  }

  finish(): Buffer {
    this.#tail.finish();
    if (this.#pieces === undefined) return EMPTY;
    const bytes = Buffer.concat(this.#pieces);
    this.#pieces = undefined;
    try {
      const value = objectOf(bytes.toString());
      if (value === undefined) return bytes;
      this.#isParsed = true;
      // The text may have other fields of this name: a response repeats the tools of its client.
      const usage = asObject(value.usage);
      this.#usage = usage === undefined ? undefined : usageOf(usage);
      if (this.#shownModel === undefined || typeof value.model !== 'string') return bytes;
      value.model = this.#shownModel;
      return Buffer.from(JSON.stringify(value));
    } catch {
      // A deeply nested value can be parsed, but not written.
      return bytes;
    }
  }
}

function objectOf(text: string | undefined): Json | undefined {
  if (text?.startsWith('{') !== true && text?.trimStart().startsWith('{') !== true) return undefined;
  if (!isLightReply(text)) return undefined;
  try {
    return asObject(JSON.parse(text));
  } catch {
    return undefined;
  }
}

function asObject(value: unknown): Json | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined;
}

function withoutNulls(usage: Json): Json {
  return Object.fromEntries(Object.entries(usage).filter(([, count]) => count !== null));
}
