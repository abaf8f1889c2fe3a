import type { Engine } from '../../ts';
import type { Access, AccessOutcome } from '../access';
import { RecordedReply } from '../http/recorded-reply';
import { Cors, isPreflight } from '../http/cors';
import { ApiError } from '../base/errors';
import { errorStyleOf, isAnthropicRequest } from '../base/error-styles';
import { redactKeys } from '../base/key-format';
import { withBearerKey } from '../access/check/authorization';
import { toApiError } from '../base/to-api-error';
import type { RequestTrace, Tracing } from '../base/traces/request-trace';
import { Allowance } from './allowance';
import { adapterRoutes } from './adapter-routes';
import { refuseWebPages } from './admin-caller';
import { EndedUsage, type EndUsage } from './ended-usage';
import { checkModels } from './health';
import type { SseOptions } from '../http/sse';
import { header, type HttpReply, type HttpRequest } from '../http/transport';
import type { Log } from '../base/log';
import { MODEL_ADMIN_ROUTES } from './models/admin-routes';
import { ServedModels } from './models/served-models';
import { withModel } from './models/with-model';
import type { ServerContext } from './openai/context';
import { OPENAI_ROUTES, type OpenAiRoute } from './openai/routes';
import { PageGuard } from '../http/page-guard';
import { ReplicaGuard } from './replica-guard';
import type { ResponseStore } from '../storage/responses/store';
import {
  ENDED_USAGE_PATH,
  formatLoad,
  formatUsage,
  LOAD_HEADER,
  LOAD_PATH,
  USAGE_HEADER,
} from '../http/replica-headers';
import {
  pathParameter,
  type RequestContext,
  type ClientIdentity,
  ANONYMOUS,
  type RequestRecord,
  type Route,
  RouteTable,
} from '../http/routes';
import { requestIdOf } from '../http/request-id';
import { DEFAULT_SETTINGS, type ServerSettings } from './settings';
import { packageVersion } from '../base/version';

export interface AppOptions {
  /** Default: the name of the model. */
  servedNames: readonly string[];
  healthStallTimeoutMs: number;
  sse: SseOptions;
  log: Log;
  /** Default: any origin may call. */
  cors?: Cors;
  /** Absent: no request needs a key. */
  access?: Pick<Access, 'check'>;
  /** The secret of a replica. Only the gateway knows it, and gets the load and the token usage with each response. */
  replicaSecret?: string;
  /** Paths that need no key. */
  openPaths?: readonly string[];
  /** Whether each owner of keys has a separate partition of the prefix cache. Default: `owner`. */
  prefixCacheScope?: 'owner' | 'server';
  /** Path prefix of a proxy. It is removed if the proxy has not removed it. */
  rootPath?: string;
  /** Default: {@link DEFAULT_SETTINGS}. */
  settings?: ServerSettings;
  /** Where responses are kept for later requests. Absent: none are kept. */
  responses?: ResponseStore | undefined;
  /** The origins of web pages that may have what is stored without a key. Default: none. */
  allowedOrigins?: readonly string[];
  /** The folder that the admin listener may load adapters from. Default: none. */
  loraDir?: string;
  /** Additional routes that need no model. */
  routes?: readonly Route[];
  /** Absent: no request is traced. */
  tracing?: Tracing | undefined;
  /** Called at the end of every request. */
  onEnd?: (record: RequestRecord) => void;
}

const ENDED_USAGE_ROUTE = `${ENDED_USAGE_PATH}{id}`;

/** The state of a request in progress. */
interface OpenRequest {
  readonly startedMs: number;
  readonly requestId: string;
  readonly reply: RecordedReply;
  readonly isAdmin: boolean;
  readonly trace: RequestTrace | undefined;
  identity: ClientIdentity;
  reportsUsage: boolean;
  priority: number;
  allowance: Allowance | undefined;
  /** Receives the usage of a request with an allowance. */
  onUsage?: EndUsage;
  signal: AbortSignal;
  route: Route | undefined;
  tokens: number;
}

/** Characters of a path in an error. */
const MAX_SHOWN_PATH = 200;

/** Handles requests without sockets: checks access, finds the route, calls its handler and responds to errors. */
export class App {
  readonly #options: AppOptions;
  readonly #routes: RouteTable<RequestContext>;
  /** Routes that only the admin listener has. */
  readonly #adminRoutes: RouteTable<RequestContext>;
  readonly #cors: Cors;
  readonly #openPaths: ReadonlySet<string>;
  readonly #replicaGuard: ReplicaGuard | undefined;
  readonly #pageGuard: PageGuard;
  readonly #endedUsage = new EndedUsage();
  #models: ServedModels | undefined;
  #isDraining = false;
  readonly #open = new Set<OpenRequest>();
  #onIdle: (() => void)[] = [];

