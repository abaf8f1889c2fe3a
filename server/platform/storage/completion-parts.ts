import { isObject, type Json } from './kept-reply';

/** Limit of the chunks of one completion. A longer one is not kept. */
const MAX_BYTES = 16 * 2 ** 20;
/** Texts that a chunk sends as a whole. All others continue. */
const WHOLE = new Set(['id', 'type', 'role', 'name', 'finish_reason', 'stop_reason']);

type Growing = Record<string, unknown>;

/** Joins the chunks of a stream to the completion that is sent without a stream. */
export class CompletionParts {
  readonly #choices: Growing[] = [];
  #head: Json = {};
  #usage: unknown;
  #numBytes = 0;
  #isBroken = false;

  take(chunk: Json, numBytes: number): void {
    const { choices, usage, object: _object, ...head } = chunk;
    this.#numBytes += numBytes;
    if (!Array.isArray(choices) || this.#numBytes > MAX_BYTES) this.#isBroken = true;
    if (this.#isBroken) return;
    this.#head = { ...this.#head, ...head };
    this.#usage = usage ?? this.#usage;
    for (const choice of choices as unknown[]) {
      if (!isObject(choice)) continue;
      const { delta, ...fields } = choice;
      mergeAt(this.#choices, { ...fields, message: delta });
    }
  }

  /** Returns undefined for a stream that failed, is too long, or has a choice without an end. */
  completion(): Json | undefined {
    const hasEnded =
      this.#choices.length > 0 && this.#choices.every((choice) => typeof choice.finish_reason === 'string');
    if (this.#isBroken || !hasEnded) return undefined;
    const choices = this.#choices.map((choice) => ({ ...choice, message: withoutIndexes(choice.message) }));
    return { ...this.#head, object: 'chat.completion', choices, usage: this.#usage ?? null };
  }
}

/** Without a prototype, which a chunk could name. */
function empty(): Growing {
  return Object.create(null) as Growing;
}

/** Merges an item into the one with its `index`. */
function mergeAt(items: Growing[], item: Json): void {
  let found = items.find(({ index }) => index === item.index);
  if (found === undefined) items.push((found = empty()));
  merge(found, item);
}

function merge(target: Growing, part: Json): void {
  for (const [name, value] of Object.entries(part)) {
    const earlier = target[name];
    if (value === undefined || value === null) target[name] = earlier ?? null;
    else if (typeof value === 'string' && typeof earlier === 'string' && !WHOLE.has(name))
      target[name] = earlier + value;
    else if (isObject(value)) merge((target[name] = isObject(earlier) ? earlier : empty()), value);
    else if (Array.isArray(value))
      target[name] = mergeList(Array.isArray(earlier) ? (earlier as unknown[]) : [], value);
    else target[name] = value;
  }
}

/** Items with an index continue, all others are added. */
function mergeList(target: unknown[], items: readonly unknown[]): unknown[] {
  for (const item of items) {
    if (isObject(item) && typeof item.index === 'number') mergeAt(target as Growing[], item);
    else target.push(item);
  }
  return target;
}

/** Calls have indexes in a stream only. */
function withoutIndexes(message: unknown): Json {
  const { tool_calls: calls, ...rest } = isObject(message) ? message : {};
  if (!Array.isArray(calls)) return rest;
  return { ...rest, tool_calls: (calls as Json[]).map(({ index: _index, ...call }) => call) };
}
