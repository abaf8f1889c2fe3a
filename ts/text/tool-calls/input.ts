/** Gets a character at each `yield`, undefined at the end of the text; returns what was read. */
export type Reading<T> = Generator<undefined, T, string | undefined>;
export type CallReading = Reading<boolean>;

const MAX_WORD = 256;

/** The text that a reader is given, with one character of looking ahead. A character that was looked at and not skipped is not part of what was read. */
export class CallInput {
  #ahead: string | undefined;
  #isOver = false;

  /** The character that was looked at and not skipped. */
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

  /** Also true where the text ends within it: a completion that stops there was whole but for its marker. */
  *literalOrEnd(text: string): CallReading {
    return (yield* this.literal(text)) || this.#isOver;
  }

  /** The one that comes, of texts of which none begins another. */
  *oneOf(...texts: readonly string[]): Reading<string | undefined> {
    for (let at = 0, left = texts; ; at++) {
      const char = yield* this.peek();
      left = left.filter((text) => text[at] === char);
      if (char === undefined || left.length === 0) return undefined;
      this.skip();
      if (at + 1 === left[0].length) return left[0];
    }
  }

  /** At most 256 characters that match; undefined if there are more or none. */
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
