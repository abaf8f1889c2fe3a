import {
  callerAddress,
  CidrList,
  header,
  type HttpReply,
  type HttpRequest,
  RecordedReply,
  requestIdOf,
  type RequestRecord,
} from 'capstan/internal';
import { AttemptLimiter } from './attempt-limiter';
import { authenticate, unauthenticated } from './authenticate';
import { readJson } from './body';
import type { ApiContext } from './context';
import { etagOf, ifMatchOf } from './etag';
import { API_HEADERS, securityHeaders } from './headers';
import { runIdempotent } from './idempotency';
import { ApiProblem, renderProblem, toProblem } from './problem';
import { parseQuery } from './query';
import type { ApiResponse, ApiCall, ApiRoute } from './route';
import { Router } from './router';

export interface ApiOptions {
  routes: readonly ApiRoute[];
  context: ApiContext;
  /** Called for each finished request. */
  onEnd?: (record: RequestRecord) => void;
  /** How often a stream checks that its session or token is still valid. Default 15 s. */
  recheckMs?: number;
}

/** Path prefix of the management API. */
export const API_PREFIX = '/api/';
const FAILED_ATTEMPTS_PER_MINUTE = 20;
/** A stream ends this long after its session or token at the latest. */
const RECHECK_MS = 15_000;

/**
 * Handles requests to the management API: route, caller, query, body, handler, and all error responses. Handles no
 * sockets.
 */
export class Api {
  readonly #context: ApiContext;
  readonly #router: Router;
  readonly #onEnd: ApiOptions['onEnd'];
  readonly #headers: Readonly<Record<string, string>>;
  readonly #trustedProxies: CidrList | undefined;
  readonly #attempts: AttemptLimiter;
  readonly #recheckMs: number;

  constructor({ routes, context, onEnd, recheckMs = RECHECK_MS }: ApiOptions) {
    const { trustedProxies } = context.settings;
    this.#context = context;
    this.#router = new Router(routes);
    this.#onEnd = onEnd;
    this.#recheckMs = recheckMs;
    this.#headers = { ...securityHeaders(context.settings), ...API_HEADERS };
    this.#trustedProxies = trustedProxies.length === 0 ? undefined : CidrList.parse('--trusted-proxy', trustedProxies);
    this.#attempts = new AttemptLimiter(FAILED_ATTEMPTS_PER_MINUTE, context.now);
  }

  get routes(): readonly ApiRoute[] {
    return this.#router.all;
  }

  /** Never rejects. */
  async handle(request: HttpRequest, reply: HttpReply): Promise<void> {
    const startedMs = performance.now();
    const requestId = requestIdOf(request);
    const recorded = new RecordedReply(reply, { ...this.#headers, 'X-Request-Id': requestId });
    let route: ApiRoute | undefined;
    try {
      const match = this.#router.find(request.path);
      route = findRoute(match?.routes, request.method);
      await this.#process(route, match!.paramsOf(route), request, recorded, requestId);
    } catch (error) {
      this.#sendError(error, request, recorded, requestId);
    } finally {
      this.#onEnd?.({
        method: request.method,
        path: request.path,
        route: route?.path,
        status: recorded.status ?? 499,
        durationMs: performance.now() - startedMs,
        requestBytes: undefined,
        responseBytes: recorded.numBytes,
        hasClientLeft: request.signal.aborted,
        requestId,
        keyId: undefined,
        tokens: 0,
      });
    }
  }

  async #process(
    route: ApiRoute,
    params: Record<string, string>,
    request: HttpRequest,
    recorded: RecordedReply,
    requestId: string,
  ): Promise<void> {
    const context = this.#context;
    const address = callerAddress(request.remoteAddress, request.headers, this.#trustedProxies);
    // NOTE: authenticate before reading anything else of the request.
    const { actor, session, isStillValid } = await authenticate(route, request, address, context, this.#attempts);
    const query = await parseQuery(route.query, request.query);
    const ifMatch = ifMatchOf(request);
    if (route.needsIfMatch === true && header(request, 'if-match') === undefined)
      throw new ApiProblem('precondition_required', 'If-Match: expected the current ETag of the object');
    const { value: body, text } = await readJson(route, request);
    const ending = new AbortController();
    const call: ApiCall = {
      context,
      requestId,
      hasActor: actor !== undefined,
      session,
      address,
      attempts: this.#attempts,
      params,
      query,
      body,
      ifMatch,
      request,
      signal: AbortSignal.any([request.signal, ending.signal]),
      get actor() {
        if (actor === undefined) throw unauthenticated();
        return actor;
      },
    };
    const result = await runIdempotent(context.store, route, request, actor?.userId, text, () => route.handle(call));
    if (!('stream' in result)) return send(result, recorded);
    const timer = setInterval(
      () =>
        void isStillValid().then(
          (isValid) => {
            if (!isValid) ending.abort();
          },
          () => {},
        ),
      this.#recheckMs,
    ).unref();
    await result.stream(recorded).finally(() => clearInterval(timer));
  }

  #sendError(error: unknown, request: HttpRequest, recorded: RecordedReply, requestId: string): void {
    if (request.signal.aborted) return;
    const problem = toProblem(error);
    if (problem.cause !== undefined)
      this.#context.log.error(
        { path: request.path, err: problem.cause, requestId },
        'request to the management API failed',
      );
    if (!recorded.hasStarted)
      recorded.send(
        problem.status,
        { 'Content-Type': 'application/problem+json', ...problem.headers },
        renderProblem(problem, requestId),
      );
  }
}

function findRoute(routes: ReadonlyMap<string, ApiRoute> | undefined, method: string): ApiRoute {
  if (routes === undefined) throw new ApiProblem('not_found', 'this path does not exist');
  const route = routes.get(method === 'HEAD' ? 'GET' : method);
  if (route !== undefined) return route;
  const allowed = [...routes.keys()].flatMap((name) => (name === 'GET' ? ['GET', 'HEAD'] : [name]));
  throw new ApiProblem('method_not_allowed', `expected ${allowed.join(' or ')}`, {
    headers: { Allow: allowed.join(', ') },
  });
}

function send(result: Exclude<ApiResponse, { stream: unknown }>, recorded: RecordedReply): void {
  const { status, body, headers = {} } = result;
  if (body === undefined) recorded.send(status, headers, '');
  else recorded.send(status, { 'Content-Type': 'application/json', ...etagOf(body), ...headers }, JSON.stringify(body));
}
