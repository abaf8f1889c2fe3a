import { isIP } from 'node:net';
import { AccessError } from '../errors';

const ADDRESS_BYTES = 16;
/** Prefix of an IPv4-mapped IPv6 address: ::ffff:a.b.c.d. */
const MAPPED_PREFIX = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const MAPPED_BITS = MAPPED_PREFIX.length * 8;

interface Network {
  bytes: Uint8Array;
  numBits: number;
}

/** A list of networks. IPv4-mapped IPv6 addresses match as IPv4. */
export class CidrList {
  /** Canonical form of each network, for storage and display. */
  readonly texts: string[];
  readonly #networks: readonly Network[];

  private constructor(texts: string[], networks: readonly Network[]) {
    this.texts = texts;
    this.#networks = networks;
  }

  /**
   * Parses networks such as `10.0.0.0/8` and `2001:db8::/32`, and single addresses.
   * @param param The name of the option or field, for the message.
   * @throws AccessError on the first invalid text.
   */
  static parse(param: string, texts: readonly string[]): CidrList {
    const parsed = new Map<string, Network>();
    for (const text of texts) {
      const { canonical, network } = parseNetwork(param, text);
      parsed.set(canonical, network);
    }
    return new CidrList([...parsed.keys()], [...parsed.values()]);
  }

  /** Parses a list from the database. Skips invalid texts, so a damaged list never admits more addresses. */
  static ofStored(texts: readonly string[]): CidrList {
    return CidrList.parse(
      '',
      texts.filter((text) => {
        try {
          parseNetwork('', text);
          return true;
        } catch {
          return false;
        }
      }),
    );
  }

  /** Returns false if `address` is not an IP address. */
  has(address: string): boolean {
    const bytes = parseAddress(address);
    return bytes !== undefined && this.#networks.some((network) => startsWith(bytes, network));
  }
}

/** Returns the 16 bytes of an IPv4 or IPv6 address, or undefined. Ignores a zone. */
export function parseAddress(text: string): Uint8Array | undefined {
  const [address] = text.split('%', 1);
  const family = isIP(address);
  if (family === 0) return undefined;
  if (family === 4) return Uint8Array.from([...MAPPED_PREFIX, ...address.split('.').map(Number)]);
  const [head, tail] = address.split('::').map(toBytes);
  if (tail === undefined) return Uint8Array.from(head);
  return Uint8Array.from([...head, ...new Array<number>(ADDRESS_BYTES - head.length - tail.length).fill(0), ...tail]);
}

function toBytes(groups: string): number[] {
  if (groups === '') return [];
  return groups.split(':').flatMap((group) => {
    if (group.includes('.')) return group.split('.').map(Number);
    const value = Number.parseInt(group, 16);
    return [value >> 8, value & 0xff];
  });
}

function parseNetwork(param: string, text: string): { canonical: string; network: Network } {
  const [, address, length] =
    /^([^/]+)(?:\/(\d{1,3}))?$/.exec(typeof text === 'string' ? text.trim().toLowerCase() : '') ?? [];
  const bytes = address === undefined || address.includes('%') ? undefined : parseAddress(address);
  if (bytes === undefined)
    throw new AccessError(
      'invalid_argument',
      `${param}: expected networks such as 10.0.0.0/8 or 2001:db8::/32, or single addresses`,
    );
  const isIPv4 = !address.includes(':');
  const maxLength = isIPv4 ? 32 : 128;
  const prefixLength = length === undefined ? maxLength : Number(length);
  if (prefixLength > maxLength)
    throw new AccessError(
      'invalid_argument',
      `${param}: expected a prefix of at most ${maxLength} bits, got ${prefixLength}`,
    );
  const numBits = isIPv4 ? MAPPED_BITS + prefixLength : prefixLength;
  if (!isZeroFrom(bytes, numBits)) {
    throw new AccessError(
      'invalid_argument',
      `${param}: ${address}/${prefixLength} has bits set after its prefix; use the first address of the network`,
    );
  }
  return {
    canonical: prefixLength === maxLength ? address : `${address}/${prefixLength}`,
    network: { bytes, numBits },
  };
}

function startsWith(bytes: Uint8Array, network: Network): boolean {
  const numWhole = network.numBits >> 3;
  for (let i = 0; i < numWhole; i++) if (bytes[i] !== network.bytes[i]) return false;
  const numRest = network.numBits & 7;
  return numRest === 0 || (bytes[numWhole] ^ network.bytes[numWhole]) >> (8 - numRest) === 0;
}

function isZeroFrom(bytes: Uint8Array, numBits: number): boolean {
  return bytes.every((byte, i) => {
    const numKept = Math.min(8, Math.max(0, numBits - i * 8));
    return (byte & (0xff >> numKept)) === 0;
  });
}
