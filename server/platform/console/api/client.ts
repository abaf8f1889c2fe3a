import { ApiProblem, problemOf, toProblem } from './problem';
import { notifySessionEnd } from './session-end';
import { sessionSecret, setSessionSecret } from './session-secret';

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

export interface CallOptions {
  body?: unknown;
  /** The revision that the change is based on. */
  ifMatch?: number;
  signal?: AbortSignal;
  headers?: Record<string, string>;
  /** A 401 means wrong credentials, not the end of the session. */
  isSigningIn?: boolean;
}

const BASE = '/api/v1';
/** The browser has begun to save a file by then. */
const REVOKE_AFTER_MS = 60_000;
/** Sent with changing requests to prove that they come from this console. */
let csrfToken: string | null = null;

export function setCsrfToken(token: string | null): void {
  csrfToken = token;
}

/** Calls the management API. Throws {@link ApiProblem}. */
export async function call<T>(method: Method, path: string, options: CallOptions = {}): Promise<T> {
  const response = await send(method, path, options);
  const text = await response.text().catch(() => '');
  return (text === '' ? undefined : JSON.parse(text)) as T;
}

/** Saves a response as a file. A plain link cannot send the secret of the session. Throws {@link ApiProblem}. */
export async function download(path: string, name: string): Promise<void> {
  const response = await send('GET', path, { headers: { Accept: '*/*' } });
  const url = URL.createObjectURL(await response.blob());
  const link = Object.assign(document.createElement('a'), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), REVOKE_AFTER_MS);
}

/** Opens a streamed response. Throws {@link ApiProblem}. */
export async function openStream(
  method: Method,
  path: string,
  options: CallOptions = {},
): Promise<ReadableStream<Uint8Array>> {
  const response = await send(method, path, {
    ...options,
    headers: { Accept: 'text/event-stream', ...options.headers },
  });
  if (response.body === null) throw new ApiProblem({ status: 0, code: 'unreachable', detail: '' });
  return response.body;
}

async function send(
  method: Method,
  path: string,
  { body, ifMatch, signal, headers, isSigningIn = false }: CallOptions,
): Promise<Response> {
  const secret = sessionSecret();
  const response = await fetch(BASE + path, {
    method,
    signal,
    credentials: 'same-origin',
    cache: 'no-store',
    headers: {
      Accept: 'application/json',
      ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
      ...(secret === null ? {} : { 'X-Session-Secret': secret }),
      ...(csrfToken === null || method === 'GET' ? {} : { 'X-CSRF-Token': csrfToken }),
      ...(ifMatch === undefined ? {} : { 'If-Match': `"${ifMatch}"` }),
      ...(method === 'POST' ? { 'Idempotency-Key': crypto.randomUUID?.() ?? randomKey() } : {}),
      ...headers,
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  }).catch((error: unknown) => {
    throw signal?.aborted === true ? error : toProblem(error);
  });
  if (response.ok) {
    const opened = response.headers.get('X-Session-Secret');
    if (opened !== null) setSessionSecret(opened);
    return response;
  }
  const problem = problemOf(
    response.status,
    await response.text().catch(() => ''),
    response.headers.get('Retry-After'),
  );
  if (response.status === 401 && !isSigningIn) notifySessionEnd();
  throw problem;
}

/** Pages over plain HTTP have no `randomUUID`. */
function randomKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
