/** HMAC-SHA-256 of short ASCII texts under one secret, as eight 32-bit words. */
export type Words = Int32Array;

const NUM_ROUNDS = 64;
const BLOCK_BYTES = 64;
const NUM_WORDS = 8;
/** The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
const ROUND_CONSTANTS = Int32Array.from(primes(NUM_ROUNDS), (prime) => fraction(Math.cbrt(prime)));
/** Of the square roots of the first eight. */
const INITIAL_STATE = Int32Array.from(primes(NUM_WORDS), (prime) => fraction(Math.sqrt(prime)));

/**
 * In script rather than by `node:crypto`: for 60 bytes a native hash costs more for its objects than for its work, and what the collector
 * must do for them is most of the slowest percent of key checks. No step depends on the data, so that time says nothing of it.
 */
export class HmacSha256 {
  readonly #inner: Words;
  readonly #outer: Words;
  readonly #schedule = new Int32Array(NUM_ROUNDS);

  /** @param secret At most one block of 64 bytes. */
  constructor(secret: Uint8Array) {
    if (secret.length > BLOCK_BYTES)
      throw new RangeError(`expected a secret of at most ${BLOCK_BYTES} bytes, got ${secret.length}`);
    this.#inner = this.#absorb(secret, 0x36);
    this.#outer = this.#absorb(secret, 0x5c);
  }

  /** @param text ASCII: each character is one byte. */
  of(text: string): Words {
    const schedule = this.#schedule;
    const state = this.#inner.slice();
    const numBlocks = (text.length + 9 + BLOCK_BYTES - 1) >> 6;
    for (let block = 0; block < numBlocks; block++) {
      for (let i = 0; i < 16; i++) schedule[i] = wordAt(text, block * BLOCK_BYTES + i * 4);
      if (block === numBlocks - 1) schedule[15] = (BLOCK_BYTES + text.length) * 8;
      compress(state, schedule);
    }
    schedule.set(state);
    schedule[NUM_WORDS] = 0x80 << 24;
    schedule.fill(0, NUM_WORDS + 1, 15);
    schedule[15] = (BLOCK_BYTES + NUM_WORDS * 4) * 8;
    state.set(this.#outer);
    compress(state, schedule);
    return state;
  }

  #absorb(secret: Uint8Array, pad: number): Words {
    const block = Buffer.alloc(BLOCK_BYTES, pad);
    secret.forEach((byte, i) => {
      block[i] ^= byte;
    });
    for (let i = 0; i < 16; i++) this.#schedule[i] = block.readInt32BE(i * 4);
    const state = Int32Array.from(INITIAL_STATE);
    compress(state, this.#schedule);
    return state;
  }
}

/** Four bytes of the padded text: after its end comes one bit, then zeros. */
function wordAt(text: string, position: number): number {
  if (position + 4 <= text.length) {
    return (
      (text.charCodeAt(position) << 24) |
      (text.charCodeAt(position + 1) << 16) |
      (text.charCodeAt(position + 2) << 8) |
      text.charCodeAt(position + 3)
    );
  }
  let word = 0;
  for (let i = position; i < position + 4; i++)
    word = (word << 8) | (i < text.length ? text.charCodeAt(i) : i === text.length ? 0x80 : 0);
  return word;
}

/** One block of SHA-256; the first 16 words of the schedule are the block. The names are those of FIPS 180-4. */
function compress(state: Words, w: Int32Array): void {
  for (let i = 16; i < NUM_ROUNDS; i++) {
    const x = w[i - 15];
    const y = w[i - 2];
    const sigma0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const sigma1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = (sigma0 + w[i - 7] + sigma1 + w[i - 16]) | 0;
  }
  let a = state[0];
  let b = state[1];
  let c = state[2];
  let d = state[3];
  let e = state[4];
  let f = state[5];
  let g = state[6];
  let h = state[7];
  for (let i = 0; i < NUM_ROUNDS; i++) {
    const sum1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (h + sum1 + ((e & f) ^ (~e & g)) + ROUND_CONSTANTS[i] + w[i]) | 0;
    const sum0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const t2 = (sum0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
  state[4] += e;
  state[5] += f;
  state[6] += g;
  state[7] += h;
}

function primes(count: number): number[] {
  const found: number[] = [];
  for (let n = 2; found.length < count; n++) if (found.every((prime) => n % prime !== 0)) found.push(n);
  return found;
}

function fraction(value: number): number {
  return Math.floor((value % 1) * 2 ** 32) | 0;
}
