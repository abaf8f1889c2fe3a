import { ApiError, type StreamedRequest } from 'capstan/internal';
import type { UpstreamSettings } from '../targets';
import type { UpstreamRoute } from './routes';

/** Request headers that an upstream gets. Nothing else of the client leaves this machine. */
const PASSED: Readonly<Partial<Record<UpstreamRoute, readonly string[]>>> = {
  messages: ['anthropic-version', 'anthropic-beta'],
  count_tokens: ['anthropic-version', 'anthropic-beta'],
  responses: ['openai-beta'],
  input_tokens: ['openai-beta'],
};
/** Betas of Anthropic that make tokens cost more. Other betas only allow fields of the body, which are checked. */
const COSTLY_BETA = /^(?:context-1m|fast-mode)-/;
const ANTHROPIC_VERSION = '2023-06-01';
/** Counts the gateways that a request has passed, so that a request ends if upstreams form a loop. */
const HOPS_HEADER = 'X-Capstan-Hops';
const MAX_HOPS = 5;

interface Location {
  host: string;
  path: string;
}

/** Parsed once per upstream. */
const locations = new WeakMap<UpstreamSettings, Location>();

function locationOf(settings: UpstreamSettings): Location {
  let location = locations.get(settings);
  if (location === undefined) {
    const { host, pathname } = new URL(settings.url);
    locations.set(settings, (location = { host, path: pathname.replace(/\/+$/, '') }));
  }
  return location;
}

/** Returns the path at an upstream: its base path stands for `/v1`. */
export function pathAt(settings: UpstreamSettings, path: string): string {
  return locationOf(settings).path + path.slice('/v1'.length);
}

/** Throws ApiError for a request that has passed too many gateways. */
function hopsOf(headers: StreamedRequest['headers']): number {
  const text = headers.find(([name]) => name === HOPS_HEADER.toLowerCase())?.[1] ?? '0';
  const hops = /^\d{1,3}$/.test(text) ? Number(text) : 0;
  if (hops >= MAX_HOPS)
    throw new ApiError('invalid_value', `This request has passed ${MAX_HOPS} gateways: the upstreams form a loop`);
  return hops;
}

/** Response headers that the client gets. Others may name the account at the upstream. */
const RETURNED = new Set([
  'content-type',
  'content-length',
  'cache-control',
  'retry-after',
  'retry-after-ms',
  'x-should-retry',
]);

/**
 * Returns the headers for an upstream: alternating names and values. A server that has only Anthropic's interface gets
 * the key in `x-api-key`, any other as a bearer token.
 * @param route The interface that the request has at the upstream.
 */
export function upstreamHeaders(
  { headers }: Pick<StreamedRequest, 'headers'>,
  settings: UpstreamSettings,
  {
    route,
    secret,
    requestId,
    isStream,
  }: { route: UpstreamRoute; secret: string; requestId: string; isStream: boolean },
): string[] {
  const isAnthropic = !settings.interfaces.includes('chat');
  const flat = [
    'Host',
    locationOf(settings).host,
    'Accept',
    isStream ? 'text/event-stream' : 'application/json',
    // The gateway reads the response.
    'Accept-Encoding',
    'identity',
    'User-Agent',
    'capstan',
    'X-Request-Id',
    requestId,
    HOPS_HEADER,
    String(hopsOf(headers) + 1),
  ];
  if (route !== 'models') flat.push('Content-Type', 'application/json');
  const passed = PASSED[route] ?? [];
  for (const [name, value] of headers) {
    const kept = name === 'anthropic-beta' ? withoutCostly(value) : value;
    if (passed.includes(name) && kept !== '') flat.push(name, kept);
  }
  const needsVersion = isAnthropic || route === 'messages' || route === 'count_tokens';
  if (needsVersion && !flat.includes('anthropic-version')) flat.push('anthropic-version', ANTHROPIC_VERSION);
  if (secret !== '') flat.push(...(isAnthropic ? ['x-api-key', secret] : ['Authorization', `Bearer ${secret}`]));
  return flat;
}

function withoutCostly(betas: string): string {
  const all = betas.split(',');
  const kept = all.filter((beta) => !COSTLY_BETA.test(beta.trim().toLowerCase()));
  return kept.length === all.length ? betas : kept.join(',').trim();
}

/** Returns the response headers for the client: alternating names and values. Pages of any origin may read them. */
export function upstreamReturned(raw: readonly string[]): string[] {
  const kept = raw.filter((_, i) => RETURNED.has(raw[i - (i % 2)].toLowerCase()));
  return [...kept, 'Access-Control-Allow-Origin', '*'];
}
