/** What may fail at which time, what failed although it may not, and how often things happened. */

/** `all`: the service is away. `changes`: changes of the management API may be refused. Otherwise a deployment. */
export type Scope = string;

interface Excuse {
  scope: Scope;
  fromMs: number;
  untilMs: number;
}

const MAX_EXAMPLES = 200;

export class Ledger {
  readonly #startMs = performance.now();
  readonly #excuses: Excuse[] = [];
  readonly counts: Record<string, number> = {};
  readonly problems: string[] = [];
  numProblems = 0;

  count(what: string, by = 1): void {
    this.counts[what] = (this.counts[what] ?? 0) + by;
  }

  problem(text: string): void {
    this.numProblems++;
    const line = `${((performance.now() - this.#startMs) / 1000).toFixed(1)} s: ${text}`;
    if (this.problems.length < MAX_EXAMPLES) this.problems.push(line);
    console.error(`PROBLEM ${line}`);
  }

  note(text: string): void {
    console.error(`${((performance.now() - this.#startMs) / 1000).toFixed(1)} s: ${text}`);
  }

  /** From now until the returned function is called, errors in this scope are allowed. */
  excuse(scope: Scope): () => void {
    const excuse = { scope, fromMs: performance.now(), untilMs: Infinity };
    this.#excuses.push(excuse);
    return () => {
      excuse.untilMs = performance.now();
    };
  }

  /** Whether an error was allowed at any time of a request that began at `fromMs` and ends now. */
  isExcused(scope: Scope, fromMs: number): boolean {
    return this.#excuses.some(
      (excuse) => (excuse.scope === 'all' || excuse.scope === scope) && excuse.untilMs >= fromMs,
    );
  }
}
