import type { Log } from '../base/log';

/** Terminal and clock, which tests replace. */
export interface ProgressIo {
  isTty: boolean;
  write: (text: string) => void;
  now: () => number;
}

const STDERR_IO: ProgressIo = {
  isTty: process.stderr.isTTY === true,
  write: (text) => {
    process.stderr.write(text);
  },
  now: () => performance.now(),
};
const LOG_INTERVAL_MS = 10_000;

/**
 * Reports the progress of a model load: a percentage in place on a terminal, otherwise a log line every ten seconds.
 */
export class LoadProgress {
  readonly #log: Log;
  readonly #io: ProgressIo;
  #lastMs: number;
  #shown = '';

  constructor(log: Log, io: ProgressIo = STDERR_IO) {
    this.#log = log;
    this.#io = io;
    this.#lastMs = io.now();
  }

  update({ doneBytes, totalBytes }: { doneBytes: number; totalBytes: number }): void {
    const percent = totalBytes === 0 ? 100 : Math.floor((doneBytes / totalBytes) * 100);
    if (this.#io.isTty) return this.#show(`Loading the model: ${percent} %`);
    if (this.#io.now() - this.#lastMs < LOG_INTERVAL_MS) return;
    this.#lastMs = this.#io.now();
    this.#log.info({ percent, doneBytes, totalBytes }, 'loading the model');
  }

  /** Clears the line on the terminal. */
  end(): void {
    if (this.#shown !== '') this.#io.write('\r\x1b[K');
    this.#shown = '';
  }

  #show(text: string): void {
    if (text === this.#shown) return;
    this.#shown = text;
    this.#io.write(`\r\x1b[K${text}`);
  }
}
