import type { RequestTrace } from '../base/traces/request-trace';
import type { HttpReply, HttpRequest } from './transport';

/** The client of a request, as its key identifies it. */
export interface ClientIdentity {
  /** `key_…`, or `fixed` for a key of the command line. Undefined without access control. */
  readonly keyId: string | undefined;
  /** The owner of the key: `own_…` or `user:NAME`. Undefined without access control. */
  readonly ownerId: string | undefined;
  /**
   * Partition of the prefix cache, before the client's own `cache_salt` is added. Empty if all clients share the cache.
   */
  readonly cacheSalt: string;
  /**
   * Reports the tokens that a finished request used, for limits and the access log. The server itself calls it at the
   * end of every request.
   */
  done(tokens?: number): void;
}

/** The client of a request without access control. */
export const ANONYMOUS: ClientIdentity = { keyId: undefined, ownerId: undefined, cacheSalt: '', done: () => {} };

/** Limits the tokens of a request. Both throw when it cannot be paid. */
export interface RequestAllowance {
  /** Returns the most completion tokens of each choice. */
  readonly onPrompt: (prompt: { promptTokens: number; numChoices: number; maxTokens: number }) => number;
  /** For tokens that are computed without a completion. */
  takePrompt(promptTokens: number): void;
}

/** What every handler receives in addition to the request. */
export interface RequestContext {
  /** See `requestIdOf`. Every response carries it unless the handler sets another. */
  readonly requestId: string;
  readonly identity: ClientIdentity;
  /** Aborted when the client disconnects. If the request has to end for another cause, the reason is an ApiError. */
  readonly signal: AbortSignal;
  /** Whether the response reports its token usage to the gateway. */
  readonly reportsUsage?: boolean;
  /** What the gateway allows the request to cost. */
  readonly allowance?: RequestAllowance | undefined;
  /** The priority of its calls of the engine. Default: 0, that of clients that wait. */
  readonly priority?: number;
  /** Whether the client may have and store objects. Default: true. */
  readonly mayStore?: boolean;
  /** The span of the request. Undefined: it is not traced. */
  readonly trace?: RequestTrace | undefined;
}

/**
 * One method at one path. A handler uses the reply or throws an ApiError. `Context` is what the handler needs: routes
 * that need only a {@link RequestContext} work while the model is still loading.
 */
export interface Route<in Context = RequestContext> {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /**
   * In the form of OpenAPI: `/v1/models/{model}`, `/v1/files/{file_id}/content`. One parameter at most, which matches
   * slashes too.
   */
  readonly path: string;
  /** Whether the admin listener serves it too. */
  readonly isOperational?: boolean;
  /** Whether it is about stored objects. Without keys, web pages need the permission of the server. */
  readonly isPrivate?: boolean;
  readonly handle: (context: Context, request: HttpRequest, reply: HttpReply) => Promise<void> | void;
}

/** A finished request, for the access log and the metrics. */
export interface RequestRecord {
  readonly method: string;
  /** As sent, without the query. Not a metric label, because its values are unbounded. */
  readonly path: string;
  /** The path of the route. Undefined if no route matched. */
  readonly route: string | undefined;
  /** 499 if the client disconnected before the response started. */
  readonly status: number;
  readonly durationMs: number;
  /** From Content-Length. Undefined without that header. */
  readonly requestBytes: number | undefined;
  /** Bytes of the response body. */
  readonly responseBytes: number;
  /** Whether the client disconnected before the end of the response. */
  readonly hasClientLeft: boolean;
  readonly requestId: string;
  readonly keyId: string | undefined;
  readonly tokens: number;
}

/** Finds routes by method and path. */
export class RouteTable<Context> {
  readonly all: readonly Route<Context>[];
  readonly #exact = new Map<string, Route<Context>[]>();
  readonly #withParameter: { prefix: string; suffix: string; route: Route<Context> }[] = [];

  constructor(routes: readonly Route<Context>[]) {
    this.all = routes;
    for (const route of routes) {
      const [prefix, suffix] = route.path.split(/\{\w+\}/);
      if (suffix !== undefined) this.#withParameter.push({ prefix, suffix, route });
      else this.#exact.set(route.path, [...(this.#exact.get(route.path) ?? []), route]);
    }
    this.#withParameter.sort((a, b) => b.suffix.length - a.suffix.length);
  }

  /**
   * Returns the routes of a path, for all methods. An exact path takes precedence over one with a parameter, and of
   * those the one with the longest text after it.
   */
  at(path: string): readonly Route<Context>[] {
    const exact = this.#exact.get(path);
    if (exact !== undefined) return exact;
    const matching = this.#withParameter.filter(
      ({ prefix, suffix }) =>
        path.startsWith(prefix) && path.endsWith(suffix) && path.length > prefix.length + suffix.length,
    );
    return matching.filter(({ suffix }) => suffix === matching[0].suffix).map(({ route }) => route);
  }
}

/** Returns the part of a path that is the parameter of its route. */
export function pathParameter(routePath: string, path: string): string {
  const [prefix, suffix] = routePath.split(/\{\w+\}/);
  return path.slice(prefix.length, path.length - suffix.length);
}
