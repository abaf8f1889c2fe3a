import type { ReasoningFormat, ThinkingState } from './format';

/**
 * Counts the tokens between the reasoning markers. Works on their bytes, so it does not matter how markers are
 * tokenized.
 */
export class ReasoningTokenCounter {
  readonly #open: Uint8Array;
  readonly #close: Uint8Array;
  readonly #isRepeated: boolean;
  #state: ThinkingState;
  #numMatched = 0;
  /** The count at the start of the marker that is being matched. */
  #numBefore = 0;
  numTokens = 0;

  constructor({ open, close, isRepeated = false }: ReasoningFormat, state: ThinkingState) {
    this.#open = Buffer.from(open);
    this.#close = Buffer.from(close);
    this.#isRepeated = isRepeated;
    this.#state = isRepeated && state === 'after' ? 'before' : state;
  }

  add(bytes: Uint8Array): void {
    if (this.#state === 'after') return;
    const wasInside = this.#state === 'inside';
    for (const [i, byte] of bytes.entries()) {
      if (this.#state === 'before') this.#takeBefore(byte);
      else if (this.#takeInside(byte, this.numTokens + (wasInside && i > 0 ? 1 : 0))) return;
    }
    if (wasInside) this.numTokens++;
  }

  #takeBefore(byte: number): void {
    if (byte !== this.#open[this.#numMatched]) {
      if (!this.#isRepeated && (this.#numMatched > 0 || !isBlank(byte))) return this.#enter('after');
      this.#numMatched = 0;
    }
    if (byte === this.#open[this.#numMatched] && ++this.#numMatched === this.#open.length) this.#enter('inside');
  }

  /** Returns true at the end of the reasoning. */
  #takeInside(byte: number, numBefore: number): boolean {
    if (byte !== this.#close[this.#numMatched]) this.#numMatched = 0;
    if (byte !== this.#close[this.#numMatched]) return false;
    if (this.#numMatched === 0) this.#numBefore = numBefore;
    if (++this.#numMatched < this.#close.length) return false;
    this.numTokens = this.#numBefore;
    this.#enter(this.#isRepeated ? 'before' : 'after');
    return true;
  }

  #enter(state: ThinkingState): void {
    this.#state = state;
    this.#numMatched = 0;
  }
}

function isBlank(byte: number): boolean {
  return byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);
}
