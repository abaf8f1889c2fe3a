import os from 'node:os';
import type { UpOptions } from './options';

/** How people and clients reach the service: origins, without a trailing slash. */
export interface Addresses {
  console: string;
  serving: string;
}

/** By what was asked for, else by where is listened. */
export function addressesOf(
  { host, publicUrl, servingUrl, tls }: Pick<UpOptions, 'host' | 'publicUrl' | 'servingUrl' | 'tls'>,
  ports: { console: number; serving: number },
): Addresses {
  const scheme = tls.certFile === undefined ? 'http' : 'https';
  const name = reachableHost(host);
  return {
    console: publicUrl ?? new URL(`${scheme}://${name}:${ports.console}`).origin,
    serving: servingUrl ?? new URL(`${scheme}://${name}:${ports.serving}`).origin,
  };
}

/** The address of a deployment: below a domain of its own where there is one. */
export function deploymentUrl({ serving }: Addresses, servingDomain: string | undefined, slug: string): string {
  if (servingDomain === undefined) return `${serving}/d/${slug}`;
  const { protocol, port } = new URL(serving);
  return `${protocol}//${slug}.${servingDomain}${port === '' ? '' : `:${port}`}`;
}

export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}

/** All addresses are none that a client can be given: then the first that others see. */
function reachableHost(host: string): string {
  if (host !== '0.0.0.0' && host !== '::' && host !== '') return host.includes(':') ? `[${host}]` : host;
  const outer = Object.values(os.networkInterfaces())
    .flat()
    .find((address) => address !== undefined && !address.internal && address.family === 'IPv4');
  return outer?.address ?? '127.0.0.1';
}
