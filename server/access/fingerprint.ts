import { createHmac, createSecretKey, type KeyObject, randomBytes, timingSafeEqual } from 'node:crypto';

const FINGERPRINT_BYTES = 32;

/** HMAC-SHA-256 under a random secret of this process: tells keys apart in memory and is worth nothing elsewhere. */
export class Fingerprinter {
  readonly #secret: KeyObject = createSecretKey(randomBytes(FINGERPRINT_BYTES));

  of(key: string): Buffer {
    return createHmac('sha256', this.#secret).update(key).digest();
  }
}

/** Fingerprints side by side in one buffer, by slot: a Buffer of its own for each of 100,000 keys would cost five times the memory. */
export class FingerprintSlots {
  #bytes = Buffer.alloc(64 * FINGERPRINT_BYTES);
  #numSlots = 0;
  readonly #free: number[] = [];

  add(fingerprint: Buffer): number {
    const slot = this.#free.pop() ?? this.#numSlots++;
    if (this.#numSlots * FINGERPRINT_BYTES > this.#bytes.length) this.#bytes = Buffer.concat([this.#bytes], this.#bytes.length * 2);
    fingerprint.copy(this.#bytes, slot * FINGERPRINT_BYTES);
    return slot;
  }

  release(slot: number): void {
    this.#bytes.fill(0, slot * FINGERPRINT_BYTES, (slot + 1) * FINGERPRINT_BYTES);
    this.#free.push(slot);
  }

  /** In constant time. */
  equals(slot: number, fingerprint: Buffer): boolean {
    return timingSafeEqual(this.#bytes.subarray(slot * FINGERPRINT_BYTES, (slot + 1) * FINGERPRINT_BYTES), fingerprint);
  }
}
