import type { ChatMessage } from '../../../ts';
import type { InputItem } from './schema';

/** A response and what a later request needs to continue it. */
export interface StoredResponse {
  /** The response as it was sent. */
  response: { id: string; previous_response_id: string | null; output: readonly { id: string }[] };
  /** The input of the request, without earlier turns. */
  input: readonly InputItem[];
  /** The messages of this turn: those of the input and the model's. */
  messages: readonly ChatMessage[];
}

/** Keeps responses for later requests of the same owner. Another owner's response does not exist for it. */
export interface ResponseStore {
  /** @param text The JSON text of a {@link StoredResponse}. */
  put(owner: string, id: string, text: string): Promise<void>;
  /** Returns the JSON text. Reading renews the time to live. */
  get(owner: string, id: string): Promise<string | undefined>;
  /** Returns whether there was one. */
  delete(owner: string, id: string): Promise<boolean>;
}

export interface StoreLimits {
  /** Maximum size of all responses together. The least recently used are dropped. */
  maxBytes: number;
  /** How long a response is kept after its last use. */
  ttlMs: number;
}

/** Entries in the order of their last use, with their sizes. Decides which ones are dropped. */
export class UseOrder {
  readonly #limits: StoreLimits;
  readonly #now: () => number;
  readonly #entries = new Map<string, { numBytes: number; usedMs: number }>();
  #numBytes = 0;

  constructor(limits: StoreLimits, now: () => number) {
    this.#limits = limits;
    this.#now = now;
  }

  get numBytes(): number {
    return this.#numBytes;
  }

  /** Adds an entry or marks it as used. Returns the keys of the entries to drop, which it forgets. */
  use(key: string, numBytes: number, usedMs = this.#now()): string[] {
    this.remove(key);
    this.#entries.set(key, { numBytes, usedMs });
    this.#numBytes += numBytes;
    return this.#dropped();
  }

  remove(key: string): void {
    this.#numBytes -= this.#entries.get(key)?.numBytes ?? 0;
    this.#entries.delete(key);
  }

  isExpired(usedMs: number): boolean {
    return usedMs + this.#limits.ttlMs < this.#now();
  }

  #dropped(): string[] {
    const dropped: string[] = [];
    for (const [key, { usedMs }] of this.#entries) {
      if (this.#numBytes <= this.#limits.maxBytes && !this.isExpired(usedMs)) break;
      this.remove(key);
      dropped.push(key);
    }
    return dropped;
  }
}

/** Keeps responses until the process ends. */
export class MemoryResponseStore implements ResponseStore {
  readonly #texts = new Map<string, { text: string; usedMs: number }>();
  readonly #order: UseOrder;
  readonly #now: () => number;

  constructor(limits: StoreLimits, now: () => number = Date.now) {
    this.#order = new UseOrder(limits, now);
    this.#now = now;
  }

  put(owner: string, id: string, text: string): Promise<void> {
    this.#use(`${owner}\n${id}`, text);
    return Promise.resolve();
  }

  get(owner: string, id: string): Promise<string | undefined> {
    const key = `${owner}\n${id}`;
    const found = this.#texts.get(key);
    if (found === undefined) return Promise.resolve(undefined);
    if (this.#order.isExpired(found.usedMs)) return this.delete(owner, id).then(() => undefined);
    this.#use(key, found.text);
    return Promise.resolve(found.text);
  }

  delete(owner: string, id: string): Promise<boolean> {
    const key = `${owner}\n${id}`;
    this.#order.remove(key);
    return Promise.resolve(this.#texts.delete(key));
  }

  #use(key: string, text: string): void {
    this.#texts.set(key, { text, usedMs: this.#now() });
    for (const dropped of this.#order.use(key, Buffer.byteLength(text))) this.#texts.delete(dropped);
  }
}
