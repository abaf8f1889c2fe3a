import type { Engine } from '../ts';
import type { Access, AccessOutcome } from './access';
import { Answer } from './answer';
import { Cors, isPreflight } from './cors';
import { ApiError, renderError, toApiError } from './errors';
import { checkHealth } from './health';
import type { SseOptions } from './http/sse';
import { header, type HttpReply, type HttpRequest } from './http/transport';
import type { Log } from './log';
import { ServedModel } from './openai/models';
import { OPENAI_ROUTES, type OpenAiContext } from './openai/routes';
import { ReplicaDoor } from './replica-door';
import { formatLoad, LOAD_HEADER, LOAD_PATH } from './replica-headers';
import { type CallContext, type CallIdentity, NOBODY, type RequestRecord, type Route, RouteTable } from './routes';
import { requestIdOf } from './request-id';
import { DEFAULT_SETTINGS, type ServerSettings } from './settings';
import { packageVersion } from './version';

export interface AppOptions {
  /** Default: the model's own name. */
  servedNames: readonly string[];
  healthStallTimeoutMs: number;
  sse: SseOptions;
  log: Log;
  /** Default: any origin may call. */
  cors?: Cors;
  /** Absent: every request is let in. */
  access?: Pick<Access, 'check'>;
  /** A replica behind our gateway: answers whoever knows this, and tells its load and what calls use. */
  replicaSecret?: string;
  /** Paths that need no key all the same. */
  openPaths?: readonly string[];
  /** Whether the prefix cache is parted by the owner of the key or shared by all callers; default `owner`. */
  prefixCacheScope?: 'owner' | 'server';
  /** What a proxy puts before our paths; taken off where it is still there. */
  rootPath?: string;
  /** Default: {@link DEFAULT_SETTINGS}. */
  settings?: ServerSettings;
  /** Routes that need no model. */
  routes?: readonly Route[];
  /** Hears of every request that has ended. */
  onEnd?: (record: RequestRecord) => void;
}

/** A loaded engine and what answers for it. */
interface Service {
  engine: Engine;
  model: ServedModel;
}

/** One request on its walk. */
interface Walk {
  readonly startedMs: number;
  readonly requestId: string;
  readonly answer: Answer;
  readonly isAdmin: boolean;
  identity: CallIdentity;
  tellsUsage: boolean;
  signal: AbortSignal;
  route: Route | undefined;
  tokens: number;
}

/** The walk of a request: access, route, handler, and the one place where errors are answered. Knows no sockets. */
export class App {
  readonly #options: AppOptions;
  readonly #routes: RouteTable<CallContext>;
  readonly #cors: Cors;
  readonly #openPaths: ReadonlySet<string>;
  readonly #door: ReplicaDoor | undefined;
  #service: Service | undefined;
  #isDraining = false;
  readonly #open = new Set<Walk>();
  #onIdle: (() => void)[] = [];

