import os from 'node:os';
import type { SessionGuard } from '../api/context';
import type { Isolation } from '../driver/driver';
import { API_LABEL } from '../gateway/address';
import type { UpOptions } from './options';

/** Origins at which users and clients reach the service, without a trailing slash. */
export interface Addresses {
  console: string;
  serving: string;
}

/** Uses the configured public URLs and host name, or else the listening addresses. */
export function addressesOf(
  {
    host,
    consoleHost,
    publicUrl,
    servingUrl,
    tls,
  }: Pick<UpOptions, 'host' | 'consoleHost' | 'publicUrl' | 'servingUrl' | 'tls'>,
  ports: { console: number; serving: number },
): Addresses {
  const scheme = tls.certFile === undefined ? 'http' : 'https';
  const name = reachableHost(host);
  return {
    console: publicUrl ?? new URL(`${scheme}://${consoleHost ?? name}:${ports.console}`).origin,
    serving: servingUrl ?? new URL(`${scheme}://${name}:${ports.serving}`).origin,
  };
}

/**
 * Its own host name protects console cookies only over HTTPS, where no other host can set them, and at isolation
 * level L2, where no deployment can listen on a port of the machine.
 */
export function sessionGuardOf(
  { consoleHost }: Pick<UpOptions, 'consoleHost'>,
  isSecure: boolean,
  level: Isolation['level'],
): SessionGuard {
  return consoleHost !== undefined && isSecure && level === 'L2' ? 'own-host' : 'secret';
}

/** Returns the URL of the API over all deployments: `api.{domain}` if there is a serving domain. */
export function apiUrl(addresses: Addresses, servingDomain: string | undefined): string {
  return servingDomain === undefined ? addresses.serving : deploymentUrl(addresses, servingDomain, API_LABEL);
}

/** Returns the URL of a deployment: a subdomain of the serving domain if there is one. */
export function deploymentUrl({ serving }: Addresses, servingDomain: string | undefined, slug: string): string {
  if (servingDomain === undefined) return `${serving}/d/${slug}`;
  const { protocol, port } = new URL(serving);
  return `${protocol}//${slug}.${servingDomain}${port === '' ? '' : `:${port}`}`;
}

export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}

/** Wildcard hosts are not reachable addresses. Returns the first external IPv4 address for them. */
function reachableHost(host: string): string {
  if (host !== '0.0.0.0' && host !== '::' && host !== '') return host.includes(':') ? `[${host}]` : host;
  const outer = Object.values(os.networkInterfaces())
    .flat()
    .find((address) => address !== undefined && !address.internal && address.family === 'IPv4');
  return outer?.address ?? '127.0.0.1';
}
