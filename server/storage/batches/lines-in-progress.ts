import { MAX_BYTES_IN_PROGRESS } from './limits';

interface Use {
  lines: number;
  bytes: number;
}

/** Counts the lines in progress and the bytes of their requests, of all batches and of each owner. */
export class LinesInProgress {
  readonly #all: Use = { lines: 0, bytes: 0 };
  readonly #byOwner = new Map<string, Use>();

  get numLines(): number {
    return this.#all.lines;
  }

  numLinesOf(ownerId: string): number {
    return this.#byOwner.get(ownerId)?.lines ?? 0;
  }

  /** Whether a line of an owner may be read into memory. */
  hasSpace(ownerId: string, bytes: number): boolean {
    return (
      this.#all.bytes + bytes <= MAX_BYTES_IN_PROGRESS &&
      (this.#byOwner.get(ownerId)?.bytes ?? 0) + bytes <= MAX_BYTES_IN_PROGRESS / 2
    );
  }

  /** Call the returned function once, when the line has ended. */
  enter(ownerId: string, bytes: number): () => void {
    const own = this.#byOwner.get(ownerId) ?? { lines: 0, bytes: 0 };
    this.#byOwner.set(ownerId, own);
    const count = (lines: number, change: number): void => {
      for (const use of [this.#all, own]) {
        use.lines += lines;
        use.bytes += change;
      }
    };
    count(1, bytes);
    return () => {
      count(-1, -bytes);
      if (own.lines === 0) this.#byOwner.delete(ownerId);
    };
  }
}
