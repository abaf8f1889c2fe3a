import type { LoadProgress as OfLoad, QuantizeProgress } from '../../ts';
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
type Progress = OfLoad | QuantizeProgress;

const LINE_INTERVAL_MS = 10_000;
/** A terminal need not be written to more often. */
const REDRAW_INTERVAL_MS = 100;

const VERBS = { download: 'Downloading', load: 'Loading', quantize: 'Quantizing' } as const;

/** Writes a line about a load that takes long. */
export type WriteLine = (text: string, fields: Progress & { percent: number }) => void;

/**
 * Reports the progress of a model load, of its download or of a quantization: in place on a terminal, otherwise with a
 * line every ten seconds.
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
    const isDownload = stage === 'download';
    // Called for each piece, so that the meter knows when the download began.
    const state = isDownload ? this.#meter.describe(progress) : `${percent} %`;
    const text = `${VERBS[stage]} the model: ${state}`;
    if (this.#io.isTty) return this.#show(text, !isDownload);
    if (this.#io.now() - this.#lastMs < LINE_INTERVAL_MS) return;
    this.#lastMs = this.#io.now();
    const line = stage === 'load' ? 'loading the model' : `${text[0].toLowerCase()}${text.slice(1)}`;
    this.#line(line, { percent, ...progress });
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
