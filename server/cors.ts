import { header, type HttpRequest } from './http/transport';

/** What scripts of other origins may do: `*` alone in a list stands for everything. */
export interface CorsOptions {
  origins: readonly string[];
  methods: readonly string[];
  headers: readonly string[];
  /** Whether cookies and the like may be sent; then the origin is named instead of `*`. */
  credentials: boolean;
}

export const OPEN_CORS: CorsOptions = { origins: ['*'], methods: ['*'], headers: ['*'], credentials: false };

type Headers = Readonly<Record<string, string>>;

const NO_HEADERS: Headers = {};
const MAX_AGE_S = 600;
const ALL_METHODS = ['GET', 'HEAD', 'POST', 'OPTIONS'];
/** What a script may read of an answer beside the usual. */
const EXPOSED = 'X-Request-Id, Retry-After';

/** Only this passes without a key: an OPTIONS that a browser sends before the request itself. */
export function isPreflight(request: Pick<HttpRequest, 'method' | 'headers'>): boolean {
  return (
    request.method === 'OPTIONS' &&
    header(request, 'origin') !== undefined &&
    header(request, 'access-control-request-method') !== undefined
  );
}

/** The headers of cross-origin answers (the Fetch standard's CORS protocol). */
export class Cors {
  readonly #options: CorsOptions;
  readonly #isAnyOrigin: boolean;

  constructor(options: CorsOptions = OPEN_CORS) {
    this.#options = options;
    this.#isAnyOrigin = options.origins.includes('*');
  }

  /** Of any answer, an error too; none without an origin, and none but `Vary` for an origin that is not allowed. */
  headers(request: Pick<HttpRequest, 'method' | 'headers'>): Headers {
    if (isPreflight(request)) return this.#preflightHeaders(request);
    const origin = header(request, 'origin');
    if (origin === undefined) return this.#isAnyOrigin ? NO_HEADERS : { Vary: 'Origin' };
    const allowed = this.#allow(origin);
    return 'Access-Control-Allow-Origin' in allowed
      ? { ...allowed, 'Access-Control-Expose-Headers': EXPOSED }
      : allowed;
  }

  /** Without the allowing ones the browser goes no further. */
  #preflightHeaders(request: Pick<HttpRequest, 'headers'>): Headers {
    const { methods, headers } = this.#options;
    const asked = header(request, 'access-control-request-headers');
    return {
      ...this.#allow(header(request, 'origin') ?? ''),
      'Access-Control-Allow-Methods': (methods.includes('*') ? ALL_METHODS : methods).join(', '),
      // NOTE: a literal * would not cover Authorization.
      ...(headers.includes('*')
        ? asked === undefined
          ? {}
          : { 'Access-Control-Allow-Headers': asked }
        : { 'Access-Control-Allow-Headers': headers.join(', ') }),
      'Access-Control-Max-Age': String(MAX_AGE_S),
    };
  }

  #allow(origin: string): Headers {
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
