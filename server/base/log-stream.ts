import { constants, fstatSync, openSync, writeSync } from 'node:fs';

/** Limit of the lines that wait for a slow reader. Further lines are dropped. */
const MAX_WAITING_BYTES = 1 << 20;
const RETRY_MS = 100;

/**
 * Writes lines to a file descriptor without blocking. If a pipe is full, lines wait in bounded memory. If a pipe has no
 * reader, lines are dropped.
 */
export class LogStream {
  readonly #fd: number;
  #waiting: Buffer[] = [];
  #numWaitingBytes = 0;
  #retry: NodeJS.Timeout | undefined;

  constructor(fd: number) {
    this.#fd = openNonBlocking(fd);
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
      for (let [first] = this.#waiting; first !== undefined; [first] = this.#waiting) {
        this.#removeWritten(writeSync(this.#fd, first));
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') {
        this.#retry = setTimeout(() => this.#flush(), RETRY_MS);
        this.#retry.unref();
        return;
      }
      // The pipe has no reader, and there is no other place for this error.
      this.#waiting = [];
      this.#numWaitingBytes = 0;
    }
  }

  #removeWritten(numBytes: number): void {
    const [first] = this.#waiting;
    if (numBytes < first.length) this.#waiting[0] = first.subarray(numBytes);
    else this.#waiting.shift();
    this.#numWaitingBytes -= numBytes;
  }
}

/**
 * Returns a non-blocking descriptor of the same pipe. NOTE: the pipe is opened again, because O_NONBLOCK on the
 * inherited descriptor would affect all processes that share it.
 */
function openNonBlocking(fd: number): number {
  try {
    if (!fstatSync(fd).isFIFO()) return fd;
    return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    // There is no /proc, or the pipe belongs to another user. Writes may then block.
    return fd;
  }
}
