const MAX_CHARS = 512;

/**
 * Collects a text from small parts. Appending to a string would build a long chain that the garbage collector
 * traverses.
 */
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
