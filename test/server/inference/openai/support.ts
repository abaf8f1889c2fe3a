/** The complete app with the fake engine, in memory and without sockets. */
import { Engine } from '../../../../ts';
import { App, type AppOptions } from '../../../../server/inference/app';
import type { HttpReply, HttpRequest, ReplyStream } from '../../../../server/http/transport';
import { tinyModel, type TinyFiles } from '../../../fakes/tiny-model';

export class MemoryReply implements HttpReply, ReplyStream {
  hasStarted = false;
  status = 0;
  headers: Readonly<Record<string, string>> = {};
  text = '';
  /** One per write of a stream. */
  writes: string[] = [];
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
    this.writes.push(text);
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
      .filter((line) => line.startsWith('data: '))
      .map((line) => (line === 'data: [DONE]' ? '[DONE]' : JSON.parse(line.slice(6))));
  }
}

export const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
export const MESSAGES = [{ role: 'user', content: 'Hi' }];
export const TOOLS = [
  {
    type: 'function',
    function: { name: 'f', description: 'd', parameters: { type: 'object', properties: {}, default: null } },
  },
];

export async function loadEngine(
  files: TinyFiles = {},
  options: Parameters<typeof Engine.load>[1] = {},
): Promise<Engine> {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  return Engine.load(tinyModel(files), options);
}

export function makeApp(engine?: Engine, options: Partial<AppOptions> = {}): App {
  const app = new App({
    servedNames: ['tiny', 'alias'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    ...options,
  });
  if (engine !== undefined) app.serve(engine);
  return app;
}

/** Sends a request. String bodies are sent unchanged. */
export async function post(
  app: App,
  path: string,
  body: unknown,
  options: Partial<HttpRequest> = {},
): Promise<MemoryReply> {
  const reply = new MemoryReply();
  const bytes = Buffer.isBuffer(body) ? body : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
  await app.handle(
    {
      method: 'POST',
      path,
      query: '',
      headers: [['content-type', 'application/json']],
      remoteAddress: '127.0.0.1',
      signal: new AbortController().signal,
      readBody: () => Promise.resolve(bytes),
      ...options,
    },
    reply,
  );
  return reply;
}

/** Returns the error of a response without its message. */
export function errorOf(reply: MemoryReply): { status: number; type: string; code: string; param: string | null } {
  const { type, code, param, message } = reply.json.error;
  expect(Object.keys(reply.json.error)).toEqual(['message', 'type', 'param', 'code']);
  expect(message).toMatch(/^.{5,400}$/);
  return { status: reply.status, type, code, param };
}

export const keysOf = (value: object): string => Object.keys(value).join(' ');
