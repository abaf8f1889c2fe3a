import {
  callerAddress,
  type CidrList,
  type HttpRequest,
  PRIORITY_HEADER,
  type ReplyHeaders,
  type RequestTrace,
  SALT_HEADER,
  SECRET_HEADER,
  SESSION_COOKIES,
  SIGN_IN_COOKIES,
  trimBlanks,
} from 'capstan/internal';
import type { DeploymentAddress } from './address';

/** Headers of one connection, not of the message (RFC 9110, 7.6.1). */
const HOP_BY_HOP = [
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
];
/** Request headers that the gateway sets itself or keeps from replicas. */
const NOT_FORWARDED = new Set([
  ...HOP_BY_HOP,
  'authorization',
  'content-length',
  'cookie',
  'expect',
  'forwarded',
  'x-api-key',
  'x-forwarded-for',
  'x-forwarded-host',
  'x-forwarded-port',
  'x-forwarded-prefix',
  'x-forwarded-proto',
  'x-real-ip',
  'x-request-id',
]);
/** Response headers that the transport sets, and those that would affect other deployments on the same origin. */
const NOT_RETURNED = new Set([
  ...HOP_BY_HOP,
  'content-length',
  'date',
  'uwebsockets',
  'set-cookie',
  'location',
  'x-request-id',
  'alt-svc',
  'clear-site-data',
  'service-worker-allowed',
  'strict-transport-security',
]);
const TRACE_HEADERS = new Set(['traceparent', 'tracestate']);
/** Prefix of the headers between gateway and replicas. */
const OWN_PREFIX = 'x-capstan-';
/** Console cookies, which a browser also sends to deployments on the same host name. */
const OWN_COOKIES: readonly string[] = [...SESSION_COOKIES, ...SIGN_IN_COOKIES];

export interface ForwardOptions {
  requestId: string;
  /** Its span becomes the parent of the replica's. Undefined: the headers of the client are forwarded. */
  trace?: RequestTrace | undefined;
  scheme: 'http' | 'https';
  trustedProxies: CidrList | undefined;
  address: DeploymentAddress;
  salt: string;
  /** Absent: that of a client that waits. */
  priority?: number | undefined;
}

/** Returns the headers for any replica, without its secret: alternating names and values. */
export function forwardedHeaders(
  { headers, remoteAddress }: Pick<HttpRequest, 'headers' | 'remoteAddress'>,
  options: ForwardOptions,
): string[] {
  const { requestId, trace, scheme, trustedProxies, address, salt, priority } = options;
  const isTrusted = trustedProxies?.has(remoteAddress) === true;
  const perConnection = connectionNames(headers);
  const flat: string[] = [];
  const first = emptyMap<string | undefined>();
  for (const [name, value] of headers) {
    first[name] ??= value;
    if (name === 'cookie') {
      if (address.isApi !== true) addCookies(flat, value);
    } else if (trace !== undefined && TRACE_HEADERS.has(name)) continue;
    else if (!NOT_FORWARDED.has(name) && !name.startsWith(OWN_PREFIX) && !perConnection.has(name))
      flat.push(name, value);
  }
  const earlier = isTrusted
    ? headers
        .filter(([name]) => name === 'x-forwarded-for')
        .map(([, value]) => `${value}, `)
        .join('')
    : '';
  flat.push(
    'X-Forwarded-For',
    earlier + remoteAddress,
    'X-Real-IP',
    callerAddress(remoteAddress, headers, trustedProxies),
  );
  flat.push('X-Forwarded-Proto', (isTrusted ? first['x-forwarded-proto'] : undefined) ?? scheme);
  const host = (isTrusted ? first['x-forwarded-host'] : undefined) ?? first.host;
  if (host !== undefined) flat.push('X-Forwarded-Host', host);
  if (address.prefix !== '') flat.push('X-Forwarded-Prefix', address.prefix);
  flat.push('X-Request-Id', requestId, SALT_HEADER, salt);
  if (priority !== undefined) flat.push(PRIORITY_HEADER, String(priority));
  if (trace !== undefined) flat.push(...trace.headers);
  return flat;
}

