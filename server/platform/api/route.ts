import type { HttpReply, HttpRequest, ReplyHeaders } from 'capstan/internal';
import type { ServiceActor } from '../accounts/actor';
import type { Session } from '../accounts/sessions';
import type { AttemptLimiter } from './attempt-limiter';
import type { ApiContext } from './context';
import type { Static } from './json-schema';
import type { ProblemCode } from './problem';
import type { Query } from './query';
import type { Schema } from './schema';

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** Input of a handler. All checks have passed. */
export interface ApiCall<Q = Query, B = unknown> {
  readonly context: ApiContext;
  readonly requestId: string;
  /** The caller. Throws ApiProblem `unauthenticated` when an anonymous client calls a public route. */
  readonly actor: ServiceActor;
  /** Whether the caller is signed in. Relevant on public routes. */
  readonly hasActor: boolean;
  /** Console session of the caller, and the value of its cookie. */
  readonly session: (Session & { token: string }) | undefined;
  /** Client address. Trusted proxies are resolved. */
  readonly address: string;
  /** Counts failed attempts with passwords, links and tokens, by address. */
  readonly attempts: AttemptLimiter;
  readonly params: Readonly<Record<string, string>>;
  readonly query: Q;
  readonly body: B;
  /** Expected revision of the object. undefined: any. */
  readonly ifMatch: number | undefined;
  readonly request: HttpRequest;
  /** Aborts when the client disconnects, or when the caller's session or token ends during a stream. */
  readonly signal: AbortSignal;
}

/** A JSON body, no body, or a stream that the handler writes. The ETag comes from the body's `rev`. */
export type ApiResponse =
  | { status: number; body?: unknown; headers?: ReplyHeaders & { readonly Location?: string } }
  | { stream: (reply: HttpReply) => Promise<void> };

/** One method of one path: everything that the router, the checks and the OpenAPI document need. */
export interface ApiRoute {
  readonly method: Method;
  /** For example `/api/v1/deployments/{id}`. A parameter matches one segment. */
  readonly path: string;
  readonly summary: string;
  readonly tag: string;
  /** `none`: public. `session`: console sessions only. `any`: console sessions and management tokens. */
  readonly auth: 'none' | 'session' | 'any';
  /** Built with `input`. Without it the route takes no parameters. The handler gets converted values with defaults. */
  readonly query?: Schema;
  readonly body?: Schema;
  /** Whether the body is optional. The handler then gets an empty object. */
  readonly isBodyOptional?: boolean;
  /** Default: 1 MiB. */
  readonly maxBodyBytes?: number;
  /** Requires `If-Match`; without it the response is 428. */
  readonly needsIfMatch?: boolean;
  /** Response fields that are shown once. They are null when an `Idempotency-Key` repeats the response. */
  readonly secrets?: readonly string[];
  /** Schema of the JSON body by status. null: no body. A string: the media type of another body. */
  readonly responses: Readonly<Record<number, Schema | string | null>>;
  /** Errors in addition to those that every route has. */
  readonly problems?: readonly ProblemCode[];
  handle(call: ApiCall): Promise<ApiResponse>;
}

/** Type of a query as the handler gets it: properties with a default are always present. */
type QueryOf<Q> = Q extends { properties: infer P; required: readonly (infer R)[] }
  ? { [K in keyof P as P[K] extends { default: unknown } ? K : K extends R ? K : never]: Static<P[K]> } & {
      [K in keyof P as P[K] extends { default: unknown } ? never : K extends R ? never : K]?: Static<P[K]>;
    }
  : Record<never, never>;

/** Defines a route whose handler is typed by the schemas of its query and body. */
export function defineRoute<
  const Q extends Schema = Record<never, never>,
  const B extends Schema = Record<never, never>,
>(
  route: Omit<ApiRoute, 'query' | 'body' | 'handle'> & {
    readonly query?: Q;
    readonly body?: B;
    handle(call: ApiCall<QueryOf<Q>, Static<B>>): Promise<ApiResponse>;
  },
): ApiRoute {
  return route;
}
