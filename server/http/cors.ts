import { header, type HttpRequest } from './transport';

/** What scripts of other origins may do. A list that holds `*` allows everything. */
export interface CorsOptions {
  origins: readonly string[];
  methods: readonly string[];
  headers: readonly string[];
  /** Whether requests may carry credentials. If so, responses name the origin instead of `*`. */
  credentials: boolean;
}

export const OPEN_CORS: CorsOptions = { origins: ['*'], methods: ['*'], headers: ['*'], credentials: false };

type Headers = Readonly<Record<string, string>>;

const NO_HEADERS: Headers = {};
const MAX_AGE_S = 600;
const ALL_METHODS = ['GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS'];
/** Response headers that scripts may read in addition to the safelisted ones. */
const EXPOSED_HEADERS = 'X-Request-Id, X-Should-Retry, Retry-After';

/** Returns whether this is the OPTIONS request that a browser sends first. Only a preflight passes without a key. */
export function isPreflight(request: Pick<HttpRequest, 'method' | 'headers'>): boolean {
  return (
    request.method === 'OPTIONS' &&
    header(request, 'origin') !== undefined &&
    header(request, 'access-control-request-method') !== undefined
  );
}

/** Makes the headers of cross-origin responses, as the CORS protocol of the Fetch standard defines them. */
export class Cors {
  readonly #options: CorsOptions;
  readonly #isAnyOrigin: boolean;

  constructor(options: CorsOptions = OPEN_CORS) {
    this.#options = options;
    this.#isAnyOrigin = options.origins.includes('*');
  }

  /** Returns the CORS headers of any response, errors included. An origin that is not allowed gets `Vary` alone. */
  headers(request: Pick<HttpRequest, 'method' | 'headers'>): Headers {
    if (isPreflight(request)) return this.#preflightHeaders(request);
    const origin = header(request, 'origin');
    if (origin === undefined) return this.#isAnyOrigin ? NO_HEADERS : { Vary: 'Origin' };
    const headers = this.#originHeaders(origin);
    const isAllowed = 'Access-Control-Allow-Origin' in headers;
    return isAllowed ? { ...headers, 'Access-Control-Expose-Headers': EXPOSED_HEADERS } : headers;
  }

  #preflightHeaders(request: Pick<HttpRequest, 'headers'>): Headers {
    const { methods, headers } = this.#options;
    const requested = header(request, 'access-control-request-headers');
    // NOTE: a literal * would not cover Authorization.
    const allowedHeaders = headers.includes('*') ? requested : headers.join(', ');
    return {
      ...this.#originHeaders(header(request, 'origin') ?? ''),
      'Access-Control-Allow-Methods': (methods.includes('*') ? ALL_METHODS : methods).join(', '),
      ...(allowedHeaders === undefined ? {} : { 'Access-Control-Allow-Headers': allowedHeaders }),
      'Access-Control-Max-Age': String(MAX_AGE_S),
    };
  }

  #originHeaders(origin: string): Headers {
    const { origins, credentials } = this.#options;
    if (this.#isAnyOrigin && !credentials) return { 'Access-Control-Allow-Origin': '*' };
    if (!this.#isAnyOrigin && !origins.includes(origin)) return { Vary: 'Origin' };
    return {
      'Access-Control-Allow-Origin': origin,
      ...(credentials ? { 'Access-Control-Allow-Credentials': 'true' } : {}),
      Vary: 'Origin',
    };
  }
}
