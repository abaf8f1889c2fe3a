import { isIP } from 'node:net';
import type { RawHeaders } from './authorization';
import type { CidrList } from './cidr';

/**
 * Whose request it is: the peer's, unless the peer is a trusted proxy; then the last address of `X-Forwarded-For` that no trusted proxy
 * has. What stands before it a client could have written.
 */
export function callerAddress(peer: string, headers: RawHeaders, trustedProxies: CidrList | undefined): string {
  if (trustedProxies === undefined || !trustedProxies.has(peer)) return peer;
  const hops = headers
    .filter(([name]) => name === 'x-forwarded-for')
    .flatMap(([, value]) => value.split(','))
    .map(withoutPort);
  let caller = peer;
  for (const hop of hops.reverse()) {
    // A proxy that hides an address (`unknown`) ends what is known.
    if (hop === '') break;
    caller = hop;
    if (!trustedProxies.has(hop)) break;
  }
  return caller;
}

/** `192.0.2.1:4711` and `[2001:db8::1]:4711` as some proxies write them; what is no address becomes empty. */
function withoutPort(text: string): string {
  const [, bracketed, plain] = /^(?:\[([^\]]+)\](?::\d+)?|([^\s:]+)(?::\d+)?)$/.exec(text.trim()) ?? [];
  const address = bracketed ?? plain ?? text.trim();
  return isIP(address) === 0 ? '' : address;
}
