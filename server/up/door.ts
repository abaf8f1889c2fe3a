import type { HttpReply, HttpRequest, StreamHandler } from '../http/transport';
import { packageVersion } from '../version';

export interface Readiness {
  /** What keeps the service from its work; undefined: nothing. */
  check(): Promise<string | undefined>;
}

const JSON_HEADERS = { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' } as const;
const HEALTH_PATHS: ReadonlySet<string> = new Set(['/healthz', '/readyz']);

/** The way in at one port: answers for the health of the process at any time, and for its absence until the service is there. */
export class Door {
  readonly #readiness: Readiness;
  readonly #isEndless: (request: HttpRequest) => boolean;
  readonly #ending = new AbortController();
  #handler: StreamHandler | undefined;
  #isClosing = false;
  readonly #open = new Set<object>();
  #onIdle: (() => void)[] = [];

  /** @param isEndless Requests whose answers go on until somebody ends them: by their signal when the door closes. */
  constructor(readiness: Readiness, isEndless: (request: HttpRequest) => boolean = () => false) {
    this.#readiness = readiness;
    this.#isEndless = isEndless;
  }

  /** From now on requests are answered. */
  open(handler: StreamHandler): void {
    this.#handler = handler;
  }

  /** New requests are refused; resolves when the open ones are answered. */
  drain(): Promise<void> {
    this.#isClosing = true;
    this.#ending.abort();
    return this.#open.size === 0 ? Promise.resolve() : new Promise((resolve) => this.#onIdle.push(resolve));
  }

  get numOpenRequests(): number {
    return this.#open.size;
  }

  readonly handle: StreamHandler = async (request, reply) => {
    if (HEALTH_PATHS.has(request.path)) return this.#health(request, reply);
    if (this.#handler === undefined || this.#isClosing)
      return reply.send(503, { ...JSON_HEADERS, 'Retry-After': '1' }, refusal(this.#isClosing));
    const mark = {};
    this.#open.add(mark);
    try {
      await this.#handler(
        this.#isEndless(request)
          ? { ...request, signal: AbortSignal.any([request.signal, this.#ending.signal]) }
          : request,
        reply,
      );
    } finally {
      this.#open.delete(mark);
      if (this.#open.size === 0) this.#onIdle.splice(0).forEach((resolve) => resolve());
    }
  };

  async #health({ path, method }: HttpRequest, reply: HttpReply): Promise<void> {
    if (method !== 'GET' && method !== 'HEAD')
      return reply.send(
        405,
        { ...JSON_HEADERS, Allow: 'GET, HEAD' },
        JSON.stringify({ status: 'expected GET or HEAD' }),
      );
    if (path === '/healthz')
      return reply.send(200, JSON_HEADERS, JSON.stringify({ status: 'ok', version: packageVersion() }));
    const problem = this.#isClosing
      ? 'shutting down'
      : this.#handler === undefined
        ? 'starting'
        : await this.#readiness.check();
    reply.send(problem === undefined ? 200 : 503, JSON_HEADERS, JSON.stringify({ status: problem ?? 'ready' }));
  }
}

/** In OpenAI's shape, and with what a problem document has: the two ports have callers of both kinds. */
function refusal(isClosing: boolean): string {
  const [code, message] = isClosing
    ? ['shutting_down', 'The service is shutting down']
    : ['starting', 'The service starts: try again in a moment'];
  return JSON.stringify({
    error: { message, type: 'service_unavailable', code, param: null },
    title: message,
    status: 503,
    detail: message,
    code,
  });
}
