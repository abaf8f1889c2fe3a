/** Prompts are compared in pieces of this size. */
const PIECE_BYTES = 256;
const MAX_PIECES = 128;
/** The first kilobyte. Gateways without history hash it to choose the same replica. */
const NUM_LEADING_PIECES = 4;
const DEFAULT_MAX_ENTRIES = 65_536;

/** The leading pieces of a prompt. Each hash includes all pieces before it. */
export type Prefix = readonly number[];

/**
 * Remembers which replicas have seen which prompt prefixes. Approximate, because a replica may have evicted them.
 * Bounded: the least recently used prefixes are evicted first.
 */
export class PrefixIndex {
  readonly #replicas = new Map<number, string[]>();
  readonly #maxEntries: number;

  constructor(maxEntries = DEFAULT_MAX_ENTRIES) {
    this.#maxEntries = maxEntries;
  }

  get size(): number {
    return this.#replicas.size;
  }

  /**
   * Returns the number of leading prompt pieces that each replica has seen. Replicas that have seen none are absent.
   */
  match(prefix: Prefix): Map<string, number> {
    const lengths = new Map<string, number>();
    for (const [depth, hash] of prefix.entries()) {
      const replicas = this.#replicas.get(hash);
      if (replicas === undefined) break;
      // A replica that has seen this piece has seen all pieces before it.
      for (const replica of replicas) lengths.set(replica, depth + 1);
    }
    return lengths;
  }

  /** Records that the replica receives this prompt. */
  add(prefix: Prefix, replicaId: string): void {
    for (const hash of prefix) {
      const replicas = this.#replicas.get(hash) ?? [];
      this.#replicas.delete(hash);
      this.#replicas.set(hash, replicas.includes(replicaId) ? replicas : [...replicas, replicaId]);
    }
    for (const hash of this.#replicas.keys()) {
      if (this.#replicas.size <= this.#maxEntries) return;
      this.#replicas.delete(hash);
    }
  }

  /** Removes a replica. */
  forget(replicaId: string): void {
    for (const [hash, replicas] of this.#replicas) {
      if (!replicas.includes(replicaId)) continue;
      const rest = replicas.filter((id) => id !== replicaId);
      if (rest.length === 0) this.#replicas.delete(hash);
      else this.#replicas.set(hash, rest);
    }
  }
}

/** Prompts begin at these fields. Fields before them (model, temperature) do not affect the prefix cache. */
const PROMPT_FIELDS = ['"messages"', '"prompt"', '"input"'].map((field) => Buffer.from(field));
const PROMPT_FIELD_WITHIN = 4_096;

/** Returns the prefix of a request body. `seed` separates deployments. Empty for a body shorter than one piece. */
export function prefixOf(body: Buffer, seed: string): Prefix {
  const head = body.subarray(0, PROMPT_FIELD_WITHIN);
  const starts = PROMPT_FIELDS.map((field) => head.indexOf(field)).filter((at) => at >= 0);
  const start = starts.length === 0 ? 0 : Math.min(...starts);
  const numPieces = Math.min(MAX_PIECES, Math.floor((body.length - start) / PIECE_BYTES));
  const prefix: number[] = [];
  let state = hashText(seed);
  for (let piece = 0; piece < numPieces; piece++) {
    state = hashBytes(body, start + piece * PIECE_BYTES, state);
    prefix.push(state.high * 0x20_0000 + (state.low >>> 11));
  }
  return prefix;
}

/** Returns the replica that every gateway prefers for this prompt, whatever it has seen (rendezvous hashing). */
export function preferred<T extends { readonly id: string }>(prefix: Prefix, replicas: readonly T[]): T {
  const leading = prefix[Math.min(NUM_LEADING_PIECES, prefix.length) - 1];
  let best = replicas[0];
  let bestScore = -1;
  for (const replica of replicas) {
    const { high, low } = hashText(`${leading}:${replica.id}`);
    const score = high * 0x20_0000 + (low >>> 11);
    if (score > bestScore) [best, bestScore] = [replica, score];
  }
  return best;
}

/** Two independent 32-bit hashes in the style of FNV-1a. 53 of their bits form a number. */
interface Sum {
  high: number;
  low: number;
}

function hashBytes(bytes: Buffer, start: number, { high, low }: Sum): Sum {
  for (let i = start; i < start + PIECE_BYTES; i++) {
    high = Math.imul(high ^ bytes[i], 0x0100_0193);
    low = Math.imul(low ^ bytes[i], 0x85eb_ca6b) ^ (low >>> 13);
  }
  return finished(high, low);
}

function hashText(text: string): Sum {
  let high = 0x811c_9dc5;
  let low = 0x9747_b28c;
  for (let i = 0; i < text.length; i++) {
    high = Math.imul(high ^ text.charCodeAt(i), 0x0100_0193);
    low = Math.imul(low ^ text.charCodeAt(i), 0x85eb_ca6b) ^ (low >>> 13);
  }
  return finished(high, low);
}

function finished(high: number, low: number): Sum {
  high = Math.imul(high ^ (high >>> 16), 0x85eb_ca6b);
  low = Math.imul(low ^ (low >>> 15), 0xc2b2_ae35);
  return { high: (high ^ (high >>> 13)) >>> 0, low: (low ^ (low >>> 16)) >>> 0 };
}
