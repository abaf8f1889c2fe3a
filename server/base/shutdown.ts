const SIGNALS = ['SIGINT', 'SIGTERM'] as const;

/** Handles SIGINT and SIGTERM. The first signal starts a graceful shutdown, the second exits immediately. */
export class Shutdown {
  readonly requested: Promise<void>;
  /** Aborted by the first signal. Cancels a model load in progress. */
  readonly signal: AbortSignal;
  readonly #listener: (name: NodeJS.Signals) => void;

  constructor() {
    const controller = new AbortController();
    this.signal = controller.signal;
    let request: () => void;
    this.requested = new Promise((resolve) => {
      request = resolve;
    });
    this.#listener = (name) => {
      if (controller.signal.aborted) process.exit(name === 'SIGINT' ? 130 : 143);
      controller.abort();
      request();
    };
    for (const name of SIGNALS) process.on(name, this.#listener);
  }

  /** Removes the signal handlers. */
  dispose(): void {
    for (const name of SIGNALS) process.off(name, this.#listener);
  }
}
