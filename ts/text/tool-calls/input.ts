/** A reader as a coroutine: each `yield` receives the next character, or undefined at the end of the text. */
export type Reading<T> = Generator<undefined, T, string | undefined>;
/** Returns true if the text matches. */
export type CallReading = Reading<boolean>;

const MAX_WORD = 256;

/**
 * The input of a reader, with one character of lookahead. A character that was peeked but not skipped is not consumed.
 */
export class CallInput {
  #ahead: string | undefined;
  #isOver = false;
  /** The completion is incomplete, and its text is over. */
  isCut = false;

  /** The character that was peeked but not skipped, or the text that was taken back. */
  get ahead(): string | undefined {
    return this.#ahead;
  }

  *peek(): Reading<string | undefined> {
    if (this.#ahead === undefined && !this.#isOver) {
      this.#ahead = yield;
      this.#isOver = this.#ahead === undefined;
    }
    return this.#ahead;
  }

  skip(): void {
    this.#ahead = undefined;
  }

  /** Takes back a character that was skipped. A reader that ends may take back a longer text, which is read again. */
  unskip(text: string): void {
    this.#ahead = text;
  }

  *next(): Reading<string | undefined> {
    const char = yield* this.peek();
    this.skip();
    return char;
  }

  *blanks(): Reading<void> {
    for (;;) {
      const char = yield* this.peek();
      if (char === undefined || !isBlank(char)) return;
      this.skip();
    }
  }

  *literal(text: string): CallReading {
    return (yield* this.oneOf(text)) !== undefined;
  }

  /** Also returns true if the text ends inside the literal: such a completion lacks only its closing marker. */
  *literalOrEnd(text: string): CallReading {
    return (yield* this.literal(text)) || this.#isOver;
  }

  /** Like {@link literalOrEnd}, for one of several texts. */
  *oneOfOrEnd(...texts: readonly string[]): CallReading {
    return (yield* this.oneOf(...texts)) !== undefined || this.#isOver;
  }

  /** Returns the text that comes next, or undefined. No text may be a prefix of another. */
  *oneOf(...texts: readonly string[]): Reading<string | undefined> {
    for (let at = 0, left = texts; ; at++) {
      const char = yield* this.peek();
      left = left.filter((text) => text[at] === char);
      if (char === undefined || left.length === 0) return undefined;
      this.skip();
      if (at + 1 === left[0].length) return left[0];
    }
  }

  /** Returns the characters that match. Returns undefined for none, or for more than 256. */
  *word(pattern: RegExp): Reading<string | undefined> {
    for (let word = ''; word.length <= MAX_WORD;) {
      const char = yield* this.peek();
      if (char === undefined || !pattern.test(char)) return word === '' ? undefined : word;
      word += char;
      this.skip();
    }
    return undefined;
  }
}

export function isBlank(char: string): boolean {
  return char === ' ' || char === '\n' || char === '\t' || char === '\r';
}
