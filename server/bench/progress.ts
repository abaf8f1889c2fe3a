const MIN_INTERVAL_MS = 250;

/** A progress line on a terminal, updated at most four times per second. */
export class Progress {
  readonly #isShown: boolean;
  #lastAt = -Infinity;

  constructor(isQuiet: boolean) {
    this.#isShown = !isQuiet && process.stderr.isTTY;
  }

  show(text: string): void {
    const now = performance.now();
    if (!this.#isShown || now - this.#lastAt < MIN_INTERVAL_MS) return;
    this.#lastAt = now;
    process.stderr.write(`\r\x1b[K${text}`);
  }

  clear(): void {
    if (this.#isShown) process.stderr.write('\r\x1b[K');
  }
}
