import type { HttpReply, HttpRequest } from './http/transport';

/** Who a call is made for, as its key says; without access control nobody in particular. */
export interface CallIdentity {
  /** `key_…`, `fixed` for a key of the command line, undefined without access control. */
  readonly keyId: string | undefined;
  /** The owner of the key: `own_…`, or `user:NAME`; undefined without access control. */
  readonly ownerId: string | undefined;
  /** Partition of the prefix cache that the call belongs to, before what the client adds by `cache_salt`; empty where all share it. */
  readonly cacheSalt: string;
  /** Says what the call has used, once it has ended: limits and the access log count it. The server itself calls it for those that use nothing. */
  done(tokens?: number): void;
}

/** Without access control. */
export const NOBODY: CallIdentity = { keyId: undefined, ownerId: undefined, cacheSalt: '', done: () => {} };

/** What every handler is given beside the request. */
export interface CallContext {
  /** The client's own `X-Request-Id` if it is fit for a header and a log, else a random one; every answer carries it unless the handler sets another. */
  readonly requestId: string;
  readonly identity: CallIdentity;
  /** For the engine's calls: aborted when the client is gone, and with an ApiError as its reason when the call has to end for another cause. */
  readonly signal: AbortSignal;
  /** The caller is our gateway, which counts what a call has used. */
  readonly tellsUsage?: boolean;
}

/**
 * One method at one path. Handlers answer by the reply or throw an ApiError. A module of routes names the context that it needs; what
 * needs no more than {@link CallContext} answers while the model still loads.
 */
export interface Route<in Context = CallContext> {
  readonly method: 'GET' | 'POST';
  /** In OpenAPI's form. A parameter comes last and takes the rest of the path, slashes included: `/v1/models/{model}`. */
  readonly path: string;
  /** Answered on the admin listener too. */
  readonly isOperational?: boolean;
  readonly handle: (context: Context, request: HttpRequest, reply: HttpReply) => Promise<void> | void;
}

/** What is known of a request once it has ended; for the access log and the metrics. */
export interface RequestRecord {
  readonly method: string;
  /** As sent, without the query. No label of a metric: there is no end of them. */
  readonly path: string;
  /** The route's path; undefined where no route was found. */
  readonly route: string | undefined;
  /** 499 when the client left before an answer began. */
  readonly status: number;
  readonly durationMs: number;
  /** As Content-Length says; undefined without one. */
  readonly requestBytes: number | undefined;
  /** Of the body, a stream's too. */
  readonly responseBytes: number;
  /** The client left before the end of its answer. */
  readonly hasClientLeft: boolean;
  readonly requestId: string;
  readonly keyId: string | undefined;
  readonly tokens: number;
}

/** Finds routes by method and path. */
export class RouteTable<Context> {
  readonly all: readonly Route<Context>[];
  readonly #exact = new Map<string, Route<Context>[]>();
  readonly #open: { prefix: string; route: Route<Context> }[] = [];

  constructor(routes: readonly Route<Context>[]) {
    this.all = routes;
    for (const route of routes) {
      const at = route.path.indexOf('{');
      if (at >= 0) this.#open.push({ prefix: route.path.slice(0, at), route });
      else this.#exact.set(route.path, [...(this.#exact.get(route.path) ?? []), route]);
    }
  }

  /** All routes of a path, for whatever method; a path that is written out goes before one with a parameter. */
  at(path: string): readonly Route<Context>[] {
    return (
      this.#exact.get(path) ??
      this.#open
        .filter(({ prefix }) => path.startsWith(prefix) && path.length > prefix.length)
        .map(({ route }) => route)
    );
  }
}
