import { isIP } from 'node:net';
import { ApiError } from '../base/errors';
import { show } from '../base/json/validate';
import { header, type HttpRequest } from './transport';

/** Names that no web page of the internet can have: those of one label, and those of private networks. */
const LOCAL_NAME = /^(?:[^.]+|.+\.(?:localhost|localdomain|local|internal|lan|home|corp|test|svc|home\.arpa))\.?$/i;

/**
 * Keeps web pages from what a server without keys stores. A page in a browser can call a server on the machine or in
 * the network of its reader.
 */
export class PageGuard {
  readonly #origins: ReadonlySet<string>;
  readonly #names: ReadonlySet<string>;

  /** @param origins Those of the pages that may have what is stored. `*` allows all. */
  constructor(origins: readonly string[] = []) {
    this.#origins = new Set(origins);
    this.#names = new Set(origins.filter((origin) => URL.canParse(origin)).map((origin) => new URL(origin).hostname));
  }

  /** Returns why a request may come from a page without permission, or undefined. */
  refusal(request: Pick<HttpRequest, 'headers'>): ApiError | undefined {
    const origin = header(request, 'origin');
    if (this.#origins.has('*') || (origin !== undefined && this.#origins.has(origin))) return undefined;
    const site = header(request, 'sec-fetch-site') ?? 'none';
    if (origin !== undefined || (site !== 'none' && site !== 'same-origin'))
      return denied('Expected no request of a web page for stored objects: set --allowed-origins or --api-key');
    // The owner of a domain can change its address to that of this server. Its pages then send no `Origin` with GET.
    const host = header(request, 'host')?.toLowerCase() ?? 'localhost';
    const name = host.replace(/:\d*$/, '');
    if (isLocal(name) || this.#names.has(name)) return undefined;
    return denied(
      `Host: expected an IP address or a local name for stored objects, got ${show(host)}: ` +
        `set --allowed-origins to the origin of this server, or set --api-key`,
    );
  }
}

function isLocal(name: string): boolean {
  return isIP(name.replace(/^\[(.*)\]$/, '$1')) !== 0 || LOCAL_NAME.test(name);
}

function denied(message: string): ApiError {
  return new ApiError('permission_denied', message);
}
