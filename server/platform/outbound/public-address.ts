import { isIPv4 } from 'node:net';
import { CidrList, parseAddress } from 'capstan/internal';

/**
 * Ranges of the IANA IPv4 Special-Purpose Address Registry that are not public: private, shared, loopback, link-local
 * (including cloud metadata), documentation, multicast and reserved.
 */
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
/**
 * The global unicast range of IPv6. Loopback, unique local and link-local addresses are outside of it, and so are
 * addresses that embed an IPv4 address (mapped, compatible, NAT64).
 */
const GLOBAL_IPV6 = CidrList.parse('', ['2000::/3']);
/** Exceptions within it: protocol assignments (Teredo), documentation, and 6to4, which embeds an IPv4 address. */
const SPECIAL_IPV6 = CidrList.parse('', ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']);

/** Returns whether `address` is an IP address of the public internet. */
export function isPublicAddress(address: string): boolean {
  if (isIPv4(address)) return !SPECIAL_IPV4.has(address);
  // A zone id names an interface of this machine.
  if (address.includes('%') || parseAddress(address) === undefined) return false;
  return GLOBAL_IPV6.has(address) && !SPECIAL_IPV6.has(address);
}
