/** What a handler sees of a request. Everything but the body is copied before the handler runs. */
export interface HttpRequest {
  /** As sent: `GET`. */
  readonly method: string;
  /** Without the query, as sent. */
  readonly path: string;
  /** Without the question mark. */
  readonly query: string;
  /** In the order they came, names in lower case, duplicates kept. */
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly remoteAddress: string;
  /** Aborted when the client is gone. */
  readonly signal: AbortSignal;
  /** The whole body. Rejects with ApiError `request_too_large` or `request_timeout`. */
  readBody(): Promise<Buffer>;
}

/** A request as a transport hands it over: its body can also be had as it comes. */
export interface StreamedRequest extends HttpRequest {
  /**
   * The body in pieces, in place of `readBody`. Where the transport streams bodies the client is read no faster than the pieces are taken.
   * Rejects as `readBody` does; the time for a body is then that between two pieces.
   */
  bodyPieces(): AsyncIterable<Buffer>;
}

/** Several values are as many headers of the name. */
export type ReplyHeaders = Readonly<Record<string, string | readonly string[]>>;

/** How a handler answers: by one `send`, or by one `stream`, whose headers go out with the first write. After the client is gone both do nothing. */
export interface HttpReply {
  readonly hasStarted: boolean;
  /** Null: an answer without a body (to HEAD, 204, 304), of whose length nothing is said but by the headers. */
  send(status: number, headers: ReplyHeaders, body: string | Uint8Array | null): void;
  stream(status: number, headers: ReplyHeaders): ReplyStream;
}

export interface ReplyStream {
  /** False when the client reads slower than this writes: then wait for {@link ReplyStream.drained}. */
  write(data: string | Uint8Array): boolean;
  /** Resolves when all that was written has gone out, or the client is gone. */
  drained(): Promise<void>;
  end(): void;
  /** Cuts the connection without the orderly end of the stream. */
  destroy(): void;
}

/** Answers every request that it is given; a rejection is a bug, which the transport answers by cutting the connection. */
export type HttpHandler = (request: HttpRequest, reply: HttpReply) => Promise<void>;

/** The same for those that take bodies as they come. */
export type StreamHandler = (request: StreamedRequest, reply: HttpReply) => Promise<void>;

export interface TransportOptions {
  handler: StreamHandler;
  maxBodyBytes: number;
  /** For the whole body, from the end of the headers. */
  bodyTimeoutMs: number;
  /** Whether a body waits at its client until somebody takes it, and is not gathered at once; default false. */
  streamsBodies?: boolean;
  /** Absent: plain HTTP. */
  tls?: TlsFiles;
}

/** PEM files; checked by `checkTls`. */
export interface TlsFiles {
  keyFile: string;
  certFile: string;
  /** What the key is encrypted with. */
  passphrase?: string;
}

/** One HTTP/1.1 server; the only thing that knows sockets. */
export interface Transport {
  readonly name: 'uws' | 'node';
  /** Resolves with the port once connections are accepted; rejects with an Error that has `code` (`EADDRINUSE`). */
  listen(host: string, port: number): Promise<number>;
  /** The same at a path that is free; the file is made readable and writable for its user and group, and goes when the transport closes. */
  listenUnix(path: string): Promise<void>;
  /** Takes no new connections; running answers go on. */
  stopListening(): void;
  /** Cuts what is still open. */
  close(): Promise<void>;
}

/** The value of a header, the first if it came several times. */
export function header(request: Pick<HttpRequest, 'headers'>, name: string): string | undefined {
  return request.headers.find(([candidate]) => candidate === name)?.[1];
}
