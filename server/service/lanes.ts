/** Work in lanes: in one lane a step at a time, with all that came while the one before ran; lanes do not wait for each other. */
export class Lanes<T> {
  readonly #run: (id: string, items: T[]) => Promise<void>;
  readonly #waiting = new Map<string, { items: T[]; done: Promise<void> }>();
  readonly #running = new Map<string, Promise<void>>();

  /** @param run Never rejects. */
  constructor(run: (id: string, items: T[]) => Promise<void>) {
    this.#run = run;
  }

  /** Resolves when a step that began after this call is over. */
  add(id: string, ...items: T[]): Promise<void> {
    const waiting = this.#waiting.get(id);
    if (waiting !== undefined) {
      waiting.items.push(...items);
      return waiting.done;
    }
    const next = { items, done: Promise.resolve() };
    this.#waiting.set(id, next);
    next.done = (this.#running.get(id) ?? Promise.resolve()).then(() => {
      this.#waiting.delete(id);
      const running = this.#run(id, next.items).finally(() => {
        if (this.#running.get(id) === running) this.#running.delete(id);
      });
      this.#running.set(id, running);
      return running;
    });
    return next.done;
  }

  /** When nothing runs or waits. */
  async idle(): Promise<void> {
    while (this.#waiting.size > 0 || this.#running.size > 0)
      await Promise.all([...this.#running.values(), ...[...this.#waiting.values()].map(({ done }) => done)]);
  }
}
