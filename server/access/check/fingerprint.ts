import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

export const FINGERPRINT_BYTES = 32;
const SECRET_BYTES = 32;

/** HMAC-SHA-256 of a key, 32 bytes. */
export type Fingerprint = Buffer;

/**
 * Computes HMAC-SHA-256 under a secret that is random for each process. A fingerprint identifies a key in the memory of
 * this process and is worthless to any other.
 */
export class Fingerprinter {
  readonly #secret = randomBytes(SECRET_BYTES);

  of(key: string): Fingerprint {
    return createHmac('sha256', this.#secret).update(key).digest();
  }
}

/** Returns the fingerprint as text, for use as a map key. */
export function fingerprintText(fingerprint: Fingerprint): string {
  return fingerprint.toString('latin1');
}

/**
 * Stores fingerprints in one buffer, addressed by slot. With 100,000 keys, a buffer for each fingerprint would need
 * five times the memory.
 */
export class FingerprintSlots {
  #bytes = Buffer.alloc(64 * FINGERPRINT_BYTES);
  #numSlots = 0;
  readonly #free: number[] = [];

  /** Returns the slot that now holds `fingerprint`. */
  add(fingerprint: Fingerprint): number {
    const slot = this.#free.pop() ?? this.#numSlots++;
    if (this.#numSlots * FINGERPRINT_BYTES > this.#bytes.length) {
      const grown = Buffer.alloc(this.#bytes.length * 2);
      this.#bytes.copy(grown);
      this.#bytes = grown;
    }
    fingerprint.copy(this.#bytes, slot * FINGERPRINT_BYTES);
    return slot;
  }

  release(slot: number): void {
    this.#slice(slot).fill(0);
    this.#free.push(slot);
  }

  /** Compares in constant time. */
  equals(slot: number, fingerprint: Fingerprint): boolean {
    return timingSafeEqual(this.#slice(slot), fingerprint);
  }

  #slice(slot: number): Buffer {
    return this.#bytes.subarray(slot * FINGERPRINT_BYTES, (slot + 1) * FINGERPRINT_BYTES);
  }
}
