import { TextDecoder } from 'node:util';
import { type AnswerSink, callInside, type InsideRequest } from '../gateway/inside-call';
import { SSE_HEADERS } from '../http/sse';
import type { HttpReply, ReplyStream } from '../http/transport';
import { TestRequest } from './objects';
import { ApiProblem } from './problem';
import { type ApiRoute, defineRoute } from './route';

const MAX_BODY_BYTES = 24 * 1024 * 1024;
const MAX_ANSWER_BYTES = 10 * 1024 * 1024;
const MAX_RUN_MS = 300_000;
const MAX_RUNS_PER_USER = 4;
const MAX_RUNS = 32;

/** Said by the gateway, or about one connection: what a client of the URL could not send, or not so. */
const REFUSED_HEADERS = new Set([
  'connection',
  'content-length',
  'cookie',
  'expect',
  'forwarded',
  'host',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'x-real-ip',
]);
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
/** What ends a header, and what no header holds. */
const CONTROL = /[\x00-\x08\x0a-\x1f\x7f]/;

/** By user: how many run. */
const runs = new Map<string, number>();

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'POST',
    path: '/api/v1/deployments/{id}/test',
    summary: 'Send a request to the deployment, through its own URL, and see the answer as it comes',
    tag: 'deployments',
    auth: 'any',
    body: TestRequest,
    maxBodyBytes: MAX_BODY_BYTES,
    answers: { 200: 'text/event-stream' },
    problems: ['wrong_state', 'invalid_argument', 'too_many_attempts'],
    handle: async ({ context: { store, serving }, actor, params, body, address, signal }) => {
      const { id } = await store.demandDeployment(actor, params.id, 'read');
      const target = serving?.targets.findById(id);
      if (serving === undefined || target === undefined)
        throw new ApiProblem('wrong_state', 'the deployment has no address here yet, or none any more');
      const request = toInside(body, { url: serving.urlOf(target.slug), remoteAddress: address });
      const release = takeRun(actor.userId);
      return {
        stream: async (reply) => {
          try {
            await run(reply, request, signal, (inside, sink) => callInside(serving.gateway, inside, sink));
          } finally {
            release();
          }
        },
      };
    },
  }),
];

type Prepared = Omit<InsideRequest, 'signal'>;

