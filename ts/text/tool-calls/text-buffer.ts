const MAX_CHARS = 512;

/** A text that grows by small parts. A string that is added to again and again would be a chain of strings, one per part, that the garbage collector follows. */
export class TextBuffer {
  readonly #pieces: string[] = [];
  readonly #parts: string[] = [];
  length = 0;

  add(text: string): void {
    this.length += text.length;
    if (this.#parts.push(text) < MAX_CHARS) return;
    this.#pieces.push(this.#parts.join(''));
    this.#parts.length = 0;
  }

  toString(): string {
    return this.#pieces.join('') + this.#parts.join('');
  }
}
