import { periodEndMs, periodStart } from '../../../../server/access/check/budget';
import { callerAddress } from '../../../../server/access/check/caller-address';
import { CidrList, parseAddress } from '../../../../server/access/check/cidr';

const parse = (...texts: string[]) => CidrList.parse('allowed_cidrs', texts);

test.each([
  [
    '10.0.0.0/8',
    ['10.0.0.0', '10.255.255.255', '::ffff:10.1.2.3'],
    ['11.0.0.0', '9.255.255.255', '::10.0.0.1', '2001:db8::', '', 'x'],
  ],
  ['192.0.2.7', ['192.0.2.7', '::ffff:192.0.2.7', '::FFFF:c000:207'], ['192.0.2.6', '192.0.2.8']],
  ['192.0.2.128/25', ['192.0.2.128', '192.0.2.255'], ['192.0.2.127']],
  ['0.0.0.0/0', ['0.0.0.0', '255.255.255.255'], ['::1', '2001:db8::1']],
  ['::/0', ['::', '2001:db8::1', '192.0.2.1'], ['']],
  ['2001:db8::/33', ['2001:db8::1', '2001:db8:7fff::'], ['2001:db8:8000::', '2001:db9::']],
  ['2001:DB8::5', ['2001:db8:0:0:0:0:0:5', '2001:db8::5%eth0'], ['2001:db8::6']],
  ['fe80::/10', ['fe80::1%eth0', 'febf::'], ['fec0::']],
])('%s', (network, inside, outside) => {
  const list = parse(network);
  expect(inside.filter((address) => !list.has(address))).toEqual([]);
  expect(outside.filter((address) => list.has(address))).toEqual([]);
});

test('merges equal networks, and derives the address family from the text', () => {
  expect(parse(' 10.0.0.0/8', '10.0.0.0/8', '192.0.2.1/32', '2001:DB8::/128').texts).toEqual([
    '10.0.0.0/8',
    '192.0.2.1',
    '2001:db8::',
  ]);
});

test.each([
  ['', /expected networks such as/],
  ['10.0.0.0/', /expected networks/],
  ['10.0.0/8', /expected networks/],
  ['10.0.0.0/33', /at most 32 bits, got 33/],
  ['::/129', /at most 128 bits/],
  ['10.0.0.1/8', /has bits set after its prefix/],
  ['2001:db8::1/64', /set after its prefix/],
  ['example.com', /expected networks/],
  ['fe80::1%eth0', /expected networks/],
  ['010.0.0.0/8', /expected networks/],
])('refuses %j as a network', (text, message) => expect(() => parse('10.0.0.0/8', text)).toThrow(message));

test.each([
  ['192.0.2.1', '00000000000000000000ffffc0000201'],
  ['::', '0'.repeat(32)],
  ['::1', `${'0'.repeat(31)}1`],
  ['2001:db8::', `20010db8${'0'.repeat(24)}`],
  ['1:2:3:4:5:6:7:8', '00010002000300040005000600070008'],
  ['::ffff:192.0.2.1', '00000000000000000000ffffc0000201'],
  ['64:ff9b::192.0.2.1', '0064ff9b0000000000000000c0000201'],
])('%s in bytes', (text, hex) => expect(Buffer.from(parseAddress(text) ?? []).toString('hex')).toBe(hex));

test.each(['', '1.2.3', '256.0.0.1', '1:2', ':::', 'localhost', '[::1]', '1.2.3.4:80'])('%j is no address', (text) =>
  expect(parseAddress(text)).toBeUndefined(),
);

describe('the client address behind proxies', () => {
  const trusted = parse('127.0.0.1', '10.0.0.0/8');
  test.each([
    ['the peer without a proxy', '192.0.2.1', ['198.51.100.1'], '192.0.2.1'],
    ['what the proxy saw', '127.0.0.1', ['198.51.100.1'], '198.51.100.1'],
    ['the last that is no proxy', '127.0.0.1', ['203.0.113.9, 198.51.100.1, 10.0.0.5'], '198.51.100.1'],
    ['over several headers', '127.0.0.1', ['203.0.113.9', '198.51.100.1,10.0.0.5'], '198.51.100.1'],
    ['proxies alone', '127.0.0.1', ['10.0.0.5, 10.0.0.6'], '10.0.0.5'],
    ['with a port', '127.0.0.1', ['198.51.100.1:4711'], '198.51.100.1'],
    ['IPv6 in brackets', '127.0.0.1', ['[2001:db8::1]:80'], '2001:db8::1'],
    ['IPv6', '127.0.0.1', ['2001:db8::1'], '2001:db8::1'],
    ['nothing said', '127.0.0.1', [], '127.0.0.1'],
    ['nonsense said', '127.0.0.1', ['unknown'], '127.0.0.1'],
    ['nonsense behind a proxy', '127.0.0.1', ['198.51.100.1, unknown, 10.0.0.5'], '10.0.0.5'],
    ['an empty entry', '127.0.0.1', [''], '127.0.0.1'],
  ])('%s', (_name, peer, forwarded, expected) => {
    expect(
      callerAddress(
        peer,
        forwarded.map((value) => ['x-forwarded-for', value]),
        trusted,
      ),
    ).toBe(expected);
    expect(
      callerAddress(
        peer,
        forwarded.map((value) => ['x-forwarded-for', value]),
        undefined,
      ),
    ).toBe(peer);
  });
});

test.each([
  ['2027-01-15T08:00:00Z', 'day', '2027-01-15', '2027-01-16'],
  ['2027-01-15T23:59:59.999Z', 'day', '2027-01-15', '2027-01-16'],
  ['2027-01-17T12:00:00Z', 'week', '2027-01-11', '2027-01-18'],
  ['2027-01-18T00:00:00Z', 'week', '2027-01-18', '2027-01-25'],
  ['1970-01-01T00:00:00Z', 'week', '1969-12-29', '1970-01-05'],
  ['2028-02-29T23:00:00Z', 'month', '2028-02-01', '2028-03-01'],
  ['2027-12-31T23:59:59Z', 'month', '2027-12-01', '2028-01-01'],
] as const)('%s is in the %s from %s to %s', (now, period, start, end) => {
  expect(periodStart(period, Date.parse(now)) * 86_400_000).toBe(Date.parse(start));
  expect(periodEndMs(period, Date.parse(now))).toBe(Date.parse(end));
});
