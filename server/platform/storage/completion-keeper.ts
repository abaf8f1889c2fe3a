import {
  type CompletionRequest,
  Completions,
  type HttpReply,
  type Log,
  newCompletionId,
  readCompletionRequest,
  type ResponseStore,
  storedCompletion,
  topLevelValues,
  withTopLevelValues,
} from 'capstan/internal';
import type { KeptRequest, KeptResponse } from '../gateway/owner-storage';
import { CompletionParts } from './completion-parts';
import { dataOf, isObject, type Json, KeptReply, type ReplyRewriter, textOf } from './kept-reply';

const STORE = Buffer.from('"store"');

/** Keeps the chat completions of replicas, which get `store: false`. */
export class CompletionKeeper {
  readonly #store: ResponseStore;
  readonly #log: Log;

  constructor(store: ResponseStore, log: Log) {
    this.#store = store;
    this.#log = log;
  }

  /**
   * Returns undefined for a request that is not kept, and for an invalid one: the replica says what is wrong. Throws
   * ApiError for invalid metadata.
   */
  async prepare(
    { ownerId, requestId }: KeptRequest,
    body: Buffer,
    reply: HttpReply,
  ): Promise<KeptResponse | undefined> {
    // Most requests are not kept. They are not parsed.
    const value = body.includes(STORE) ? parse(body) : undefined;
    const request = value === undefined ? undefined : await readCompletionRequest(value);
    if (value === undefined || request === undefined) return undefined;
    const { stream_options: options } = value;
    const hidesUsage = value.stream === true && !(isObject(options) && options.include_usage === true);
    const asksForUsage = hidesUsage && (options === undefined || options === null || isObject(options));
    const completions = new Completions(this.#store, { ownerId });
    const kept = new KeptReply(
      reply,
      new OneCompletion({ completions, request, requestId, hidesUsage, log: this.#log }),
    );
    return {
      body: withTopLevelValues(body, topLevelValues(body), {
        store: 'false',
        // Some servers refuse metadata without `store`.
        ...(value.metadata === undefined ? {} : { metadata: 'null' }),
        ...(asksForUsage ? { stream_options: JSON.stringify({ ...options, include_usage: true }) } : {}),
      }),
      reply: kept,
      settled: () => kept.settled(),
    };
  }
}

interface OneCompletionFacts {
  completions: Completions;
  request: CompletionRequest;
  requestId: string;
  /** Whether the client did not ask for the chunk with the usage of a stream. */
  hidesUsage: boolean;
  log: Log;
}

/** One chat completion as its client gets it: with an id of the service. */
class OneCompletion implements ReplyRewriter {
  readonly #facts: OneCompletionFacts;
  readonly #id = newCompletionId();
  readonly #parts = new CompletionParts();

  constructor(facts: OneCompletionFacts) {
    this.#facts = facts;
  }

  whole(value: Json): Promise<Json> | undefined {
    if (value.object !== 'chat.completion' || !Array.isArray(value.choices)) return undefined;
    return this.#keep(value);
  }

  event(event: Buffer): string | Promise<string> | undefined {
    const text = event.toString();
    if (textOf(text) === '[DONE]') {
      const completion = this.#parts.completion();
      return completion === undefined ? undefined : this.#keep(completion).then(() => text);
    }
    const chunk = dataOf(text);
    if (chunk === undefined) return undefined;
    this.#parts.take(chunk, event.length);
    if (!Array.isArray(chunk.choices)) return undefined;
    if (this.#facts.hidesUsage && chunk.choices.length === 0 && isObject(chunk.usage)) return '';
    return `data: ${JSON.stringify({ ...chunk, id: this.#id })}\n\n`;
  }

  async #keep(completion: Json): Promise<Json> {
    const { completions, request, requestId, log } = this.#facts;
    const shown = { ...completion, id: this.#id };
    try {
      const isStored = await completions.put(storedCompletion(shown, request, requestId));
      if (!isStored) log.warn({ requestId }, 'a chat completion is too large to be stored');
    } catch (error) {
      log.error({ requestId, err: error }, 'cannot store a chat completion');
    }
    return shown;
  }
}

function parse(body: Buffer): Json | undefined {
  try {
    const value: unknown = JSON.parse(body.toString());
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
