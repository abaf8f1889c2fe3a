import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { ServiceError } from '../service/errors';
import { isPublicAddress } from './public-address';

export interface Address {
  address: string;
  family: number;
}

/** Every address of a name. Rejects where there is none. */
export type Resolve = (hostname: string) => Promise<readonly Address[]>;

/** Where a message goes: the URL, and the one address that was looked at and is connected to. */
export interface Endpoint {
  url: URL;
  address: Address;
}

export const MAX_URL_LENGTH = 2_000;

export const resolveByDns: Resolve = (hostname) => lookup(hostname, { all: true, verbatim: true });

/** @throws ServiceError `invalid_argument` */
export function parseEndpointUrl(text: string): URL {
  const url = text.length <= MAX_URL_LENGTH && URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol))
    throw refused(`expected an http:// or https:// address of at most ${MAX_URL_LENGTH} characters`);
  if (url.username !== '' || url.password !== '')
    throw refused('expected an address without a user and a password: what arrives is signed');
  if (url.hash !== '') throw refused('expected an address without a #fragment');
  return url;
}

/**
 * Looks up where a URL leads, and refuses what is not on the public internet. NOTE: one private address among several is enough, and whoever connects takes the address that came out of here: a name that leads elsewhere
 * when it is asked again (DNS rebinding) is never asked again.
 * @throws ServiceError `invalid_argument`
 */
export async function resolveEndpoint(
  text: string,
  { resolve, allowsPrivate }: { resolve: Resolve; allowsPrivate: boolean },
): Promise<Endpoint> {
  const url = parseEndpointUrl(text);
  const hostname = url.hostname.replace(/^\[|\]$/g, '');
  const family = isIP(hostname);
  const addresses = family === 0 ? await resolve(hostname).catch(() => []) : [{ address: hostname, family }];
  if (addresses.length === 0) throw refused(`no address could be found for ${hostname}`);
  const hidden = allowsPrivate ? undefined : addresses.find(({ address }) => !isPublicAddress(address));
  if (hidden !== undefined)
    throw refused(
      `${hostname} leads to ${hidden.address}, which is not on the public internet; capstan up --allow-private-webhooks allows such addresses`,
    );
  return { url, address: addresses[0] };
}

function refused(message: string): ServiceError {
  return new ServiceError('invalid_argument', `url: ${message}`);
}
