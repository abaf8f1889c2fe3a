import { formatBytes } from './bytes';

/** Describes how a download advances: its share, its size, its speed and the time that is left. */
export class DownloadMeter {
  readonly #now: () => number;
  #start: { atMs: number; doneBytes: number } | undefined;

  constructor(now: () => number) {
    this.#now = now;
  }

  /** Returns, for example, `43 % of 2.8 GB, 85.0 MB/s, 19 s left`. */
  describe({ doneBytes, totalBytes }: { doneBytes: number; totalBytes: number }): string {
    const atMs = this.#now();
    this.#start ??= { atMs, doneBytes };
    const percent = totalBytes === 0 ? 100 : Math.floor((doneBytes / totalBytes) * 100);
    const share = `${percent} % of ${formatBytes(totalBytes)}`;
    const seconds = (atMs - this.#start.atMs) / 1000;
    // What an earlier download has left does not count.
    const bytesPerSecond = (doneBytes - this.#start.doneBytes) / seconds;
    if (!(seconds >= 1 && bytesPerSecond > 0)) return share;
    const left = formatSeconds(Math.ceil((totalBytes - doneBytes) / bytesPerSecond));
    return `${share}, ${formatBytes(Math.round(bytesPerSecond))}/s, ${left} left`;
  }
}

function formatSeconds(seconds: number): string {
  if (seconds < 100) return `${seconds} s`;
  const minutes = Math.ceil(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.ceil(minutes / 60)} h`;
}
