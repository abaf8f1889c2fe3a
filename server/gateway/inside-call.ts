import type { HttpReply, ReplyHeaders, ReplyStream, StreamedRequest } from '../http/transport';
import type { Call } from './forward';
import type { Gateway } from './gateway';

/** A request that begins in this process, as a client of the deployment's URL would send it. */
export interface InsideRequest {
  method: string;
  /** Of the deployment, without a trailing slash. */
  url: string;
  /** Below that, with the query. */
  target: string;
  headers: readonly (readonly [name: string, value: string])[];
  body: Buffer | undefined;
  /** Whose it is: address lists of keys go by it. */
  remoteAddress: string;
  signal: AbortSignal;
}

/** Hears of the answer as it comes. */
export interface AnswerSink {
  head(status: number, headers: readonly [name: string, value: string][]): void;
  /** False: wait for {@link AnswerSink.drained}. */
  piece(bytes: Buffer): boolean;
  drained(): Promise<void>;
}

/** How an answer ended: in order, or without its end. */
export interface InsideEnd {
  isWhole: boolean;
  /** undefined where no replica was asked. */
  call: Readonly<Call> | undefined;
}

/** Sends a request through the gateway itself, past no check of it. */
export async function callInside(
  gateway: Pick<Gateway, 'observe'>,
  { method, url, target, headers, body, remoteAddress, signal }: InsideRequest,
  sink: AnswerSink,
): Promise<InsideEnd> {
  const { host, pathname } = new URL(url);
  const [path, query = ''] = split(target);
  const length: [string, string][] = body === undefined ? [] : [['content-length', String(body.length)]];
  const request: StreamedRequest = {
    method,
    path: (pathname === '/' ? '' : pathname) + path,
    query,
    remoteAddress,
    signal,
    headers: [
      ['host', host],
      ...headers.map(([name, value]): [string, string] => [name.toLowerCase(), value]),
      ...length,
    ],
    readBody: () => Promise.resolve(body ?? Buffer.alloc(0)),
    bodyPieces: async function* () {
      if (body !== undefined) yield await Promise.resolve(body);
    },
  };
  const reply = new SinkReply(sink);
  let call: Readonly<Call> | undefined;
  await gateway.observe(request, reply, (seen) => {
    call = seen;
  });
  return { isWhole: reply.isWhole, call };
}

function split(target: string): [path: string, query?: string] {
  const at = target.indexOf('?');
  return at < 0 ? [target] : [target.slice(0, at), target.slice(at + 1)];
}

class SinkReply implements HttpReply {
  readonly #sink: AnswerSink;
  hasStarted = false;
  isWhole = false;

  constructor(sink: AnswerSink) {
    this.#sink = sink;
  }

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    if (this.hasStarted) return;
    this.#begin(status, headers);
    if (body !== null && body.length > 0) this.#sink.piece(toBuffer(body));
    this.isWhole = true;
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.#begin(status, headers);
    return {
      write: (data) => this.#sink.piece(toBuffer(data)),
      drained: () => this.#sink.drained(),
      end: () => {
        this.isWhole = true;
      },
      destroy: () => {},
    };
  }

  #begin(status: number, headers: ReplyHeaders): void {
    this.hasStarted = true;
    this.#sink.head(
      status,
      Object.entries(headers).flatMap(([name, value]) =>
        (typeof value === 'string' ? [value] : value).map((one): [string, string] => [name, one]),
      ),
    );
  }
}

function toBuffer(data: string | Uint8Array): Buffer {
  return typeof data === 'string' ? Buffer.from(data) : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
}
