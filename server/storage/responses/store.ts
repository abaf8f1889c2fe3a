/** An item of the input or output of a response. */
export interface StoredItem {
  readonly type?: string | undefined;
  readonly id?: string | undefined;
  readonly role?: string | undefined;
  readonly status?: string | undefined;
  readonly content?: unknown;
}

/** A response and what a later request needs to continue it. */
export interface StoredResponse {
  /** The response as it was sent. */
  response: { id: string; previous_response_id: string | null; output: readonly StoredItem[] };
  /** The input of the request, without earlier turns. */
  input: readonly StoredItem[];
  /** The deployment that made it. Not sent. Absent outside the service. */
  deployment_id?: string;
}

/**
 * Keeps responses and chat completions for later requests of the same owner. Those of another owner do not exist for
 * it.
 */
export interface ResponseStore {
  /**
   * Returns false for a text that is too large. Nothing is stored then.
   * @param text The JSON text of a {@link StoredResponse} or of a stored chat completion.
   */
  put(owner: string, id: string, text: string): Promise<boolean>;
  /**
   * Replaces a text. Returns false as `put`, and undefined if there is none. Runs no two changes of one text at the
   * same time, and none while it is deleted.
   */
  update(owner: string, id: string, change: (text: string) => string): Promise<boolean | undefined>;
  /** Returns the JSON text. Reading renews the time to live. */
  get(owner: string, id: string): Promise<string | undefined>;
  /** As `get`, without renewing it. */
  peek(owner: string, id: string): Promise<string | undefined>;
  /** Returns the ids of all texts of an owner, in any order. Some may have expired. */
  ids(owner: string): Promise<string[]>;
  /** Returns whether there was one. */
  delete(owner: string, id: string): Promise<boolean>;
}

/** Limit of one stored text. Larger ones are not stored: each read parses the text in the thread of the server. */
export const MAX_TEXT_BYTES = 4 * 2 ** 20;
/** A stored text counts at least as a block of a disk, so that the limit in bytes bounds their number. */
const MIN_ENTRY_BYTES = 4096;

export interface StoreLimits {
  /**
   * Maximum size of all responses together, each at least {@link MIN_ENTRY_BYTES}. The owner with the most bytes loses
   * the least recently used.
   */
  maxBytes: number;
  /** How long a response is kept after its last use. */
  ttlMs: number;
}

export const DEFAULT_RESPONSE_LIMITS: StoreLimits = { maxBytes: 256 * 2 ** 20, ttlMs: 30 * 86_400_000 };

interface Entry {
  owner: string;
  numBytes: number;
  usedMs: number;
}

/** The entries of one owner, in the order of their last use. */
interface Share {
  keys: Set<string>;
  numBytes: number;
}

/** Entries of all owners in the order of their last use, with their sizes. Decides which ones are dropped. */
export class UseOrder {
  readonly #limits: StoreLimits;
  readonly #now: () => number;
  readonly #entries = new Map<string, Entry>();
  readonly #shares = new Map<string, Share>();
  #numBytes = 0;

  constructor(limits: StoreLimits, now: () => number) {
    this.#limits = limits;
    this.#now = now;
  }

  /** Whether a text of this size may be stored. */
  fits(numBytes: number): boolean {
    return numBytes <= Math.min(this.#limits.maxBytes, MAX_TEXT_BYTES);
  }

  /**
   * Adds an entry or marks it as used. Returns the keys of the entries to drop, which it forgets. The entry is not
   * among them if it fits and is not expired.
   * @param key Unique among all owners.
   */
  use(owner: string, key: string, textBytes: number, usedMs = this.#now()): string[] {
    this.remove(key);
    const numBytes = Math.max(textBytes, MIN_ENTRY_BYTES);
    this.#entries.set(key, { owner, numBytes, usedMs });
    const share = this.#shares.get(owner) ?? { keys: new Set(), numBytes: 0 };
    this.#shares.set(owner, share);
    share.keys.add(key);
    share.numBytes += numBytes;
    this.#numBytes += numBytes;
    return [...this.dropExpired(), ...this.#excess(key)];
  }

  remove(key: string): void {
    const entry = this.#entries.get(key);
    if (entry === undefined) return;
    const { owner, numBytes } = entry;
    const share = this.#shares.get(owner)!;
    this.#entries.delete(key);
    share.keys.delete(key);
    share.numBytes -= numBytes;
    this.#numBytes -= numBytes;
    if (share.keys.size === 0) this.#shares.delete(owner);
  }

  isExpired(usedMs: number): boolean {
    return usedMs + this.#limits.ttlMs < this.#now();
  }

  /** Returns the keys of expired entries, which it forgets. */
  dropExpired(): string[] {
    const dropped: string[] = [];
    for (const [key, { usedMs }] of this.#entries) {
      if (!this.isExpired(usedMs)) break;
      this.remove(key);
      dropped.push(key);
    }
    return dropped;
  }

  /** @param used The entry that stays. */
  #excess(used: string): string[] {
    const dropped: string[] = [];
    while (this.#numBytes > this.#limits.maxBytes) {
      const key = this.#oldestOfLargest(used);
      if (key === undefined) break;
      this.remove(key);
      dropped.push(key);
    }
    return dropped;
  }

  /** Returns the oldest entry of the owner with the most bytes. Skips owners that have `used` alone. */
  #oldestOfLargest(used: string): string | undefined {
    let largest: Share | undefined;
    for (const share of this.#shares.values()) {
      const isOther = share.keys.size > 1 || !share.keys.has(used);
      if (isOther && share.numBytes > (largest?.numBytes ?? -1)) largest = share;
    }
    return largest?.keys.values().next().value;
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

  put(owner: string, id: string, text: string): Promise<boolean> {
    const fits = this.#order.fits(Buffer.byteLength(text));
    if (fits) this.#use(owner, `${owner}\n${id}`, text);
    return Promise.resolve(fits);
  }

  async update(owner: string, id: string, change: (text: string) => string): Promise<boolean | undefined> {
    // Nothing else runs between reading and writing.
    const found = this.#peek(owner, id);
    return found === undefined ? undefined : this.put(owner, id, change(found));
  }

  async get(owner: string, id: string): Promise<string | undefined> {
    const text = await this.peek(owner, id);
    if (text !== undefined) this.#use(owner, `${owner}\n${id}`, text);
    return text;
  }

  peek(owner: string, id: string): Promise<string | undefined> {
    return Promise.resolve(this.#peek(owner, id));
  }

  ids(owner: string): Promise<string[]> {
    const prefix = `${owner}\n`;
    const keys = [...this.#texts.keys()].filter((key) => key.startsWith(prefix));
    return Promise.resolve(keys.map((key) => key.slice(prefix.length)));
  }

  delete(owner: string, id: string): Promise<boolean> {
    return Promise.resolve(this.#delete(`${owner}\n${id}`));
  }

  #peek(owner: string, id: string): string | undefined {
    const key = `${owner}\n${id}`;
    const found = this.#texts.get(key);
    if (found === undefined || !this.#order.isExpired(found.usedMs)) return found?.text;
    this.#delete(key);
    return undefined;
  }

  #delete(key: string): boolean {
    this.#order.remove(key);
    return this.#texts.delete(key);
  }

  #use(owner: string, key: string, text: string): void {
    this.#texts.set(key, { text, usedMs: this.#now() });
    for (const dropped of this.#order.use(owner, key, Buffer.byteLength(text))) this.#texts.delete(dropped);
  }
}
