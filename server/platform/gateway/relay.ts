import { ApiError, type HttpReply, type ReplyHeaders, type ReplyStream } from 'capstan/internal';
import type { ResponseBody } from './response-body';
import { UpstreamError } from './upstream-error';
import type { UsageReader } from './usage-reader';

/** Responses of known length up to this size are sent in one piece with Content-Length. */
const GATHERED_BYTES = 64 * 1024;
/** Most bytes that are read of a response that no client gets. */
const MAX_UNREAD_BYTES = 16 * 1024 * 1024;
const LINE_END = 0x0a;
const EMPTY: Buffer = Buffer.alloc(0);

export interface RelayOptions {
  status: number;
  headers: ReplyHeaders;
  /** From the Content-Length of the replica. */
  contentLength: number | undefined;
  isHead: boolean;
  usage: UsageReader | undefined;
  idleTimeoutMs: number;
  slowClientTimeoutMs: number;
  /** A stream that was started before the replica responded. */
  begun: ReplyStream | undefined;
  onFirstByte: () => void;
}

/** How the response ended: completely, cut by the replica (or its silence), or by the client (gone, or too slow). */
export type RelayEnd = 'complete' | 'cut' | 'client';

export interface Relayed {
  end: RelayEnd;
  /** The stream that the response has left open. */
  open?: {
    stream: ReplyStream;
    /** Whether the last byte sent was a line feed. */
    isAtLineEnd: boolean;
  };
}

/**
 * Relays a response at the speed of its client. Rejects with UpstreamError if the replica fails before anything is
 * sent.
 */
export async function relay(
  body: ResponseBody,
  reply: HttpReply,
  signal: AbortSignal,
  options: RelayOptions,
): Promise<Relayed> {
  const { status, headers, contentLength, isHead, begun } = options;
  if (isHead || status === 204 || status === 304) {
    options.onFirstByte();
    reply.send(
      status,
      isHead && contentLength !== undefined ? { ...headers, 'Content-Length': String(contentLength) } : headers,
      null,
    );
    return { end: 'complete' };
  }
  if (begun === undefined && contentLength !== undefined && contentLength <= GATHERED_BYTES) {
    const bytes = await gather(body, options);
    if (signal.aborted) return { end: 'client' };
    reply.send(status, headers, bytes);
    return { end: 'complete' };
  }
  if (begun === undefined && signal.aborted) {
    await drain(body, options);
    return { end: 'client' };
  }
  const stream = begun ?? reply.stream(status, headers);
  const relaying = new Relay(body, stream, signal, options);
  const end = await relaying.run();
  return end === 'complete' ? { end } : { end, open: { stream, isAtLineEnd: relaying.isAtLineEnd } };
}

type GatherOptions = Pick<RelayOptions, 'usage' | 'idleTimeoutMs' | 'onFirstByte'>;

/** Reads the usage of a response that no client gets. */
export async function drain(body: ResponseBody, { usage, ...options }: GatherOptions): Promise<void> {
  let numBytes = 0;
  const reader: UsageReader = {
    usage: undefined,
    take: (piece) => {
      numBytes += piece.length;
      if (numBytes > MAX_UNREAD_BYTES) throw new Error(`the response is larger than ${MAX_UNREAD_BYTES} bytes`);
      usage?.take(piece);
      return EMPTY;
    },
    finish: () => {
      usage?.finish();
      return EMPTY;
    },
  };
  await gather(body, { ...options, usage: reader });
}

/** Reads a short response completely. */
export function gather(body: ResponseBody, { usage, idleTimeoutMs, onFirstByte }: GatherOptions): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    const timer = setTimeout(
      () => settle(new UpstreamError('timeout', true, false, `no response data within ${idleTimeoutMs} ms`)),
      idleTimeoutMs,
    );
    const settle = (error?: Error) => {
      clearTimeout(timer);
      if (error === undefined) return resolve(Buffer.concat(pieces));
      body.destroy();
      reject(error);
    };
    body.flow({
      piece: (bytes) => {
        if (pieces.length === 0) onFirstByte();
        timer.refresh();
        pieces.push(usage === undefined ? bytes : usage.take(bytes));
      },
      end: () => {
        if (usage !== undefined) pieces.push(usage.finish());
        settle();
      },
      fail: (error) => settle(isExplained(error) ? error : new UpstreamError('reset', true, false, error.message)),
    });
  });
}

function isExplained(error: Error): boolean {
  return error instanceof UpstreamError || error instanceof ApiError;
}

class Relay {
  readonly #body: ResponseBody;
  readonly #stream: ReplyStream;
  readonly #signal: AbortSignal;
  readonly #options: RelayOptions;
  #timer: NodeJS.Timeout | undefined;
  #hasBegun = false;
  #isOver = false;
  isAtLineEnd = true;
  #settle: (end: RelayEnd) => void = () => {};

  constructor(body: ResponseBody, stream: ReplyStream, signal: AbortSignal, options: RelayOptions) {
    this.#body = body;
    this.#stream = stream;
    this.#signal = signal;
    this.#options = options;
  }

  run(): Promise<RelayEnd> {
    return new Promise((resolve) => {
      this.#settle = (end) => {
        this.#isOver = true;
        clearTimeout(this.#timer);
        if (end !== 'complete') this.#body.destroy();
        resolve(end);
      };
      this.#timer = setTimeout(() => this.#settle('cut'), this.#options.idleTimeoutMs);
      this.#body.flow({
        piece: (bytes) => this.#pass(bytes),
        end: () => this.#finish(),
        fail: () => this.#settle(this.#signal.aborted ? 'client' : 'cut'),
      });
    });
  }

  #pass(piece: Buffer): void {
    if (!this.#hasBegun) {
      this.#hasBegun = true;
      this.#options.onFirstByte();
    }
    this.#timer?.refresh();
    const { usage } = this.#options;
    const passed = usage === undefined ? piece : usage.take(piece);
    if (passed.length === 0) return;
    this.isAtLineEnd = passed[passed.length - 1] === LINE_END;
    const isFast = this.#stream.write(passed);
    if (usage?.hasFailed === true) this.#endFailed();
    else if (!isFast) void this.#waitForClient();
  }

  /** The client has received the error. The replica might continue for hours. */
  #endFailed(): void {
    this.#body.destroy();
    this.#stream.end();
    this.#settle('complete');
  }

  async #waitForClient(): Promise<void> {
    this.#body.pause();
    clearTimeout(this.#timer);
    const { slowClientTimeoutMs, idleTimeoutMs } = this.#options;
    const giveUp = setTimeout(() => this.#settle('client'), slowClientTimeoutMs);
    await this.#stream.drained();
    clearTimeout(giveUp);
    if (this.#isOver) return;
    this.#timer = setTimeout(() => this.#settle('cut'), idleTimeoutMs);
    this.#body.resume();
  }

  #finish(): void {
    const rest = this.#options.usage?.finish();
    if (rest !== undefined && rest.length > 0) this.#stream.write(rest);
    // In the same turn as the last piece, so that node:http sends both in one write.
    this.#stream.end();
    this.#settle('complete');
  }
}
