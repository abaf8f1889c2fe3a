import { constants, fstatSync, openSync, writeSync } from 'node:fs';

/** Lines that wait for a slow reader; later ones are dropped. */
const MAX_WAITING_BYTES = 1 << 20;
const RETRY_MS = 100;

/**
 * Writes lines to a descriptor at once, and never waits for whoever reads it: a pipe that is full keeps them waiting here, in bounded
 * memory; one without a reader drops them.
 */
export class LogStream {
  readonly #fd: number;
  #waiting: Buffer[] = [];
  #numWaitingBytes = 0;
  #retry: NodeJS.Timeout | undefined;

  constructor(fd: number) {
    this.#fd = unblocked(fd);
  }

  readonly write = (line: string): void => {
    const bytes = Buffer.from(line);
    if (this.#numWaitingBytes + bytes.length > MAX_WAITING_BYTES) return;
    this.#waiting.push(bytes);
    this.#numWaitingBytes += bytes.length;
    if (this.#retry === undefined) this.#flush();
  };

  #flush(): void {
    this.#retry = undefined;
    try {
      for (let [first] = this.#waiting; first !== undefined; [first] = this.#waiting)
        this.#written(writeSync(this.#fd, first));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') {
        this.#retry = setTimeout(() => this.#flush(), RETRY_MS);
        this.#retry.unref();
        return;
      }
      // Nobody reads, and there is nowhere to say so.
      this.#waiting = [];
      this.#numWaitingBytes = 0;
    }
  }

  #written(numBytes: number): void {
    const [first] = this.#waiting;
    if (numBytes < first.length) this.#waiting[0] = first.subarray(numBytes);
    else this.#waiting.shift();
    this.#numWaitingBytes -= numBytes;
  }
}

/** NOTE: opened anew, as a pipe that is made non-blocking where it is would be so for all processes that share it. Where that cannot be, writes wait. */
function unblocked(fd: number): number {
  try {
    if (!fstatSync(fd).isFIFO()) return fd;
    return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    // No /proc, or a pipe of another user's.
    return fd;
  }
}
