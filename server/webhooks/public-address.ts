import { isIPv4 } from 'node:net';
import { CidrList, parseAddress } from '../access/cidr';

/** What the IPv4 Special-Purpose Address Registry of IANA holds that does not lead to a host of the public internet: private, shared, loopback, link-local (cloud metadata among it), documentation, multicast, reserved. */
const SPECIAL_IPV4 = CidrList.parse('', [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
]);
/** Of IPv6 this alone is handed out to hosts. Outside of it are loopback, unique local and link-local addresses, and those that hold an IPv4 address (mapped, compatible, NAT64). */
const GLOBAL_IPV6 = CidrList.parse('', ['2000::/3']);
/** Of that: protocol assignments with Teredo, documentation, and 6to4, which holds an IPv4 address too. */
const SPECIAL_IPV6 = CidrList.parse('', ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']);

/** Whether a host of the public internet is there. What is no address is none. */
export function isPublicAddress(address: string): boolean {
  if (isIPv4(address)) return !SPECIAL_IPV4.has(address);
  // A zone names an interface of this machine.
  if (address.includes('%') || parseAddress(address) === undefined) return false;
  return GLOBAL_IPV6.has(address) && !SPECIAL_IPV6.has(address);
}