  constructor(options: AppOptions) {
    this.#options = options;
    this.#cors = options.cors ?? new Cors();
    this.#openPaths = new Set(options.openPaths);
    this.#pageGuard = new PageGuard(options.allowedOrigins);
    if (options.replicaSecret !== undefined) this.#replicaGuard = new ReplicaGuard(options.replicaSecret);
    this.#adminRoutes = new RouteTable(
      [...adapterRoutes(options.loraDir), ...MODEL_ADMIN_ROUTES].map((route) => this.#onceLoaded(route)),
    );
    const version = JSON.stringify({ version: packageVersion() });
    const health = (method: 'GET' | 'POST', path: string): Route<ServerContext> => ({
      method,
      path,
      isOperational: true,
      handle: ({ models }, _request, reply) => this.#health(models, reply),
    });
    this.#routes = new RouteTable([
      ...OPENAI_ROUTES.map((route) => this.#onceLoaded(toServerRoute(route))),
      ...[health('GET', '/health'), health('GET', '/ping'), health('POST', '/ping')].map((route) =>
        this.#onceLoaded(route),
      ),
      {
        method: 'GET',
        path: '/version',
        handle: (_context, _request, reply) => reply.send(200, { 'Content-Type': 'application/json' }, version),
      },
      ...(this.#replicaGuard === undefined
        ? []
        : [
            {
              method: 'GET',
              path: LOAD_PATH,
              handle: (_context: RequestContext, _request: HttpRequest, reply: HttpReply) => reply.send(204, {}, ''),
            } as const,
            {
              method: 'GET',
              path: ENDED_USAGE_ROUTE,
              handle: (_context: RequestContext, request: HttpRequest, reply: HttpReply) =>
                this.#sendUsage(request, reply),
            } as const,
          ]),
      ...(options.routes ?? []),
    ]);
  }

  /** Starts to serve a loaded model. Until then the routes that need it answer `model_loading`. */
  serve(engine: Engine): void {
    const [first = engine.info.modelName, ...rest] = this.#options.servedNames;
    this.serveModels(ServedModels.of(engine, [first, ...rest]));
  }

  /** As {@link App.serve}, for models that may load later. */
  serveModels(models: ServedModels): void {
    this.#models = models;
  }

  /** Refuses new requests to the model. Resolves when all open requests have ended. */
  drain(): Promise<void> {
    this.#isDraining = true;
    return this.#open.size === 0 ? Promise.resolve() : new Promise((resolve) => this.#onIdle.push(resolve));
  }

  get numOpenRequests(): number {
    return this.#open.size;
  }

  get numOpenStreams(): number {
    return [...this.#open].filter(({ reply }) => reply.isStream).length;
  }

  /** All routes of the serving port. */
  get routes(): readonly Route[] {
    return this.#routes.all;
  }

  /** Handles a request of the serving port. Never rejects. */
  handle(request: HttpRequest, reply: HttpReply): Promise<void> {
    return this.#respond(request, reply, false);
  }

  /** Handles a request of the admin listener, which serves its routes without a key. Never rejects. */
  handleAdmin(request: HttpRequest, reply: HttpReply): Promise<void> {
    return this.#respond(request, reply, true);
  }

  /**
   * Handles a request that no client waits for, such as a line of a batch. Its access is checked before, and it does
   * not count as open. Never rejects. Without a reply the request was aborted.
   */
  async handleOwn(request: HttpRequest, reply: HttpReply, context: RequestContext): Promise<void> {
    try {
      await this.#findRoute(request.method, request.path, false).handle(context, request, reply);
    } catch (error) {
      this.#sendError(error, request, { reply, requestId: context.requestId });
    }
  }

  async #respond(request: HttpRequest, transportReply: HttpReply, isAdmin: boolean): Promise<void> {
    const requestId = requestIdOf(request);
    const reply = new RecordedReply(transportReply, {
      ...this.#cors.headers(request),
      'X-Request-Id': requestId,
      ...(isAnthropicRequest(this.#withoutRootPath(request.path), request.headers) ? { 'request-id': requestId } : {}),
    });
    const startedMs = performance.now();
    const open: OpenRequest = {
      startedMs,
      requestId,
      reply,
      isAdmin,
      trace: this.#options.tracing?.start(request, this.#withoutRootPath(request.path), startedMs),
      identity: ANONYMOUS,
      reportsUsage: false,
      priority: 0,
      allowance: undefined,
      signal: request.signal,
      route: undefined,
      tokens: 0,
    };
    open.identity = {
      ...ANONYMOUS,
      done: (tokens = 0) => {
        open.tokens ||= tokens;
      },
    };
    this.#open.add(open);
    try {
      await this.#handle(open, request);
    } catch (error) {
      open.trace?.fail(toApiError(error).code);
      this.#sendError(error, request, open);
    } finally {
      open.identity.done();
      open.onUsage?.((open.allowance as Allowance).usageOf(open.tokens), request.signal.aborted);
      const record = toRecord(open, request);
      this.#options.onEnd?.(record);
      open.trace?.end(record.status, record.route);
      this.#open.delete(open);
      if (this.#open.size === 0) this.#onIdle.splice(0).forEach((resolve) => resolve());
    }
  }

  async #handle(open: OpenRequest, request: HttpRequest): Promise<void> {
    const { reply, isAdmin } = open;
    if (isAdmin) refuseWebPages(request);
    if (isPreflight(request)) return reply.send(204, {}, '');
    const path = this.#withoutRootPath(request.path);
    if (!isAdmin) this.#checkReplicaSecret(open, request, path);
    // NOTE: the key is checked before anything else. An open path must match exactly, not as a prefix.
    if (!isAdmin && !this.#openPaths.has(path)) {
      const pendingCheck = this.#checkAccess(open, request, path);
      // Most keys are in memory. Their check is synchronous and costs no extra turn of the event loop.
      if (pendingCheck !== undefined) await pendingCheck;
    }
    const route = (open.route = this.#findRoute(request.method, path, isAdmin));
    const { requestId, identity, signal, reportsUsage, priority, allowance, trace } = open;
    const isPageChecked = identity.ownerId === undefined && this.#replicaGuard === undefined;
    const pageRefusal = isPageChecked ? this.#pageGuard.refusal(request) : undefined;
    if (route.isPrivate === true && pageRefusal !== undefined) throw pageRefusal;
    const mayStore = pageRefusal === undefined;
    await route.handle(
      { requestId, identity, signal, reportsUsage, priority, allowance, trace, mayStore },
      path === request.path ? request : { ...request, path },
      reply,
    );
  }

  #checkReplicaSecret(open: OpenRequest, request: HttpRequest, path: string): void {
    const gateway = this.#replicaGuard?.check(request, path);
    if (gateway === undefined) return;
    open.reportsUsage = true;
    open.priority = gateway.priority;
    open.identity = { ...open.identity, cacheSalt: gateway.cacheSalt };
    open.allowance = Allowance.of(request);
    if (open.allowance !== undefined) open.onUsage = this.#endedUsage.begin(open.allowance.id);
    open.reply.addHeader(LOAD_HEADER, this.#load());
  }

  async #sendUsage({ path }: HttpRequest, reply: HttpReply): Promise<void> {
    const usage = await this.#endedUsage.take(pathParameter(ENDED_USAGE_ROUTE, path));
    if (usage === undefined) throw new ApiError('unknown_url', 'There is no such request');
    reply.send(204, { [USAGE_HEADER]: formatUsage(usage) }, '');
  }

  #load(): string {
    const load = { open: this.#open.size, queuedPromptTokens: 0, freeBlocks: 0, numBlocks: 0 };
    for (const { engine } of this.#models?.loaded ?? []) {
      const { queuedPromptTokens, numFreeBlocks, numCachedBlocks, numBlocks } = engine.stats();
      load.queuedPromptTokens += queuedPromptTokens;
      load.freeBlocks += numFreeBlocks + numCachedBlocks;
      load.numBlocks += numBlocks;
    }
    return formatLoad(load);
  }

  #checkAccess(open: OpenRequest, request: HttpRequest, path: string): Promise<void> | undefined {
    const checked = isAnthropicRequest(path, request.headers)
      ? { ...request, headers: withBearerKey(request.headers) }
      : request;
    const outcome = this.#options.access?.check(checked);
    if (outcome instanceof Promise) return outcome.then((settled) => this.#applyAccess(open, settled));
    if (outcome !== undefined) this.#applyAccess(open, outcome);
    return undefined;
  }

  #applyAccess(open: OpenRequest, outcome: AccessOutcome): void {
    const { prefixCacheScope = 'owner' } = this.#options;
    if (!outcome.ok) throw new ApiError(outcome.code, outcome.message, { headers: { ...outcome.headers } });
    const { keyId, ownerId, signal } = outcome;
    // Revoking the key ends its running requests.
    if (signal !== undefined) open.signal = AbortSignal.any([open.signal, signal]);
    open.identity = {
      keyId,
      ownerId,
      // A salt from the gateway takes precedence, because the gateway knows the client.
      cacheSalt: open.identity.cacheSalt || (prefixCacheScope === 'owner' ? ownerId : ''),
      done: (tokens = 0) => {
        open.tokens ||= tokens;
        outcome.done(tokens);
      },
    };
  }

  #findRoute(method: string, path: string, isAdmin: boolean): Route {
    const adminRoutes = this.#adminRoutes.at(path);
    if (!isAdmin && adminRoutes.length > 0)
      throw new ApiError('unknown_url', 'This path is on the admin listener only: see --admin-port');
    const routes = this.#routes.at(path).filter((route) => !isAdmin || route.isOperational);
    const candidates = [...routes, ...adminRoutes];
    if (candidates.length === 0) {
      const similar = similarPaths(path).find((other) => this.#routes.at(other).length > 0);
      const advice =
        similar === undefined ? 'See /openapi.json for the routes of this server' : `Did you mean ${similar}?`;
      throw new ApiError('unknown_url', `Unknown path ${redactKeys(path).slice(0, MAX_SHOWN_PATH)}. ${advice}`);
    }
    const wanted = method === 'HEAD' ? 'GET' : method;
    const route = candidates.find((candidate) => candidate.method === wanted);
    if (route !== undefined) return route;
    const allowed = candidates.flatMap((candidate) =>
      candidate.method === 'GET' ? ['GET', 'HEAD'] : [candidate.method],
    );
    throw new ApiError('method_not_allowed', `This path does not allow the method: expected ${allowed.join(' or ')}`, {
      headers: { Allow: allowed.join(', ') },
    });
  }

  /** Returns a route that responds with an error until the models are known and during shutdown. */
  #onceLoaded(route: Route<ServerContext>): Route {
    return {
      ...route,
      handle: (context, request, reply) => {
        if (this.#isDraining) throw new ApiError('shutting_down', 'The server is shutting down');
        if (this.#models === undefined) throw new ApiError('model_loading', 'The model is still loading');
        const { sse, log, settings = DEFAULT_SETTINGS } = this.#options;
        const responses = context.mayStore === false ? undefined : this.#options.responses;
        return route.handle({ ...context, models: this.#models, sse, log, settings, responses }, request, reply);
      },
    };
  }

  #health(models: ServedModels, reply: HttpReply): void {
    checkModels(models, this.#options.healthStallTimeoutMs);
    reply.send(200, {}, '');
  }

  #sendError(
    error: unknown,
    request: HttpRequest,
    { reply, requestId }: { reply: HttpReply; requestId: string },
  ): void {
    if (request.signal.aborted) return;
    const apiError = toApiError(error);
    if (apiError.status === 500)
      this.#options.log.error({ path: request.path, err: apiError.cause ?? apiError }, 'a request failed');
    if (reply.hasStarted) return;
    const style = errorStyleOf(this.#withoutRootPath(request.path), request.headers);
    const headers = { 'Content-Type': 'application/json', ...apiError.headers };
    reply.send(apiError.status, headers, style.body(apiError, requestId));
  }

  #withoutRootPath(path: string): string {
    const { rootPath = '' } = this.#options;
    return rootPath !== '' && path.startsWith(`${rootPath}/`) ? path.slice(rootPath.length) : path;
  }
}

/** Returns a route that finds its model first, if it needs one. */
function toServerRoute(route: OpenAiRoute): Route<ServerContext> {
  if (route.needsModel === false) return route;
  return { ...route, handle: (context, request, reply) => withModel(route, context, request, reply) };
}

/** The status that nginx introduced for a client that disconnected. */
const CLIENT_DISCONNECTED = 499;

function toRecord(
  { startedMs, requestId, reply, identity, route, tokens }: OpenRequest,
  request: HttpRequest,
): RequestRecord {
  const contentLength = header(request, 'content-length');
  return {
    method: request.method,
    path: request.path,
    route: route?.path,
    status: reply.status ?? CLIENT_DISCONNECTED,
    durationMs: performance.now() - startedMs,
    requestBytes: contentLength === undefined ? undefined : Number(contentLength),
    responseBytes: reply.numBytes,
    hasClientLeft: request.signal.aborted,
    requestId: reply.requestId ?? requestId,
    keyId: identity.keyId,
    tokens,
  };
}

/** Paths that a client means whose base URL lacks /v1, has it twice, or ends with a slash. */
function similarPaths(path: string): string[] {
  const rest = path
    .replace(/^(?:\/v1)+(?=\/)/, '')
    .replace(/\/+/g, '/')
    .replace(/(?<=.)\/$/, '');
  return [`/v1${rest}`, rest];
}
