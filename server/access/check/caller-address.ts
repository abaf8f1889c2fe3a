import { isIP } from 'node:net';
import { trimBlanks } from '../../base/blanks';
import type { RawHeaders } from './authorization';
import type { CidrList } from './cidr';

/**
 * Returns the address of the client. If the peer is a trusted proxy, that is the last address of `X-Forwarded-For` that
 * is not a trusted proxy. Earlier entries are ignored, because a client can forge them.
 */
export function callerAddress(peer: string, headers: RawHeaders, trustedProxies: CidrList | undefined): string {
  if (trustedProxies === undefined || !trustedProxies.has(peer)) return peer;
  const hops = headers
    .filter(([name]) => name === 'x-forwarded-for')
    .flatMap(([, value]) => value.split(','))
    .map(withoutPort);
  let caller = peer;
  for (const hop of hops.reverse()) {
    // A hop that is not an address (`unknown`): earlier hops cannot be trusted.
    if (hop === '') break;
    caller = hop;
    if (!trustedProxies.has(hop)) break;
  }
  return caller;
}

/** Removes the port that some proxies add: `192.0.2.1:4711`, `[2001:db8::1]:4711`. Returns '' without an address. */
function withoutPort(text: string): string {
  const trimmed = trimBlanks(text);
  const [, bracketed, plain] = /^(?:\[([^\]]+)\](?::\d+)?|([^\s:]+)(?::\d+)?)$/.exec(trimmed) ?? [];
  const address = bracketed ?? plain ?? trimmed;
  return isIP(address) === 0 ? '' : address;
}
