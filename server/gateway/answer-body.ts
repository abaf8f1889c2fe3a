/** Who reads an answer. */
export interface AnswerSink {
  /** Its to keep. */
  piece(bytes: Buffer): void;
  end(): void;
  /** The answer broke off, or its signal ended it. */
  fail(error: Error): void;
}

/** Of the connection that it comes over. */
export interface BodySource {
  pause(): void;
  resume(): void;
  destroy(): void;
}

/** So much waits for a reader who is not there yet before the replica has to wait. */
const MAX_PENDING_PIECES = 1;

/** The body of an answer on its way from a connection, which has other work once it is over, to its reader, who may take longer. */
export class AnswerBody {
  readonly #source: BodySource;
  #sink: AnswerSink | undefined;
  #isPaused = false;
  #isSourcePaused = false;
  #pending: Buffer[] = [];
  #outcome: 'ended' | Error | undefined;

  constructor(source: BodySource) {
    this.#source = source;
  }

  /** What the replica sent of it is all here, or nothing more will come. */
  get isOver(): boolean {
    return this.#outcome !== undefined;
  }

  /** The connection's: the next piece. */
  push(bytes: Buffer): void {
    if (this.isOver) return;
    if (this.#sink !== undefined && !this.#isPaused) return this.#sink.piece(bytes);
    this.#pending.push(bytes);
    if (this.#pending.length > MAX_PENDING_PIECES) this.#pauseSource();
  }

  /** The connection's: that was all. Told to the reader after what it has still to take. */
  end(): void {
    if (this.isOver) return;
    this.#outcome = 'ended';
    this.#deliver();
  }

  /** The connection's: nothing more comes. Told to the reader at once, paused or not. */
  fail(error: Error): void {
    if (this.isOver) return;
    this.#outcome = error;
    this.#isPaused = false;
    this.#deliver();
  }

  /** Once. What has come is handed over at once. */
  flow(sink: AnswerSink): void {
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

  /** The reader wants no more, and hears no more. */
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
      this.#sink.piece(this.#pending.shift() as Buffer);
    if (this.#sink === undefined || this.#isPaused || this.#outcome === undefined) return;
    const sink = this.#sink;
    this.#sink = undefined;
    if (this.#outcome === 'ended') sink.end();
    else sink.fail(this.#outcome);
  }
}
