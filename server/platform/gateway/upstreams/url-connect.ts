import { lookup as resolve } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import { UpstreamError } from '../upstream-error';
import { isPublicAddress } from '../../outbound/public-address';

/** An upstream server. */
export interface UrlAddress {
  readonly type: 'url';
  readonly url: string;
}

/** Options of `connect` for a URL. */
export interface UrlConnect {
  isTls: boolean;
  host: string;
  port: number;
  servername: string | undefined;
  lookup: LookupFunction;
}

/**
 * Returns how to connect to the host of a URL. The addresses are checked at each connection, and the connection goes to
 * a checked one, so that a change of DNS cannot lead to a private address.
 * @throws UpstreamError for a private address
 */
export function urlConnect({ url }: UrlAddress, allowsPrivate: boolean): UrlConnect {
  const { protocol, hostname, port } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  const isTls = protocol === 'https:';
  const isAddress = isIP(host) !== 0;
  // The lookup function is not called for an address.
  if (isAddress && !allowsPrivate && !isPublicAddress(host))
    throw new UpstreamError('unreachable', false, false, hidden(host).message);
  return {
    isTls,
    host,
    port: portOf(port, isTls),
    servername: isAddress ? undefined : host,
    lookup: (name, options, callback) =>
      resolve(name, { ...options, all: true, verbatim: true }, (error, addresses) => {
        if (error !== null) return callback(error, []);
        const refused = allowsPrivate ? undefined : addresses.find(({ address }) => !isPublicAddress(address));
        if (refused !== undefined) return callback(hidden(refused.address), []);
        if (options.all === true) callback(null, addresses);
        else callback(null, addresses[0].address, addresses[0].family);
      }),
  };
}

function portOf(port: string, isTls: boolean): number {
  if (port !== '') return Number(port);
  return isTls ? 443 : 80;
}

function hidden(address: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`${address} is not a public address`), { code: 'EPRIVATE' });
}
