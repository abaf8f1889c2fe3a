import type { HttpReply, ReplyHeaders, ReplyStream, StreamedRequest } from 'capstan/internal';
import type { Call } from './call';
import type { Gateway } from './gateway';

/** A request made inside this process, equal to one that a client would send to the deployment's URL. */
export interface InProcessRequest {
  method: string;
  /** URL of the deployment, without a trailing slash. */
  url: string;
  /** Path below that URL, with the query. */
  target: string;
  headers: readonly (readonly [name: string, value: string])[];
  body: Buffer | undefined;
  /** Address of the user's client. Address lists of keys are checked against it. */
  remoteAddress: string;
  signal: AbortSignal;
}

/** Receives the response as it arrives. */
export interface ResponseSink {
  head(status: number, headers: readonly [name: string, value: string][]): void;
  /** Returns false when the caller should wait for {@link ResponseSink.drained}. */
  piece(bytes: Buffer): boolean;
  drained(): Promise<void>;
}

/** How a response ended. */
export interface InProcessResult {
  /** False when the response was truncated. */
  isComplete: boolean;
  /** undefined when no replica was chosen. */
  call: Readonly<Call> | undefined;
}

/** Sends a request through the gateway with all of its checks. */
export async function callInProcess(
  gateway: Pick<Gateway, 'observe'>,
  { method, url, target, headers, body, remoteAddress, signal }: InProcessRequest,
  sink: ResponseSink,
): Promise<InProcessResult> {
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
  return { isComplete: reply.isComplete, call };
}

function split(target: string): [path: string, query?: string] {
  const at = target.indexOf('?');
  return at < 0 ? [target] : [target.slice(0, at), target.slice(at + 1)];
}

class SinkReply implements HttpReply {
  readonly #sink: ResponseSink;
  hasStarted = false;
  isComplete = false;

  constructor(sink: ResponseSink) {
    this.#sink = sink;
  }

  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void {
    if (this.hasStarted) return;
    this.#begin(status, headers);
    if (body !== null && body.length > 0) this.#sink.piece(toBuffer(body));
    this.isComplete = true;
  }

  stream(status: number, headers: ReplyHeaders): ReplyStream {
    this.#begin(status, headers);
    return {
      write: (data) => this.#sink.piece(toBuffer(data)),
      drained: () => this.#sink.drained(),
      end: () => {
        this.isComplete = true;
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
