import { randomBytes } from 'node:crypto';
import { HmacSha256, type Words } from './hmac';

const NUM_WORDS = 8;
const SECRET_BYTES = 32;

export type Fingerprint = Words;

/** HMAC-SHA-256 under a random secret of this process: tells keys apart in memory and is worth nothing elsewhere. */
export class Fingerprinter {
  readonly #hmac = new HmacSha256(randomBytes(SECRET_BYTES));

  /** @param key Visible ASCII, as a header's bearer value is. */
  of(key: string): Fingerprint {
    return this.#hmac.of(key);
  }
}

/** For maps and names. */
export function fingerprintText(fingerprint: Fingerprint): string {
  return fingerprint.join();
}

/** Fingerprints side by side in one array, by slot: an array of its own for each of 100,000 keys would cost five times the memory. */
export class FingerprintSlots {
  #words = new Int32Array(64 * NUM_WORDS);
  #numSlots = 0;
  readonly #free: number[] = [];

  add(fingerprint: Fingerprint): number {
    const slot = this.#free.pop() ?? this.#numSlots++;
    if (this.#numSlots * NUM_WORDS > this.#words.length) {
      const grown = new Int32Array(this.#words.length * 2);
      grown.set(this.#words);
      this.#words = grown;
    }
    this.#words.set(fingerprint, slot * NUM_WORDS);
    return slot;
  }

  release(slot: number): void {
    this.#words.fill(0, slot * NUM_WORDS, (slot + 1) * NUM_WORDS);
    this.#free.push(slot);
  }

  /** In constant time: every word is looked at, whatever the ones before say. */
  equals(slot: number, fingerprint: Fingerprint): boolean {
    const words = this.#words;
    const start = slot * NUM_WORDS;
    let difference = 0;
    for (let i = 0; i < NUM_WORDS; i++) difference |= words[start + i] ^ fingerprint[i];
    return difference === 0;
  }
}
