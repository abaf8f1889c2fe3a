/** Requests to an app without sockets. */
import type { App } from '../../server/inference/app';
import type { HttpReply, HttpRequest, ReplyStream } from '../../server/http/transport';

export class MemoryReply implements HttpReply, ReplyStream {
  hasStarted = false;
  status = 0;
  headers: Readonly<Record<string, string>> = {};
  text = '';
  state: 'open' | 'ended' | 'destroyed' = 'open';

  send(status: number, headers: Readonly<Record<string, string>>, body: string): void {
    Object.assign(this, { hasStarted: true, status, headers, text: body, state: 'ended' });
  }
  stream(status: number, headers: Readonly<Record<string, string>>): ReplyStream {
    Object.assign(this, { hasStarted: true, status, headers });
    return this;
  }
  write(text: string): boolean {
    this.text += text;
    return true;
  }
  drained(): Promise<void> {
    return Promise.resolve();
  }
  end(): void {
    this.state = 'ended';
  }
  destroy(): void {
    this.state = 'destroyed';
  }

  get json(): any {
    return JSON.parse(this.text);
  }
  /** The parsed events of a stream. The terminator stays text. */
  get events(): any[] {
    return this.text
      .split('\n\n')
      .map((event) => event.replace(/^event: \w[\w.]*\n/, ''))
      .filter((line) => line.startsWith('data: '))
      .map((line) => (line === 'data: [DONE]' ? '[DONE]' : JSON.parse(line.slice(6))));
  }
}

/** Sends one request and returns the complete response. A request with a body is a POST. */
export async function exchange(
  app: Pick<App, 'handle'>,
  path: string,
  body?: unknown,
  options: Partial<HttpRequest> = {},
): Promise<MemoryReply> {
  const reply = new MemoryReply();
  const text = typeof body === 'string' ? body : JSON.stringify(body ?? '');
  const headers: [string, string][] =
    body === undefined
      ? []
      : [
          ['content-type', 'application/json'],
          ['content-length', String(Buffer.byteLength(text))],
        ];
  await app.handle(
    {
      method: body === undefined ? 'GET' : 'POST',
      path,
      query: '',
      headers,
      remoteAddress: '127.0.0.1',
      signal: new AbortController().signal,
      readBody: () => Promise.resolve(Buffer.from(text)),
      ...options,
    },
    reply,
  );
  return reply;
}
