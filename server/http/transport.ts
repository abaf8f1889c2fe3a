import { trimBlanks } from '../base/blanks';

/** A request as handlers see it. Everything except the body is copied before the handler runs. */
export interface HttpRequest {
  /** As sent: `GET`. */
  readonly method: string;
  /** As sent, without the query. */
  readonly path: string;
  /** Without the question mark. */
  readonly query: string;
  /** In the order of the request, with names in lower case. Duplicates are kept. */
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly remoteAddress: string;
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal;
  /** Returns the complete body. Rejects with ApiError `request_too_large` or `request_timeout`. */
  readBody(): Promise<Buffer>;
}

/** A request whose body can also be read as it arrives. */
export interface StreamedRequest extends HttpRequest {
  /**
   * Yields the body in pieces, as an alternative to `readBody`. With `streamsBodies` the transport reads from the
   * client only as fast as the pieces are taken. Rejects as `readBody` does, but the timeout applies to the wait for
   * each piece.
   */
  bodyPieces(): AsyncIterable<Buffer>;
}

/** An array of values becomes one header per value. */
export type ReplyHeaders = Readonly<Record<string, string | readonly string[]>>;

/** How a handler responds: with one `send` or one `stream`. Both do nothing after the client has disconnected. */
export interface HttpReply {
  readonly hasStarted: boolean;
  /** @param body Null means a response without a body (to HEAD, 204, 304): `Content-Length` is then up to `headers`. */
  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void;
  /** Starts a response whose headers are sent with the first write. */
  stream(status: number, headers: ReplyHeaders): ReplyStream;
}

export interface ReplyStream {
  /** Returns false if the client reads more slowly than this writes. Then wait for {@link ReplyStream.drained}. */
  write(data: string | Uint8Array): boolean;
  /** Resolves when all written data has been sent or the client has disconnected. */
  drained(): Promise<void>;
  end(): void;
  /** Cuts the connection without ending the stream properly. */
  destroy(): void;
}

/** Responds to every request. A rejection is a bug, and the transport then cuts the connection. */
export type HttpHandler = (request: HttpRequest, reply: HttpReply) => Promise<void>;

/** A handler that may read the body as it arrives. */
export type StreamHandler = (request: StreamedRequest, reply: HttpReply) => Promise<void>;

export interface TransportOptions {
  handler: StreamHandler;
  maxBodyBytes: number;
  /** Time limit of the complete body, from the end of the headers. */
  bodyTimeoutMs: number;
  /**
   * Whether bodies are read only as fast as the handler takes them, instead of being collected at once. Default: false.
   */
  streamsBodies?: boolean;
  /**
   * How long an idle connection stays open for a next request. It is announced in `Keep-Alive`. Default:
   * {@link DEFAULT_KEEP_ALIVE_MS}. uWebSockets.js always keeps it for 10 s.
   */
  keepAliveTimeoutMs?: number;
  /** How long the rest of an unread body is read and dropped before its connection is closed. Default: 2,000. */
  lingerMs?: number;
  /** Absent: plain HTTP. */
  tls?: TlsFiles;
}

/** Longer than the 60 s for which common load balancers reuse an idle connection. */
export const DEFAULT_KEEP_ALIVE_MS = 75_000;

/** Paths of PEM files. `checkTls` checks them. */
export interface TlsFiles {
  keyFile: string;
  certFile: string;
  /** The passphrase of an encrypted key. */
  passphrase?: string;
}

/** An HTTP/1.1 server. No other code uses sockets. */
export interface Transport {
  readonly name: 'uws' | 'node';
  /**
   * Resolves with the port once it accepts connections. Rejects with an Error that has a `code` such as `EADDRINUSE`.
   */
  listen(host: string, port: number): Promise<number>;
  /**
   * Listens at a free path. The socket file is readable and writable for its user and group, and `close` removes it.
   */
  listenUnix(path: string): Promise<void>;
  /** Accepts no new connections. Responses in progress continue. */
  stopListening(): void;
  /** Cuts all open connections. */
  close(): Promise<void>;
}

/** Returns the media type of the body in lower case, without its parameters: `application/json`. */
export function mediaType(request: Pick<HttpRequest, 'headers'>): string | undefined {
  const type = header(request, 'content-type');
  return type === undefined ? undefined : trimBlanks(type.split(';')[0]).toLowerCase();
}

/** Returns the first value of a header. `name` is in lower case. */
export function header(request: Pick<HttpRequest, 'headers'>, name: string): string | undefined {
  return request.headers.find(([candidate]) => candidate === name)?.[1];
}
