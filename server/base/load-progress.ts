import type { LoadProgress as Progress } from '../../ts';
import { DownloadMeter } from './download-meter';

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
const LINE_INTERVAL_MS = 10_000;
/** A terminal need not be written to more often. */
const REDRAW_INTERVAL_MS = 100;

/** Writes a line about a load that takes long. */
export type WriteLine = (text: string, fields: Progress & { percent: number }) => void;

/**
 * Reports the progress of a model load and of its download: in place on a terminal, otherwise with a line every ten
 * seconds.
 */
export class LoadProgress {
  readonly #line: WriteLine;
  readonly #io: ProgressIo;
  readonly #meter: DownloadMeter;
  #lastMs: number;
  #drawnMs = -Infinity;
  #shown = '';

  constructor(line: WriteLine, io: ProgressIo = STDERR_IO) {
    this.#line = line;
    this.#io = io;
    this.#meter = new DownloadMeter(io.now);
    this.#lastMs = io.now();
  }

  update(progress: Progress): void {
    const { doneBytes, totalBytes, stage } = progress;
    const percent = totalBytes === 0 ? 100 : Math.floor((doneBytes / totalBytes) * 100);
    const isLoad = stage === 'load';
    // Called for each piece, so that the meter knows when the download began.
    const state = isLoad ? `${percent} %` : this.#meter.describe(progress);
    if (this.#io.isTty) return this.#show(`${isLoad ? 'Loading' : 'Downloading'} the model: ${state}`, isLoad);
    if (this.#io.now() - this.#lastMs < LINE_INTERVAL_MS) return;
    this.#lastMs = this.#io.now();
    const text = isLoad ? 'loading the model' : `downloading the model: ${state}`;
    this.#line(text, { percent, ...progress });
  }

  /** Clears the line on the terminal. */
  end(): void {
    if (this.#shown !== '') this.#io.write('\r\x1b[K');
    this.#shown = '';
  }

  #show(text: string, isAlways: boolean): void {
    if (text === this.#shown || (!isAlways && this.#io.now() - this.#drawnMs < REDRAW_INTERVAL_MS)) return;
    this.#drawnMs = this.#io.now();
    this.#shown = text;
    this.#io.write(`\r\x1b[K${text}`);
  }
}
