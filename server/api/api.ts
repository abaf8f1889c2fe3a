import { randomBytes } from 'node:crypto';
import { callerAddress } from '../access/caller-address';
import { CidrList } from '../access/cidr';
import { Answer } from '../answer';
import { header, type HttpReply, type HttpRequest } from '../http/transport';
import type { RequestRecord } from '../routes';
import { AttemptLimiter } from './attempt-limiter';
import { authenticate, unauthenticated } from './authenticate';
import { readJson } from './body';
import type { ApiContext } from './context';
import { etagOf, ifMatchOf } from './etag';
import { API_HEADERS, securityHeaders } from './headers';
import { once } from './once';
import { ApiProblem, renderProblem, toProblem } from './problem';
import { parseQuery } from './query';
import type { ApiAnswer, ApiCall, ApiRoute } from './route';
import { Router } from './router';

export interface ApiOptions {
  routes: readonly ApiRoute[];
  context: ApiContext;
  /** Hears of every request that has ended. */
  onEnd?: (record: RequestRecord) => void;
  /** For tests: default 15 s. */
  recheckMs?: number;
}

/** Everything below it is ours. */
export const API_PREFIX = '/api/';
const FAILED_ATTEMPTS_PER_MINUTE = 20;
/** A stream ends this soon after the session or the token that opened it. */
const RECHECK_MS = 15_000;

/** The walk of a request to the management interface: route, caller, query, body, handler, and the one place where errors are answered. Knows no sockets. */
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
    const answer = new Answer(reply, { ...this.#headers, 'X-Request-Id': requestId });
    let route: ApiRoute | undefined;
    try {
      const match = this.#router.find(request.path);
      route = findRoute(match?.routes, request.method);
      await this.#walk(route, match!.paramsOf(route), request, answer, requestId);
    } catch (error) {
      this.#answerError(error, request, answer, requestId);
    } finally {
      this.#onEnd?.({
        method: request.method,
        path: request.path,
        route: route?.path,
        status: answer.status ?? 499,
        durationMs: performance.now() - startedMs,
        requestBytes: undefined,
        responseBytes: answer.numBytes,
        hasClientLeft: request.signal.aborted,
        requestId,
        keyId: undefined,
        tokens: 0,
      });
    }
  }

  async #walk(
    route: ApiRoute,
    params: Record<string, string>,
    request: HttpRequest,
    answer: Answer,
    requestId: string,
  ): Promise<void> {
    const context = this.#context;
    const address = callerAddress(request.remoteAddress, request.headers, this.#trustedProxies);
    // NOTE: before anything else of the request is looked at.
    const { actor, session, isKnown } = await authenticate(route, request, address, context, this.#attempts);
    const query = await parseQuery(route.query, request.query);
    const ifMatch = ifMatchOf(request);
    if (route.needsIfMatch === true && header(request, 'if-match') === undefined)
      throw new ApiProblem('precondition_required', 'If-Match: expected the ETag of the object as you know it');
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
    const made = await once(context.store, route, request, actor?.userId, text, () => route.handle(call));
    if (!('stream' in made)) return send(made, answer);
    const timer = setInterval(
      () =>
        void isKnown().then(
          (known) => {
            if (!known) ending.abort();
          },
          () => {},
        ),
      this.#recheckMs,
    ).unref();
    await made.stream(answer).finally(() => clearInterval(timer));
  }

  #answerError(error: unknown, request: HttpRequest, answer: Answer, requestId: string): void {
    if (request.signal.aborted) return;
    const problem = toProblem(error);
    if (problem.cause !== undefined)
      this.#context.log.error(
        { path: request.path, err: problem.cause, requestId },
        'a request of the management interface failed',
      );
    if (!answer.hasStarted)
      answer.send(
        problem.status,
        { 'Content-Type': 'application/problem+json', ...problem.headers },
        renderProblem(problem, requestId),
      );
  }
}

function findRoute(routes: ReadonlyMap<string, ApiRoute> | undefined, method: string): ApiRoute {
  if (routes === undefined) throw new ApiProblem('not_found', 'there is nothing at this path');
  const route = routes.get(method === 'HEAD' ? 'GET' : method);
  if (route !== undefined) return route;
  const allowed = [...routes.keys()].flatMap((name) => (name === 'GET' ? ['GET', 'HEAD'] : [name]));
  throw new ApiProblem('method_not_allowed', `expected ${allowed.join(' or ')}`, {
    headers: { Allow: allowed.join(', ') },
  });
}

function send(made: Exclude<ApiAnswer, { stream: unknown }>, answer: Answer): void {
  const { status, body, headers = {} } = made;
  if (body === undefined) answer.send(status, headers, '');
  else answer.send(status, { 'Content-Type': 'application/json', ...etagOf(body), ...headers }, JSON.stringify(body));
}

/** The client's own id, if it is fit for a header and a log; else a random one. */
function requestIdOf(request: HttpRequest): string {
  const given = header(request, 'x-request-id');
  return given !== undefined && /^[\x21-\x7e]{1,128}$/.test(given) ? given : randomBytes(16).toString('hex');
}
