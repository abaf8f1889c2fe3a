import type { Engine } from '../ts';
import { ApiError, renderError, toApiError } from './errors';
import { checkHealth } from './health';
import type { SseOptions } from './http/sse';
import type { HttpReply, HttpRequest } from './http/transport';
import type { Log } from './log';
import { chatCompletions } from './openai/chat';
import { getModel, listModels, MODELS_PATH, ServedModel } from './openai/models';

export interface AppOptions {
  /** Default: the model's own name. */
  servedNames: readonly string[];
  healthStallTimeoutMs: number;
  sse: SseOptions;
  log: Log;
}

/** A loaded engine and what answers for it. */
export interface Service {
  engine: Engine;
  model: ServedModel;
}

type RouteHandler = (service: Service, request: HttpRequest, reply: HttpReply) => Promise<void> | void;

interface Route {
  method: 'GET' | 'POST';
  matches(path: string): boolean;
  handle: RouteHandler;
}

/** The walk of a request: access, route, handler, and the one place where errors are answered. Knows no sockets. */
export class App {
  readonly #options: AppOptions;
  readonly #routes: readonly Route[];
  #service: Service | undefined;
  #isDraining = false;
  #numOpen = 0;
  #onIdle: (() => void)[] = [];

  constructor(options: AppOptions) {
    this.#options = options;
    const { sse, log } = options;
    const is = (wanted: string) => (path: string) => path === wanted;
    this.#routes = [
      { method: 'POST', matches: is('/v1/chat/completions'), handle: (service, request, reply) => chatCompletions({ ...service, sse, log }, request, reply) },
      { method: 'GET', matches: is(MODELS_PATH), handle: listModels },
      { method: 'GET', matches: (path) => path.startsWith(`${MODELS_PATH}/`), handle: getModel },
      { method: 'GET', matches: is('/health'), handle: (service, _request, reply) => this.#health(service, reply) },
    ];
  }

  /** The model is loaded; until then every route answers `model_loading`. */
  serve(engine: Engine): void {
    const [first = engine.info.modelName, ...rest] = this.#options.servedNames;
    this.#service = { engine, model: new ServedModel([first, ...rest], engine.info) };
  }

  /** From now on new requests are refused; resolves when the open ones are answered. */
  drain(): Promise<void> {
    this.#isDraining = true;
    return this.#numOpen === 0 ? Promise.resolve() : new Promise((resolve) => this.#onIdle.push(resolve));
  }

  get numOpenRequests(): number {
    return this.#numOpen;
  }

  /** Never rejects. */
  async handle(request: HttpRequest, reply: HttpReply): Promise<void> {
    this.#numOpen++;
    try {
      await this.#walk(request, reply);
    } catch (error) {
      this.#answerError(error, request, reply);
    } finally {
      if (--this.#numOpen === 0) this.#onIdle.splice(0).forEach((resolve) => resolve());
    }
  }

  async #walk(request: HttpRequest, reply: HttpReply): Promise<void> {
    // NOTE: access keys are checked here, by headers alone, before the route is looked at and the body is read.
    const route = this.#findRoute(request);
    if (this.#isDraining) throw new ApiError('shutting_down', 'The server is shutting down');
    if (this.#service === undefined) throw new ApiError('model_loading', 'The model is still loading');
    await route.handle(this.#service, request, reply);
  }

  #findRoute({ method, path }: HttpRequest): Route {
    const candidates = this.#routes.filter((route) => route.matches(path));
    if (candidates.length === 0) throw new ApiError('unknown_url', 'There is nothing at this path');
    const wanted = method === 'HEAD' ? 'GET' : method;
    const route = candidates.find((candidate) => candidate.method === wanted);
    if (route !== undefined) return route;
    const allowed = candidates.flatMap((candidate) => (candidate.method === 'GET' ? ['GET', 'HEAD'] : [candidate.method]));
    throw new ApiError('method_not_allowed', `The method is not allowed here: expected ${allowed.join(' or ')}`, { headers: { Allow: allowed.join(', ') } });
  }

  #health({ engine }: Service, reply: HttpReply): void {
    checkHealth(engine.stats(), this.#options.healthStallTimeoutMs);
    reply.send(200, {}, '');
  }

  #answerError(error: unknown, request: HttpRequest, reply: HttpReply): void {
    if (request.signal.aborted) return;
    const apiError = toApiError(error);
    if (apiError.status === 500) this.#options.log.error({ path: request.path, err: apiError.cause ?? apiError }, 'a request failed');
    if (!reply.hasStarted) reply.send(apiError.status, { 'Content-Type': 'application/json', ...apiError.headers }, renderError(apiError));
  }
}