export function withSecret(headers: readonly string[], secret: string): string[] {
  return [...headers, SECRET_HEADER, secret];
}

/** Returns the response headers for the client. `raw`: alternating names and values. */
export function returnedHeaders(
  raw: readonly string[],
  { prefix, isApi }: Pick<DeploymentAddress, 'prefix' | 'isApi'>,
): ReplyHeaders {
  const perConnection = connectionNames(pairs(raw));
  const headers = emptyMap<string | string[]>();
  for (const [name, value, lower] of pairs(raw)) {
    if (lower === 'set-cookie') {
      const cookie = isApi === true ? undefined : scopedCookie(value, prefix);
      if (cookie !== undefined) add(headers, 'Set-Cookie', cookie);
    } else if (lower === 'location') {
      add(headers, 'Location', prefix !== '' && /^\/(?!\/)/.test(value) ? prefix + value : value);
    } else if (!NOT_RETURNED.has(lower) && !lower.startsWith(OWN_PREFIX) && !perConnection.has(lower)) {
      add(headers, name, value);
    }
  }
  return headers;
}

/** A map without a prototype, because a header may be called `constructor`. */
function emptyMap<T>(): Record<string, T> {
  return Object.create(null) as Record<string, T>;
}

/** Returns the first value of a response header. */
export function rawHeader(raw: readonly string[], wanted: string): string | undefined {
  const lower = wanted.toLowerCase();
  for (let i = 0; i < raw.length; i += 2)
    if (raw[i].length === lower.length && raw[i].toLowerCase() === lower) return raw[i + 1];
  return undefined;
}

function* pairs(raw: readonly string[]): Generator<[name: string, value: string, lower: string]> {
  for (let i = 0; i < raw.length; i += 2) yield [raw[i], raw[i + 1], raw[i].toLowerCase()];
}

const NONE: ReadonlySet<string> = new Set();

/** Returns the header names that `Connection` lists. They are hop-by-hop too. */
function connectionNames(headers: Iterable<readonly [string, string, string?]>): ReadonlySet<string> {
  let names: Set<string> | undefined;
  for (const [name, value, lower = name] of headers) {
    if (lower !== 'connection' || /^(keep-alive|close)$/i.test(value)) continue;
    names ??= new Set();
    for (const token of value.split(',')) names.add(trimBlanks(token).toLowerCase());
  }
  return names ?? NONE;
}

/** Header names are case-insensitive: the same name in another case is the same header. */
function add(headers: Record<string, string | string[]>, name: string, value: string): void {
  const isSame = (other: string) => other.length === name.length && other.toLowerCase() === name.toLowerCase();
  const known = headers[name] === undefined ? (Object.keys(headers).find(isSame) ?? name) : name;
  const before = headers[known];
  if (before === undefined) headers[known] = value;
  else headers[known] = [before, value].flat();
}

function addCookies(flat: string[], value: string): void {
  const kept = value
    .split(';')
    .map(trimBlanks)
    .filter((cookie) => cookie !== '' && !isOwn(cookie));
  if (kept.length > 0) flat.push('cookie', kept.join('; '));
}

function isOwn(pair: string): boolean {
  return OWN_COOKIES.includes(trimBlanks(pair.split('=', 1)[0]));
}

/** Restricts a cookie to this deployment. Returns undefined for a cookie that has the name of a console cookie. */
function scopedCookie(value: string, prefix: string): string | undefined {
  const [pair, ...attributes] = value.split(';');
  if (isOwn(pair)) return undefined;
  const path =
    attributes
      .map((attribute) => /^\s*path\s*=\s*(\/[^\s]*)\s*$/i.exec(attribute)?.[1])
      .find((found) => found !== undefined) ?? '/';
  const kept = attributes.filter((attribute) => !/^\s*(?:path|domain)\s*=/i.test(attribute));
  return [pair, ...kept, ` Path=${prefix === '' ? path : prefix + (path === '/' ? '' : path)}`].join(';');
}
