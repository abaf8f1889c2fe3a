import { isObject, type Json } from './kept-reply';

/** Limit of the chunks of one completion. A longer one is not kept. */
const MAX_BYTES = 16 * 2 ** 20;
/** Limits of the values that are held in memory until a stream ends. */
const MAX_CHOICES = 128;
const MAX_CALLS = 1024;
const MAX_VALUES = 500_000;
/** The fields of chunks that a completion repeats. */
const HEAD = [
  'id',
  'created',
  'model',
  'service_tier',
  'system_fingerprint',
  'prompt_logprobs',
  'prompt_token_ids',
  'prompt_text',
] as const;
/** Texts that a chunk sends as a whole. All others continue. */
const WHOLE = new Set(['id', 'type', 'role', 'name', 'finish_reason', 'stop_reason']);

type Growing = Record<string, unknown>;

/** A completion that has more values than are kept. */
class TooLarge extends Error {}

/** Joins the chunks of a stream to the completion that is sent without a stream. */
export class CompletionParts {
  #choices: Growing[] = [];
  #head: Growing = empty();
  #usage: unknown;
  #numBytes = 0;
  #numValues = 0;
  #isBroken = false;
  /** The items of lists by their indexes. */
  #places = new Map<unknown[], Map<unknown, Growing>>();

  /** @param chunk Must not be nested so deeply that a recursive function overflows the stack. */
  take(chunk: Json, numBytes: number): void {
    if (this.#isBroken) return;
    this.#numBytes += numBytes;
    const { choices, usage } = chunk;
    if (!Array.isArray(choices) || this.#numBytes > MAX_BYTES) return this.break();
    try {
      for (const name of HEAD) if (Object.hasOwn(chunk, name)) this.#head[name] = this.#counted(chunk[name]);
      this.#usage = usage ?? this.#usage;
      for (const choice of choices as unknown[]) {
        if (!isObject(choice)) continue;
        const { delta, ...fields } = choice;
        this.#mergeAt(this.#choices, { ...fields, message: delta ?? fields.message }, MAX_CHOICES);
      }
    } catch (error) {
      if (!(error instanceof TooLarge)) throw error;
      this.break();
    }
  }

  /** A part is missing. Releases all others. */
  break(): void {
    this.#isBroken = true;
    this.#choices = [];
    this.#head = empty();
    this.#usage = undefined;
    this.#places = new Map();
  }

  /** Returns undefined for a stream that failed, is too large, lacks a part, or has a choice without an end. */
  completion(): Json | undefined {
    const hasEnded =
      this.#choices.length > 0 && this.#choices.every((choice) => typeof choice.finish_reason === 'string');
    if (this.#isBroken || !hasEnded) return undefined;
    const choices = this.#choices
      .map((choice): Json => ({ logprobs: null, ...choice, message: wholeMessage(choice.message) }))
      .sort((a, b) => Number(a.index) - Number(b.index));
    return {
      prompt_logprobs: null,
      ...this.#head,
      object: 'chat.completion',
      choices,
      usage: this.#usage ?? null,
    };
  }

  /** Merges an item into the one with its `index`. */
  #mergeAt(items: Growing[], item: Json, maxItems: number): void {
    let places = this.#places.get(items);
    if (places === undefined) this.#places.set(items, (places = new Map<unknown, Growing>()));
    let found = places.get(item.index);
    if (found === undefined) {
      if (items.length === maxItems) throw new TooLarge();
      items.push((found = empty()));
      places.set(item.index, found);
    }
    this.#merge(found, item);
  }

  #merge(target: Growing, part: Json): void {
    for (const [name, value] of Object.entries(part)) {
      const earlier = target[name];
      if (earlier === undefined) this.#count();
      if (value === undefined || value === null) target[name] = earlier ?? null;
      else if (typeof value === 'string' && typeof earlier === 'string' && !WHOLE.has(name))
        target[name] = earlier + value;
      else if (isObject(value)) this.#merge((target[name] = isObject(earlier) ? earlier : empty()), value);
      else if (Array.isArray(value))
        target[name] = this.#mergeList(Array.isArray(earlier) ? (earlier as unknown[]) : [], value);
      else target[name] = value;
    }
  }

  /** Items with an index continue, all others are added. */
  #mergeList(target: unknown[], items: readonly unknown[]): unknown[] {
    for (const item of items) {
      if (isObject(item) && typeof item.index === 'number') this.#mergeAt(target as Growing[], item, MAX_CALLS);
      else target.push(this.#counted(item));
    }
    return target;
  }

  /** Returns a value after counting it and all inner ones. */
  #counted<T>(value: T): T {
    this.#count();
    if (typeof value === 'object' && value !== null) for (const inner of Object.values(value)) this.#counted(inner);
    return value;
  }

  #count(): void {
    if (++this.#numValues > MAX_VALUES) throw new TooLarge();
  }
}

/** Without a prototype, which a chunk could name. */
function empty(): Growing {
  return Object.create(null) as Growing;
}

/** Returns a message with the fields of every message. Calls have indexes in a stream only. */
function wholeMessage(message: unknown): Json {
  const { tool_calls: calls, ...rest } = isObject(message) ? message : {};
  const whole = { role: 'assistant', content: null, ...rest };
  if (!Array.isArray(calls)) return whole;
  return { ...whole, tool_calls: (calls as unknown[]).map(withoutIndex) };
}

function withoutIndex(call: unknown): unknown {
  if (!isObject(call)) return call;
  const { index: _index, ...rest } = call;
  return rest;
}
