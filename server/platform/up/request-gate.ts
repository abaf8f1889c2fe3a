import { type HttpReply, type HttpRequest, packageVersion, type StreamHandler } from 'capstan/internal';

export interface Readiness {
  /** Returns why the service is not ready, or undefined when it is. */
  check(): Promise<string | undefined>;
}

const JSON_HEADERS = { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' } as const;
const HEALTH_PATHS: ReadonlySet<string> = new Set(['/healthz', '/readyz']);

/**
 * Gate in front of a port's handler. Serves the health paths at any time, and 503 while the service starts, stops or
 * is a standby.
 */
export class RequestGate {
  readonly #readiness: Readiness;
  readonly #isEndless: (request: HttpRequest) => boolean;
  readonly #isForDeployment: (request: HttpRequest) => boolean;
  readonly #ending = new AbortController();
  #handler: StreamHandler | undefined;
  #phase: 'starting' | 'standby' = 'starting';
  #isClosing = false;
  readonly #open = new Set<object>();
  #onIdle: (() => void)[] = [];

  /**
   * @param isEndless Selects requests whose responses have no end. Draining aborts their signals.
   * @param isForDeployment Selects requests to a deployment's own host name. They reach the deployment on the health
   * paths, too.
   */
  constructor(
    readiness: Readiness,
    isEndless: (request: HttpRequest) => boolean = () => false,
    isForDeployment: (request: HttpRequest) => boolean = () => false,
  ) {
    this.#readiness = readiness;
    this.#isEndless = isEndless;
    this.#isForDeployment = isForDeployment;
  }

  /** Reports that another service controls the deployments, until `open`. */
  standBy(): void {
    this.#phase = 'standby';
  }

  /** Starts passing requests to `handler`. */
  open(handler: StreamHandler): void {
    this.#handler = handler;
  }

  /** Refuses new requests. Resolves when all open requests have ended. */
  drain(): Promise<void> {
    this.#isClosing = true;
    this.#ending.abort();
    return this.#open.size === 0 ? Promise.resolve() : new Promise((resolve) => this.#onIdle.push(resolve));
  }

  get numOpenRequests(): number {
    return this.#open.size;
  }

  readonly handle: StreamHandler = async (request, reply) => {
    if (HEALTH_PATHS.has(request.path) && !this.#isForDeployment(request)) return this.#health(request, reply);
    if (this.#handler === undefined || this.#isClosing)
      return reply.send(
        503,
        { ...JSON_HEADERS, 'Retry-After': '1' },
        refusal(this.#isClosing ? 'shutting_down' : this.#phase),
      );
    const token = {};
    this.#open.add(token);
    try {
      await this.#handler(
        this.#isEndless(request)
          ? { ...request, signal: AbortSignal.any([request.signal, this.#ending.signal]) }
          : request,
        reply,
      );
    } finally {
      this.#open.delete(token);
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
    const problem = await this.#findProblem();
    reply.send(problem === undefined ? 200 : 503, JSON_HEADERS, JSON.stringify({ status: problem ?? 'ready' }));
  }

  async #findProblem(): Promise<string | undefined> {
    if (this.#isClosing) return 'shutting down';
    return this.#handler === undefined ? this.#phase : this.#readiness.check();
  }
}

const REFUSALS = {
  starting: 'The service is starting: try again in a moment',
  standby: 'This service is a standby: another service controls the deployments of its database',
  shutting_down: 'The service is shutting down',
} as const;

/** An OpenAI error that is also a problem document, because the two ports serve clients of both kinds. */
function refusal(code: keyof typeof REFUSALS): string {
  const message = REFUSALS[code];
  return JSON.stringify({
    error: { message, type: 'service_unavailable', code, param: null },
    title: message,
    status: 503,
    detail: message,
    code,
  });
}