  constructor(options: AppOptions) {
    this.#options = options;
    this.#cors = options.cors ?? new Cors();
    this.#openPaths = new Set(options.openPaths);
    if (options.replicaSecret !== undefined) this.#door = new ReplicaDoor(options.replicaSecret);
    const version = JSON.stringify({ version: packageVersion() });
    const health = (method: 'GET' | 'POST', path: string): Route<OpenAiContext> => ({
      method,
      path,
      isOperational: true,
      handle: ({ engine }, _request, reply) => this.#health(engine, reply),
    });
    this.#routes = new RouteTable([
      ...[...OPENAI_ROUTES, health('GET', '/health'), health('GET', '/ping'), health('POST', '/ping')].map((route) =>
        this.#onceLoaded(route),
      ),
      {
        method: 'GET',
        path: '/version',
        handle: (_context, _request, reply) => reply.send(200, { 'Content-Type': 'application/json' }, version),
      },
      ...(this.#door === undefined
        ? []
        : [
            {
              method: 'GET',
              path: LOAD_PATH,
              handle: (_context: CallContext, _request: HttpRequest, reply: HttpReply) => reply.send(204, {}, ''),
            } as const,
          ]),
      ...(options.routes ?? []),
    ]);
  }

  /** The model is loaded; until then the routes that need it answer `model_loading`. */
  serve(engine: Engine): void {
    const [first = engine.info.modelName, ...rest] = this.#options.servedNames;
    this.#service = { engine, model: new ServedModel([first, ...rest], engine.info) };
  }

  /** From now on new requests to the model are refused; resolves when the open ones are answered. */
  drain(): Promise<void> {
    this.#isDraining = true;
    return this.#open.size === 0 ? Promise.resolve() : new Promise((resolve) => this.#onIdle.push(resolve));
  }

  get numOpenRequests(): number {
    return this.#open.size;
  }

  get numOpenStreams(): number {
    return [...this.#open].filter(({ answer }) => answer.isStream).length;
  }

  /** Of the serving port. */
  get routes(): readonly Route[] {
    return this.#routes.all;
  }

  /** A request of the serving port. Never rejects. */
  handle(request: HttpRequest, reply: HttpReply): Promise<void> {
    return this.#answer(request, reply, false);
  }

  /** A request of the admin listener: operational routes alone, and no key. Never rejects. */
  handleAdmin(request: HttpRequest, reply: HttpReply): Promise<void> {
    return this.#answer(request, reply, true);
  }

  async #answer(request: HttpRequest, reply: HttpReply, isAdmin: boolean): Promise<void> {
    const requestId = requestIdOf(request);
    const answer = new Answer(reply, { ...this.#cors.headers(request), 'X-Request-Id': requestId });
    const walk: Walk = {
      startedMs: performance.now(),
      requestId,
      answer,
      isAdmin,
      identity: NOBODY,
      tellsUsage: false,
      signal: request.signal,
      route: undefined,
      tokens: 0,
    };
    walk.identity = {
      ...NOBODY,
      done: (tokens = 0) => {
        walk.tokens ||= tokens;
      },
    };
    this.#open.add(walk);
    try {
      await this.#walk(walk, request);
    } catch (error) {
      this.#answerError(error, request, walk);
    } finally {
      walk.identity.done();
      this.#options.onEnd?.(toRecord(walk, request));
      this.#open.delete(walk);
      if (this.#open.size === 0) this.#onIdle.splice(0).forEach((resolve) => resolve());
    }
  }

  async #walk(walk: Walk, request: HttpRequest): Promise<void> {
    const { answer, isAdmin } = walk;
    if (isPreflight(request)) return answer.send(204, {}, '');
    const path = this.#ownPath(request.path);
    if (!isAdmin) this.#admitGateway(walk, request, path);
    // NOTE: before anything else of the request is looked at; an open path is compared whole, never by its beginning.
    if (!isAdmin && !this.#openPaths.has(path)) {
      const checking = this.#checkAccess(walk, request);
      // Most keys are known, and then nothing comes between.
      if (checking !== undefined) await checking;
    }
    const route = (walk.route = this.#findRoute(request.method, path, isAdmin));
    const { requestId, identity, signal, tellsUsage } = walk;
    await route.handle(
      { requestId, identity, signal, tellsUsage },
      path === request.path ? request : { ...request, path },
      answer,
    );
  }

  #admitGateway(walk: Walk, request: HttpRequest, path: string): void {
    const admitted = this.#door?.admit(request, path);
    if (admitted === undefined) return;
    walk.tellsUsage = true;
    walk.identity = { ...walk.identity, cacheSalt: admitted.salt };
    walk.answer.addHeader(LOAD_HEADER, this.#load());
  }

  #load(): string {
    const { queuedPromptTokens, numFreeBlocks, numCachedBlocks, numBlocks } = this.#service?.engine.stats() ?? {
      queuedPromptTokens: 0,
      numFreeBlocks: 0,
      numCachedBlocks: 0,
      numBlocks: 0,
    };
    return formatLoad({
      open: this.#open.size,
      queuedPromptTokens,
      freeBlocks: numFreeBlocks + numCachedBlocks,
      numBlocks,
    });
  }

  #checkAccess(walk: Walk, request: HttpRequest): Promise<void> | undefined {
    const outcome = this.#options.access?.check(request);
    if (outcome instanceof Promise) return outcome.then((settled) => this.#admit(walk, settled));
    if (outcome !== undefined) this.#admit(walk, outcome);
    return undefined;
  }

  #admit(walk: Walk, outcome: AccessOutcome): void {
    const { prefixCacheScope = 'owner' } = this.#options;
    if (!outcome.ok) throw new ApiError(outcome.code, outcome.message, { headers: { ...outcome.headers } });
    const { keyId, ownerId, signal } = outcome;
    // A key that is revoked ends what it has running.
    if (signal !== undefined) walk.signal = AbortSignal.any([walk.signal, signal]);
    walk.identity = {
      keyId,
      ownerId,
      // The gateway knows better who calls.
      cacheSalt: walk.identity.cacheSalt || (prefixCacheScope === 'owner' ? ownerId : ''),
      done: (tokens = 0) => {
        walk.tokens ||= tokens;
        outcome.done(tokens);
      },
    };
  }

  #findRoute(method: string, path: string, isAdmin: boolean): Route {
    const candidates = this.#routes.at(path).filter((route) => !isAdmin || route.isOperational);
    if (candidates.length === 0) throw new ApiError('unknown_url', 'There is nothing at this path');
    const wanted = method === 'HEAD' ? 'GET' : method;
    const route = candidates.find((candidate) => candidate.method === wanted);
    if (route !== undefined) return route;
    const allowed = candidates.flatMap((candidate) =>
      candidate.method === 'GET' ? ['GET', 'HEAD'] : [candidate.method],
    );
    throw new ApiError('method_not_allowed', `The method is not allowed here: expected ${allowed.join(' or ')}`, {
      headers: { Allow: allowed.join(', ') },
    });
  }

  /** A route that needs the model, as one that answers for its absence too. */
  #onceLoaded(route: Route<OpenAiContext>): Route {
    return {
      ...route,
      handle: (context, request, reply) => {
        if (this.#isDraining) throw new ApiError('shutting_down', 'The server is shutting down');
        if (this.#service === undefined) throw new ApiError('model_loading', 'The model is still loading');
        const { sse, log, settings = DEFAULT_SETTINGS } = this.#options;
        return route.handle({ ...context, ...this.#service, sse, log, settings }, request, reply);
      },
    };
  }

  #health(engine: Engine, reply: HttpReply): void {
    checkHealth(engine.stats(), this.#options.healthStallTimeoutMs);
    reply.send(200, {}, '');
  }

  #answerError(error: unknown, request: HttpRequest, { answer }: Walk): void {
    if (request.signal.aborted) return;
    const apiError = toApiError(error);
    if (apiError.status === 500)
      this.#options.log.error({ path: request.path, err: apiError.cause ?? apiError }, 'a request failed');
    if (!answer.hasStarted)
      answer.send(apiError.status, { 'Content-Type': 'application/json', ...apiError.headers }, renderError(apiError));
  }

  #ownPath(path: string): string {
    const { rootPath = '' } = this.#options;
    return rootPath !== '' && path.startsWith(`${rootPath}/`) ? path.slice(rootPath.length) : path;
  }
}

const CLIENT_GONE = 499;

function toRecord(
  { startedMs, requestId, answer, identity, route, tokens }: Walk,
  request: HttpRequest,
): RequestRecord {
  const contentLength = header(request, 'content-length');
  return {
    method: request.method,
    path: request.path,
    route: route?.path,
    status: answer.status ?? CLIENT_GONE,
    durationMs: performance.now() - startedMs,
    requestBytes: contentLength === undefined ? undefined : Number(contentLength),
    responseBytes: answer.numBytes,
    hasClientLeft: request.signal.aborted,
    requestId: answer.requestId ?? requestId,
    keyId: identity.keyId,
    tokens,
  };
}
