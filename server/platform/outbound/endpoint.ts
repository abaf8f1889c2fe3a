import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { ServiceError } from '../store/errors';
import { isPublicAddress } from './public-address';

export interface Address {
  address: string;
  family: number;
}

/** Returns all addresses of a host name. Rejects if there is none. */
export type Resolve = (hostname: string) => Promise<readonly Address[]>;

/** The destination of a message: its URL and the checked address to connect to. */
export interface Endpoint {
  url: URL;
  address: Address;
}

export interface ResolveOptions {
  resolve: Resolve;
  allowsPrivate: boolean;
  /** Names the URL in errors. */
  param?: string;
  /** The flag that allows private addresses. */
  flag?: string;
}

const MAX_URL_LENGTH = 2_000;

export const resolveByDns: Resolve = (hostname) => lookup(hostname, { all: true, verbatim: true });

/** @throws ServiceError `invalid_argument` */
export function parseEndpointUrl(text: string, param = 'url'): URL {
  const invalidUrl = (message: string) => new ServiceError('invalid_argument', `${param}: ${message}`);
  const url = text.length <= MAX_URL_LENGTH && URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol))
    throw invalidUrl(`expected an http:// or https:// URL of at most ${MAX_URL_LENGTH} characters`);
  if (url.username !== '' || url.password !== '') throw invalidUrl('expected a URL without user and password');
  if (url.hash !== '') throw invalidUrl('expected a URL without a #fragment');
  return url;
}

/**
 * Resolves a URL and refuses it if any of its addresses is not on the public internet.
 * NOTE: connect to the returned address and do not resolve the name again. Otherwise DNS rebinding bypasses the check.
 * @throws ServiceError `invalid_argument`
 */
export async function resolveEndpoint(
  text: string,
  { resolve, allowsPrivate, param = 'url', flag = '--allow-private-webhooks' }: ResolveOptions,
): Promise<Endpoint> {
  const invalidUrl = (message: string) => new ServiceError('invalid_argument', `${param}: ${message}`);
  const url = parseEndpointUrl(text, param);
  const hostname = url.hostname.replace(/^\[|\]$/g, '');
  const family = isIP(hostname);
  const addresses = family === 0 ? await resolve(hostname).catch(() => []) : [{ address: hostname, family }];
  if (addresses.length === 0) throw invalidUrl(`cannot resolve ${hostname}`);
  const privateAddress = allowsPrivate ? undefined : addresses.find(({ address }) => !isPublicAddress(address));
  if (privateAddress !== undefined)
    throw invalidUrl(
      `${hostname} resolves to ${privateAddress.address}, which is not a public address; start capstan up with ${flag} to allow it`,
    );
  return { url, address: addresses[0] };
}
