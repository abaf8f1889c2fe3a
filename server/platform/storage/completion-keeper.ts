import {
  type CompletionRequest,
  Completions,
  type HttpReply,
  type Log,
  newCompletionId,
  readCompletionRequest,
  type ResponseStore,
  topLevelValues,
  withoutTopLevelField,
  withTopLevelValues,
} from 'capstan/internal';
import type { KeptRequest, KeptResponse } from '../gateway/owner-storage';
import { CompletionParts } from './completion-parts';
import { isObject, type Json, KeptReply, objectIn, objectOf, type ReplyRewriter, textOf } from './kept-reply';

const STORE = Buffer.from('"store"');
const OBJECT = 'chat.completion';

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
    { ownerId, requestId, deploymentId }: KeptRequest,
    body: Buffer,
    reply: HttpReply,
  ): Promise<KeptResponse | undefined> {
    // Most requests are not kept. They are not parsed.
    const value = mayAskForStore(body) ? objectIn(body) : undefined;
    const request = value === undefined ? undefined : await readCompletionRequest(value);
    if (value === undefined || request === undefined) return undefined;
    const { stream_options: options } = value;
    const hidesUsage = value.stream === true && !(isObject(options) && options.include_usage === true);
    const asksForUsage = hidesUsage && (options === undefined || options === null || isObject(options));
    // Some servers refuse metadata without `store`.
    const metadata = topLevelValues(body).get('metadata');
    const sent = metadata === undefined ? body : withoutTopLevelField(body, metadata);
    const completions = new Completions(this.#store, { ownerId });
    const kept = new KeptReply(
      reply,
      new OneCompletion({ completions, request, requestId, deploymentId, hidesUsage, log: this.#log }),
    );
    return {
      body: withTopLevelValues(sent, topLevelValues(sent), {
        store: 'false',
        ...(asksForUsage ? { stream_options: JSON.stringify({ ...options, include_usage: true }) } : {}),
      }),
      reply: kept,
      settled: () => kept.settled(),
    };
  }
}

/** Whether the last field `store` of a body is `true`. May be wrong for a body that is no JSON. */
function mayAskForStore(body: Buffer): boolean {
  if (!body.includes(STORE)) return false;
  try {
    const store = topLevelValues(body).get('store');
    return store !== undefined && body.toString('utf8', store.start, store.end).trim() === 'true';
  } catch {
    return false;
  }
}

interface OneCompletionFacts {
  completions: Completions;
  request: CompletionRequest;
  requestId: string;
  deploymentId: string;
  /** Whether the client did not ask for the chunk with the usage of a stream. */
  hidesUsage: boolean;
  log: Log;
}

/** One chat completion as its client gets it: with an id of the service. */
class OneCompletion implements ReplyRewriter {
  readonly #facts: OneCompletionFacts;
  readonly #id = newCompletionId();
  readonly #parts = new CompletionParts();
  #hasEnded = false;

  constructor(facts: OneCompletionFacts) {
    this.#facts = facts;
  }

  whole(value: Json): Promise<Json> | undefined {
    // Some servers omit `object`.
    if ((value.object ?? OBJECT) !== OBJECT || !Array.isArray(value.choices)) return undefined;
    return this.#keep({ ...value, object: OBJECT });
  }

  event(event: Buffer): string | Promise<string> | undefined {
    const text = event.toString();
    const data = textOf(text);
    if (data === '[DONE]') return this.#end(text);
    // A comment.
    if (data === '') return undefined;
    const chunk = objectOf(Buffer.from(data));
    if (chunk === undefined) {
      this.#parts.break();
      return undefined;
    }
    this.#parts.take(chunk, event.length);
    if (!Array.isArray(chunk.choices)) return undefined;
    const shown: Record<string, unknown> = { ...chunk, id: this.#id };
    if (this.#facts.hidesUsage) {
      if (chunk.choices.length === 0 && isObject(chunk.usage)) return '';
      delete shown.usage;
    }
    return `data: ${JSON.stringify(shown)}\n\n`;
  }

  skipped(): void {
    this.#parts.break();
  }

  /** @param text The event that ends the stream. */
  #end(text: string): Promise<string> | undefined {
    const completion = this.#hasEnded ? undefined : this.#parts.completion();
    if (completion === undefined) {
      const { log, requestId } = this.#facts;
      if (!this.#hasEnded) log.warn({ requestId }, 'a chat completion is incomplete or too large to be stored');
      this.#hasEnded = true;
      return undefined;
    }
    this.#hasEnded = true;
    // Releases the parts. Nothing is kept after the end.
    this.#parts.break();
    return this.#keep(completion).then(() => text);
  }

  async #keep(completion: Json): Promise<Json> {
    const { completions, request, requestId, deploymentId, log } = this.#facts;
    const shown = { ...completion, id: this.#id };
    await completions.keep(shown, request, { requestId, deploymentId, log });
    return shown;
  }
}
