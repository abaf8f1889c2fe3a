const SIGNALS = ['SIGINT', 'SIGTERM'] as const;

/** Hears the signals that end a server: the first asks for an orderly end, the second exits at once. */
export class Shutdown {
  readonly requested: Promise<void>;
  /** Aborted by the first signal: ends a load under way. */
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

  dispose(): void {
    for (const name of SIGNALS) process.off(name, this.#listener);
  }
}
