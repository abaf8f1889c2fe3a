import type { ReadableStream as WebStream } from 'node:stream/web';
import { ApiError } from '../base/errors';
import { bodyTaken, bodyTimeout, tooLarge } from './framing';
import type { HttpHandler, HttpReply, HttpRequest, ReplyHeaders, ReplyStream } from './transport';

export interface FetchOptions {
  handler: HttpHandler;
  maxBodyBytes: number;
  bodyTimeoutMs: number;
}

/** Responds to a `Request` of the fetch standard. Never rejects. */
export function handleFetch(request: Request, { handler, ...limits }: FetchOptions): Promise<Response> {
  return new Promise((resolve) => {
    const aborter = new AbortController();
    const abort = () => aborter.abort();
    if (request.signal.aborted) abort();
    request.signal.addEventListener('abort', abort, { once: true });
    const reply = new FetchReply(request.method === 'HEAD', resolve, abort);
    void handler(toRequest(request, aborter.signal, limits), reply)
      .then(
        () => reply.finish(),
        () => reply.fail(),
      )
      .finally(() => request.signal.removeEventListener('abort', abort));
  });
}

function toRequest(request: Request, signal: AbortSignal, limits: Omit<FetchOptions, 'handler'>): HttpRequest {
  const { pathname, search } = new URL(request.url);
  let body: Promise<Buffer> | undefined;
  return {
    method: request.method,
    path: pathname,
    query: search.slice(1),
    headers: [...request.headers],
    // A Request has no address of its client.
    remoteAddress: '',
    signal,
    readBody: () => (body ??= readBody(request, limits)),
  };
}

async function readBody(
  { body, bodyUsed }: Request,
  { maxBodyBytes, bodyTimeoutMs }: Omit<FetchOptions, 'handler'>,
): Promise<Buffer> {
  if (body === null) return Buffer.alloc(0);
  if (bodyUsed) throw bodyTaken();
  const chunks: Uint8Array[] = [];
  let numBytes = 0;
  let isLate = false;
  const reader = (body as WebStream<Uint8Array>).getReader();
  const cancel = () => void reader.cancel().catch(() => {});
  const timer = setTimeout(() => {
    isLate = true;
    cancel();
  }, bodyTimeoutMs);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (isLate) throw bodyTimeout();
      if (done) return Buffer.concat(chunks);
      numBytes += value.length;
      if (numBytes > maxBodyBytes) throw tooLarge(maxBodyBytes);
      chunks.push(value);
    }
  } catch (error) {
    cancel();
    throw error instanceof ApiError ? error : new ApiError('malformed_request', 'The request body cannot be read');
  } finally {
    clearTimeout(timer);
  }
}

/** The status that nginx logs for a client that has left. */
const CLIENT_CLOSED_REQUEST = 499;
/** Statuses for which the fetch standard allows no body. */
const EMPTY = new Set([101, 204, 205, 304]);

class FetchReply implements HttpReply {
  readonly #isHead: boolean;
  readonly #resolve: (response: Response) => void;
  /** Called when the reader of a stream cancels it. */
  readonly #onCancel: () => void;
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  #isOver = false;
  #onDrained: (() => void)[] = [];
  hasStarted = false;

  constructor(isHead: boolean, resolve: (response: Response) => void, onCancel: () => void) {
    this.#isHead = isHead;
    this.#resolve = resolve;
    this.#onCancel = onCancel;
  }

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    if (this.hasStarted) return;
    this.hasStarted = true;
    const isEmpty = this.#isHead || EMPTY.has(status);
    this.#resolve(
      new Response(isEmpty ? null : (body as string | Uint8Array<ArrayBuffer> | null), {
        status,
        headers: toHeaders(headers),
      }),
    );
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.hasStarted = true;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#controller = controller;
      },
      pull: () => this.#notifyDrained(),
      cancel: () => {
        this.#isOver = true;
        this.#notifyDrained();
        this.#onCancel();
      },
    });
    this.#resolve(new Response(body, { status, headers: toHeaders(headers) }));
    return {
      write: (data) => {
        if (this.#isOver) return true;
        this.#controller!.enqueue(typeof data === 'string' ? Buffer.from(data) : data);
        return (this.#controller!.desiredSize ?? 0) > 0;
      },
      drained: () =>
        this.#isOver || (this.#controller!.desiredSize ?? 0) > 0
          ? Promise.resolve()
          : new Promise((resolve) => this.#onDrained.push(resolve)),
      end: () => {
        if (this.#isOver) return;
        this.#isOver = true;
        this.#controller!.close();
      },
      destroy: () => this.fail(),
    };
  }

  /** Settles a request that got no response because its client has left. */
  finish(): void {
    if (!this.hasStarted) this.#resolve(new Response(null, { status: CLIENT_CLOSED_REQUEST }));
  }

  /** Cuts the response. */
  fail(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#notifyDrained();
    if (this.#controller !== undefined) this.#controller.error(new Error('the response was cut'));
    else this.#resolve(new Response(null, { status: 500 }));
  }

  #notifyDrained(): void {
    this.#onDrained.splice(0).forEach((resolve) => resolve());
  }
}

function toHeaders(headers: ReplyHeaders): [string, string][] {
  return Object.entries(headers).flatMap(([name, value]) =>
    (Array.isArray(value) ? (value as string[]) : [value as string]).map((item): [string, string] => [name, item]),
  );
}
