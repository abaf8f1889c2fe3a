/** Finds the `data:` lines of a stream of events in whatever pieces it comes; comments and other fields are skipped. */
export class SseReader {
  readonly #onData: (data: string) => void;
  #rest = '';

  constructor(onData: (data: string) => void) {
    this.#onData = onData;
  }

  feed(text: string): void {
    const all = this.#rest === '' ? text : this.#rest + text;
    let from = 0;
    for (let end = all.indexOf('\n'); end >= 0; end = all.indexOf('\n', from)) {
      if (all.startsWith('data:', from))
        this.#onData(all.slice(from + (all[from + 5] === ' ' ? 6 : 5), all[end - 1] === '\r' ? end - 1 : end));
      from = end + 1;
    }
    this.#rest = all.slice(from);
  }
}