/** @throws ApiProblem for what no path, header or key is. */
function toInside(
  { method, path, query = [], headers = [], body, auth }: TestRequest,
  { url, remoteAddress }: Pick<InsideRequest, 'url' | 'remoteAddress'>,
): Prepared {
  // A path alone: whatever could be read as another host, or as more than one line.
  if (!path.startsWith('/') || /^\/[/\\]|[\\#]|%0[ad]/i.test(path))
    throw invalid('/path', 'expected a path below the deployment, such as /v1/models');
  for (const [index, [name, value]] of headers.entries()) {
    const lower = name.toLowerCase();
    if (!TOKEN.test(name) || CONTROL.test(value)) throw invalid(`/headers/${index}`, 'expected a header of one line');
    if (REFUSED_HEADERS.has(lower) || lower.startsWith('x-forwarded-') || lower.startsWith('x-capstan-'))
      throw invalid(`/headers/${index}`, `the header ${name} is the gateway's to send`);
    if (auth?.type === 'key' && lower === 'authorization')
      throw invalid(`/headers/${index}`, 'expected no Authorization beside a key');
  }
  if (auth?.type === 'key' && CONTROL.test(auth.key)) throw invalid('/auth/key', 'expected a key of one line');
  const added = new URLSearchParams(query).toString();
  return {
    method,
    url,
    remoteAddress,
    target: added === '' ? path : `${path}${path.includes('?') ? '&' : '?'}${added}`,
    headers: auth?.type === 'key' ? [...headers, ['authorization', `Bearer ${auth.key}`]] : headers,
    body: body === undefined || body === null ? undefined : Buffer.from(body),
  };
}

function invalid(pointer: string, message: string): ApiProblem {
  return new ApiProblem('invalid_argument', `${pointer}: ${message}`, { errors: [{ pointer, message }] });
}

/** Returns what gives it back. */
function takeRun(userId: string): () => void {
  const own = runs.get(userId) ?? 0;
  const all = [...runs.values()].reduce((sum, count) => sum + count, 0);
  if (own >= MAX_RUNS_PER_USER || all >= MAX_RUNS) {
    throw new ApiProblem(
      'too_many_attempts',
      `expected at most ${MAX_RUNS_PER_USER} tests at once; wait until one has ended`,
      { headers: { 'Retry-After': '1' } },
    );
  }
  runs.set(userId, own + 1);
  return () => {
    const left = (runs.get(userId) ?? 1) - 1;
    if (left === 0) runs.delete(userId);
    else runs.set(userId, left);
  };
}

/** Tells the answer as events, and how it ended. */
async function run(
  reply: HttpReply,
  prepared: Prepared,
  gone: AbortSignal,
  call: (request: InsideRequest, sink: AnswerSink) => ReturnType<typeof callInside>,
): Promise<void> {
  const events = new Events(reply.stream(200, SSE_HEADERS));
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), MAX_RUN_MS);
  const onTruncated = () => limit.abort();
  const sink = new EventSink(events, onTruncated);
  try {
    const { isWhole, call: seen } = await call({ ...prepared, signal: AbortSignal.any([gone, limit.signal]) }, sink);
    sink.flush();
    if (!isWhole && !sink.isTruncated) {
      const isLate = limit.signal.aborted;
      events.tell(
        'error',
        isLate
          ? { code: 'upstream_timeout', message: `The answer took longer than ${MAX_RUN_MS / 1000} s` }
          : { code: 'upstream_unavailable', message: 'The answer broke off' },
      );
    }
    events.tell('end', {
      connect_ms: rounded(seen?.connectMs),
      first_byte_ms: seen?.firstByteAtMs === undefined ? null : rounded(seen.firstByteAtMs - events.startedMs),
      bytes: sink.numBytes,
      truncated: sink.isTruncated,
    });
  } finally {
    clearTimeout(timer);
    events.end();
  }
}

class Events {
  readonly startedMs = performance.now();
  readonly #stream: ReplyStream;

  constructor(stream: ReplyStream) {
    this.#stream = stream;
  }

  tell(type: 'head' | 'chunk' | 'end' | 'error', fields: object): boolean {
    return this.#stream.write(
      `data: ${JSON.stringify({ type, at_ms: rounded(performance.now() - this.startedMs), ...fields })}\n\n`,
    );
  }

  drained(): Promise<void> {
    return this.#stream.drained();
  }

  end(): void {
    this.#stream.end();
  }
}

class EventSink implements AnswerSink {
  readonly #events: Events;
  readonly #onTruncated: () => void;
  /** Holds back what is half a character; undefined once something was no UTF-8. */
  #decoder: TextDecoder | undefined = new TextDecoder('utf-8', { fatal: true });
  numBytes = 0;
  isTruncated = false;

  constructor(events: Events, onTruncated: () => void) {
    this.#events = events;
    this.#onTruncated = onTruncated;
  }

  head(status: number, headers: readonly [string, string][]): void {
    this.#events.tell('head', { status, headers });
  }

  piece(bytes: Buffer): boolean {
    if (this.isTruncated) return true;
    const room = MAX_ANSWER_BYTES - this.numBytes;
    this.numBytes += Math.min(bytes.length, room);
    const isOpen = this.#tell(bytes.subarray(0, room));
    if (bytes.length > room) {
      this.isTruncated = true;
      this.#onTruncated();
    }
    return isOpen;
  }

  drained(): Promise<void> {
    return this.#events.drained();
  }

  /** Half a character at the end of all. */
  flush(): void {
    try {
      this.#decoder?.decode();
    } catch {
      this.#events.tell('chunk', { text: '\ufffd' });
    }
  }

  #tell(bytes: Buffer): boolean {
    try {
      const text = this.#decoder?.decode(bytes, { stream: true });
      if (text !== undefined) return text === '' || this.#events.tell('chunk', { text });
    } catch {
      this.#decoder = undefined;
    }
    return this.#events.tell('chunk', { base64: bytes.toString('base64') });
  }
}

function rounded(ms: number | undefined): number | null {
  return ms === undefined ? null : Math.round(ms * 100) / 100;
}
