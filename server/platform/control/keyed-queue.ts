/**
 * Runs one task at a time for each key. Items that arrive while a task runs are passed together to the next task of
 * that key. Different keys run concurrently.
 */
export class KeyedQueue<T> {
  readonly #run: (id: string, items: T[]) => Promise<void>;
  readonly #waiting = new Map<string, { items: T[]; done: Promise<void> }>();
  readonly #running = new Map<string, Promise<void>>();

  /** @param run Must not reject. */
  constructor(run: (id: string, items: T[]) => Promise<void>) {
    this.#run = run;
  }

  /** Resolves when a task that started after this call has finished. */
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

  /** Resolves when no task runs or waits. */
  async idle(): Promise<void> {
    while (this.#waiting.size > 0 || this.#running.size > 0)
      await Promise.all([...this.#running.values(), ...[...this.#waiting.values()].map(({ done }) => done)]);
  }
}
