/** The reader of a response body. If it throws, the body fails with the error. */
export interface BodySink {
  /** The next bytes. The sink owns them. */
  piece(bytes: Buffer): void;
  end(): void;
  /** The response was truncated, or its signal aborted it. */
  fail(error: Error): void;
}

/** The connection that a body is read from. */
export interface BodySource {
  pause(): void;
  resume(): void;
  destroy(): void;
}

/** Pieces buffered without a reader before the connection is paused. */
const MAX_PENDING_PIECES = 1;

/**
 * Buffers a response body between its connection and its reader. The reader may finish after the connection is reused.
 */
export class ResponseBody {
  readonly #source: BodySource;
  #sink: BodySink | undefined;
  #isPaused = false;
  #isSourcePaused = false;
  #pending: Buffer[] = [];
  #onStart: (() => void) | undefined;
  #outcome: 'ended' | Error | undefined;

  constructor(source: BodySource) {
    this.#source = source;
  }

  /** Whether the replica has sent everything, or will send nothing more. */
  get isOver(): boolean {
    return this.#outcome !== undefined;
  }

  /** Resolves when the first piece or the end has arrived. Rejects if the body fails before. Call it before `flow`. */
  started(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#onStart = () => {
        this.#onStart = undefined;
        if (this.#pending.length === 0 && this.#outcome instanceof Error) reject(this.#outcome);
        else resolve();
      };
      if (this.#pending.length > 0 || this.isOver) this.#onStart();
    });
  }

  /** Called by the connection with the next piece. */
  push(bytes: Buffer): void {
    if (this.isOver) return;
    if (this.#sink !== undefined && !this.#isPaused) return this.#give(this.#sink, bytes);
    this.#pending.push(bytes);
    this.#onStart?.();
    if (this.#pending.length > MAX_PENDING_PIECES) this.#pauseSource();
  }

  /** Called by the connection at the end of the body. The reader is notified after it has read the buffered pieces. */
  end(): void {
    if (this.isOver) return;
    this.#outcome = 'ended';
    this.#onStart?.();
    this.#deliver();
  }

  /** Called by the connection when it fails. The reader is notified at once, even while paused. */
  fail(error: Error): void {
    if (this.isOver) return;
    this.#outcome = error;
    this.#isPaused = false;
    this.#onStart?.();
    this.#deliver();
  }

  /** Starts delivery to `sink`, beginning with the buffered pieces. Call it once. */
  flow(sink: BodySink): void {
    this.#sink = sink;
    this.resume();
  }

  pause(): void {
    this.#isPaused = true;
    this.#pauseSource();
  }

  resume(): void {
    this.#isPaused = false;
    this.#deliver();
    if (this.isOver || this.#isPaused || !this.#isSourcePaused) return;
    this.#isSourcePaused = false;
    this.#source.resume();
  }

  /** Discards the rest of the body. The sink is not called again. */
  destroy(): void {
    this.#sink = undefined;
    this.#pending = [];
    if (this.isOver) return;
    this.#outcome = 'ended';
    this.#source.destroy();
  }

  #pauseSource(): void {
    if (this.isOver || this.#isSourcePaused) return;
    this.#isSourcePaused = true;
    this.#source.pause();
  }

  #deliver(): void {
    while (this.#sink !== undefined && !this.#isPaused && this.#pending.length > 0)
      this.#give(this.#sink, this.#pending.shift() as Buffer);
    if (this.#sink === undefined || this.#isPaused || this.#outcome === undefined) return;
    const sink = this.#sink;
    this.#sink = undefined;
    if (this.#outcome !== 'ended') return sink.fail(this.#outcome);
    try {
      sink.end();
    } catch (error) {
      sink.fail(error as Error);
    }
  }

  /** A response that its sink cannot read is cut. The error must not reach the socket: it would end the process. */
  #give(sink: BodySink, bytes: Buffer): void {
    try {
      sink.piece(bytes);
    } catch (error) {
      this.destroy();
      sink.fail(error as Error);
    }
  }
}
