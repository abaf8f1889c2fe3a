import type { HttpReply, HttpRequest } from '../http/transport';
import type { ServiceActor } from '../service/actor';
import type { Session } from '../service/sessions';
import type { AttemptLimiter } from './attempt-limiter';
import type { ApiContext } from './context';
import type { Static } from './json-schema';
import type { ProblemCode } from './problem';
import type { Query } from './query';
import type { Schema } from './schema';

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** What a handler is given; everything is checked before it runs. */
export interface ApiCall<Q = Query, B = unknown> {
  readonly context: ApiContext;
  readonly requestId: string;
  /** Who calls. @throws ApiProblem `unauthenticated` on a route that is open to everybody. */
  readonly actor: ServiceActor;
  /** Whether somebody is signed in, on a route that is open to everybody. */
  readonly hasActor: boolean;
  /** Of a caller with a console session, and the value of its cookie. */
  readonly session: (Session & { token: string }) | undefined;
  /** Whose request it is, proxies that are trusted looked through. */
  readonly address: string;
  /** Counts failed attempts at passwords, links and tokens, by address. */
  readonly attempts: AttemptLimiter;
  readonly params: Readonly<Record<string, string>>;
  readonly query: Q;
  readonly body: B;
  /** The revision that a change expects; undefined for any. */
  readonly ifMatch: number | undefined;
  readonly request: HttpRequest;
  /** Aborted when the client is gone. */
  readonly signal: AbortSignal;
}

/** A JSON body, or none; or a stream that the handler writes, once it has looked for errors. `ETag` comes from the body's `rev`. */
export type ApiAnswer =
  | { status: number; body?: unknown; headers?: Readonly<Record<string, string>> }
  | { stream: (reply: HttpReply) => Promise<void> };

/** One method at one path: all that the router, the checks and the OpenAPI document know of it. */
export interface ApiRoute {
  readonly method: Method;
  /** `/api/v1/deployments/{id}`; a parameter is one segment. */
  readonly path: string;
  readonly summary: string;
  readonly tag: string;
  /** `none`: open to everybody; `session`: not for management tokens; `any`: both. */
  readonly auth: 'none' | 'session' | 'any';
  /** Made by `input`; without one the route takes no parameters. Values come as numbers and flags, with defaults. */
  readonly query?: Schema;
  readonly body?: Schema;
  /** Whether the body may be left out; the handler then gets an empty object. */
  readonly isBodyOptional?: boolean;
  /** Default 1 MiB. */
  readonly maxBodyBytes?: number;
  /** 428 without `If-Match`. */
  readonly needsIfMatch?: boolean;
  /** Fields of the answer that are shown once, and null where an `Idempotency-Key` repeats it. */
  readonly secrets?: readonly string[];
  /** JSON of each status; null is no body, a text the media type of another kind of answer. */
  readonly answers: Readonly<Record<number, Schema | string | null>>;
  /** Its own errors, beside those that every route has. */
  readonly problems?: readonly ProblemCode[];
  handle(call: ApiCall): Promise<ApiAnswer>;
}

/** As a handler gets it: what has a default is there. */
type QueryOf<Q> = Q extends { properties: infer P; required: readonly (infer R)[] }
  ? { [K in keyof P as P[K] extends { default: unknown } ? K : K extends R ? K : never]: Static<P[K]> } & {
      [K in keyof P as P[K] extends { default: unknown } ? never : K extends R ? never : K]?: Static<P[K]>;
    }
  : Record<never, never>;

/** A route whose handler knows the types of its query and body from their schemas. */
export function defineRoute<
  const Q extends Schema = Record<never, never>,
  const B extends Schema = Record<never, never>,
>(
  route: Omit<ApiRoute, 'query' | 'body' | 'handle'> & {
    readonly query?: Q;
    readonly body?: B;
    handle(call: ApiCall<QueryOf<Q>, Static<B>>): Promise<ApiAnswer>;
  },
): ApiRoute {
  return route;
}
