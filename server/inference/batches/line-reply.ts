import type { HttpReply, HttpRequest, ReplyHeaders, ReplyStream } from '../../http/transport';

/** The response to a line of a batch. */
export class LineReply implements HttpReply {
  hasStarted = false;
  status = 0;
  body = '';

  send(status: number, _headers: ReplyHeaders, body: string | Uint8Array | null): void {
    this.hasStarted = true;
    this.status = status;
    this.body = typeof body === 'string' ? body : Buffer.from(body ?? '').toString();
  }

  /** Lines that ask for a stream are refused before they run. */
  stream(): ReplyStream {
    throw new Error('expected a response that is not a stream');
  }
}

/** Returns the request of a line. */
export function lineRequest(path: string, body: Buffer, signal: AbortSignal): HttpRequest {
  return {
    method: 'POST',
    path,
    query: '',
    headers: [
      ['content-type', 'application/json'],
      ['content-length', String(body.length)],
    ],
    remoteAddress: '',
    signal,
    readBody: () => Promise.resolve(body),
  };
}
