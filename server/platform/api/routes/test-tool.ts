import { TextDecoder } from 'node:util';
import { type HttpReply, type ReplyStream, SSE_HEADERS } from 'capstan/internal';
import { type ResponseSink, callInProcess, type InProcessRequest } from '../../gateway/in-process-call';
import { TestRequest } from '../objects';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';

const MAX_BODY_BYTES = 24 * 1024 * 1024;
const MAX_RESPONSE_BYTES = 10 * 1024 * 1024;
const MAX_RUN_MS = 300_000;
const MAX_RUNS_PER_USER = 4;
const MAX_RUNS = 32;

/** Headers that the gateway sets, or that belong to one connection. A test request may not set them. */
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
/** Control characters, which HTTP headers must not contain. */
const CONTROL = /[\x00-\x08\x0a-\x1f\x7f]/;

/** Number of running tests, by user. */
const runs = new Map<string, number>();

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'POST',
    path: '/api/v1/deployments/{id}/test',
    summary: 'Send a test request through the URL of a deployment, and stream the response',
    tag: 'deployments',
    auth: 'any',
    body: TestRequest,
    maxBodyBytes: MAX_BODY_BYTES,
    responses: { 200: 'text/event-stream' },
    problems: ['wrong_state', 'invalid_argument', 'too_many_attempts'],
    handle: async ({ context: { store, serving }, actor, params, body, address, signal }) => {
      const { id } = await store.demandDeployment(actor, params.id, 'read');
      const target = serving?.targets.findById(id);
      if (serving === undefined || target === undefined)
        throw new ApiProblem('wrong_state', 'the deployment has no address on this gateway');
      const request = toInProcessRequest(body, { url: serving.urlOf(target.slug), remoteAddress: address });
      const release = acquireRun(actor.userId);
      return {
        stream: async (reply) => {
          try {
            await run(reply, request, signal, (inProcess, sink) => callInProcess(serving.gateway, inProcess, sink));
          } finally {
            release();
          }
        },
      };
    },
  }),
];

type PreparedRequest = Omit<InProcessRequest, 'signal'>;

/** Throws ApiProblem for an invalid path, header or key. */
function toInProcessRequest(
  { method, path, query = [], headers = [], body, auth }: TestRequest,
  { url, remoteAddress }: Pick<InProcessRequest, 'url' | 'remoteAddress'>,
): PreparedRequest {
  // Refuse paths that could be parsed as another host or as several lines.
  if (!path.startsWith('/') || /^\/[/\\]|[\\#]|%0[ad]/i.test(path))
    throw invalid('/path', 'expected a path below the deployment, such as /v1/models');
  for (const [index, [name, value]] of headers.entries()) {
    const lower = name.toLowerCase();
    if (!TOKEN.test(name) || CONTROL.test(value)) throw invalid(`/headers/${index}`, 'expected a single-line header');
    if (REFUSED_HEADERS.has(lower) || lower.startsWith('x-forwarded-') || lower.startsWith('x-capstan-'))
      throw invalid(`/headers/${index}`, `the gateway sets the header ${name}`);
    if (auth?.type === 'key' && lower === 'authorization')
      throw invalid(`/headers/${index}`, 'Authorization is not allowed together with a key');
  }
  if (auth?.type === 'key' && CONTROL.test(auth.key)) throw invalid('/auth/key', 'expected a single-line key');
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

/** Counts a running test. Returns a function that ends it. Throws ApiProblem when too many run. */
function acquireRun(userId: string): () => void {
  const own = runs.get(userId) ?? 0;
  const all = [...runs.values()].reduce((sum, count) => sum + count, 0);
  if (own >= MAX_RUNS_PER_USER || all >= MAX_RUNS) {
    throw new ApiProblem(
      'too_many_attempts',
      `expected at most ${MAX_RUNS_PER_USER} tests at once: wait until one has ended`,
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

/** Runs the request and streams its response and its outcome as events. */
async function run(
  reply: HttpReply,
  prepared: PreparedRequest,
  clientGone: AbortSignal,
  call: (request: InProcessRequest, sink: ResponseSink) => ReturnType<typeof callInProcess>,
): Promise<void> {
  const events = new Events(reply.stream(200, SSE_HEADERS));
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), MAX_RUN_MS);
  const onTruncated = () => limit.abort();
  const sink = new EventSink(events, onTruncated);
  try {
    const { isComplete, call: seen } = await call(
      { ...prepared, signal: AbortSignal.any([clientGone, limit.signal]) },
      sink,
    );
    sink.flush();
    if (!isComplete && !sink.isTruncated) {
      const isLate = limit.signal.aborted;
      events.send(
        'error',
        isLate
          ? { code: 'upstream_timeout', message: `The response took longer than ${MAX_RUN_MS / 1000} s` }
          : { code: 'upstream_unavailable', message: 'The response ended too early' },
      );
    }
    events.send('end', {
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

  send(type: 'head' | 'chunk' | 'end' | 'error', fields: object): boolean {
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

class EventSink implements ResponseSink {
  readonly #events: Events;
  readonly #onTruncated: () => void;
  /** Withholds incomplete characters. Undefined once the body was not valid UTF-8. */
  #decoder: TextDecoder | undefined = new TextDecoder('utf-8', { fatal: true });
  numBytes = 0;
  isTruncated = false;

  constructor(events: Events, onTruncated: () => void) {
    this.#events = events;
    this.#onTruncated = onTruncated;
  }

  head(status: number, headers: readonly [string, string][]): void {
    this.#events.send('head', { status, headers });
  }

  piece(bytes: Buffer): boolean {
    if (this.isTruncated) return true;
    const numLeft = MAX_RESPONSE_BYTES - this.numBytes;
    this.numBytes += Math.min(bytes.length, numLeft);
    const isOpen = this.#sendChunk(bytes.subarray(0, numLeft));
    if (bytes.length > numLeft) {
      this.isTruncated = true;
      this.#onTruncated();
    }
    return isOpen;
  }

  drained(): Promise<void> {
    return this.#events.drained();
  }

  /** Reports an incomplete character at the end of the body. */
  flush(): void {
    try {
      this.#decoder?.decode();
    } catch {
      this.#events.send('chunk', { text: '\ufffd' });
    }
  }

  #sendChunk(bytes: Buffer): boolean {
    try {
      const text = this.#decoder?.decode(bytes, { stream: true });
      if (text !== undefined) return text === '' || this.#events.send('chunk', { text });
    } catch {
      this.#decoder = undefined;
    }
    return this.#events.send('chunk', { base64: bytes.toString('base64') });
  }
}

function rounded(ms: number | undefined): number | null {
  return ms === undefined ? null : Math.round(ms * 100) / 100;
}
