import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { type Address, parseEndpointUrl, resolveEndpoint } from '../../../../server/platform/outbound/endpoint';
import { post } from '../../../../server/platform/webhooks/post';
import { isPublicAddress } from '../../../../server/platform/outbound/public-address';

const PUBLIC: Address = { address: '93.184.215.14', family: 4 };
const answering =
  (...addresses: Address[]) =>
  () =>
    Promise.resolve(addresses);

describe('addresses', () => {
  test.each([
    '127.0.0.1',
    '127.9.9.9',
    '0.0.0.0',
    '10.1.2.3',
    '100.64.0.1',
    '169.254.169.254',
    '172.16.0.1',
    '172.31.255.255',
    '192.168.1.1',
    '192.0.0.1',
    '192.0.2.1',
    '198.18.0.1',
    '198.51.100.1',
    '203.0.113.9',
    '224.0.0.1',
    '240.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    '::127.0.0.1',
    '::ffff:127.0.0.1',
    '::ffff:10.0.0.1',
    '::ffff:7f00:1',
    '::ffff:93.184.215.14',
    'fe80::1',
    'fe80::1%eth0',
    '2606:4700::1%eth0',
    'fc00::1',
    'fd00:ec2::254',
    'ff02::1',
    '64:ff9b::7f00:1',
    '64:ff9b:1::1',
    '100::1',
    '2001::1',
    '2001:db8::1',
    '2002:7f00:1::',
    '3fff::1',
    'localhost',
    '',
    '1.2.3',
    '1.2.3.4.5',
  ])('%s is not public', (address) => expect(isPublicAddress(address)).toBe(false));

  test.each([
    '93.184.215.14',
    '8.8.8.8',
    '172.15.0.1',
    '172.32.0.1',
    '100.63.0.1',
    '2606:4700:4700::1111',
    '2a00:1450:4001:82a::200e',
    '2001:4860:4860::8888',
  ])('%s is', (address) => expect(isPublicAddress(address)).toBe(true));
});

describe('a URL', () => {
  test.each([
    ['ftp://example.com/', 'http:// or https://'],
    ['file:///etc/passwd', 'http:// or https://'],
    ['javascript:alert(1)', 'http:// or https://'],
    ['//example.com', 'http:// or https://'],
    ['', 'http:// or https://'],
    [`https://example.com/${'a'.repeat(2_000)}`, '2000 characters'],
    ['https://user:pass@example.com/', 'without user and password'],
    ['https://example.com/#x', 'without a #fragment'],
  ])('%s is refused', (text, why) => expect(() => parseEndpointUrl(text)).toThrow(why));

  // The URL parser normalizes all spellings of an address.
  test.each([
    'http://127.0.0.1/',
    'http://127.1/',
    'http://2130706433/',
    'http://0x7f.1/',
    'http://0177.0.0.1/',
    'http://[::1]/',
    'http://[::ffff:127.0.0.1]/',
    'http://[::ffff:a9fe:a9fe]/',
    'http://[fe80::1]/',
    'http://169.254.169.254/latest/meta-data/',
    'http://①②⑦.0.0.1/',
  ])('%s is refused without a DNS lookup', async (text) => {
    const resolve = jest.fn(answering(PUBLIC));
    await expect(resolveEndpoint(text, { resolve, allowsPrivate: false })).rejects.toMatchObject({
      code: 'invalid_argument',
      message: expect.stringContaining('which is not a public address'),
    });
    expect(resolve).not.toHaveBeenCalled();
  });

  test.each<[string, Address[]]>([
    ['the metadata service', [{ address: '169.254.169.254', family: 4 }]],
    ['loopback', [{ address: '::1', family: 6 }]],
    ['a mapped address', [{ address: '::ffff:10.0.0.1', family: 6 }]],
    ['a private address behind a public one', [PUBLIC, { address: '10.0.0.1', family: 4 }]],
  ])('is refused if its name resolves to %s', async (_what, addresses) => {
    await expect(
      resolveEndpoint('https://hooks.example.com/', { resolve: answering(...addresses), allowsPrivate: false }),
    ).rejects.toThrow('--allow-private-webhooks');
    expect(
      (await resolveEndpoint('https://hooks.example.com/', { resolve: answering(...addresses), allowsPrivate: true }))
        .address,
    ).toEqual(addresses[0]);
  });

  test('is refused if its name does not resolve', async () => {
    for (const resolve of [answering(), () => Promise.reject(new Error('ENOTFOUND'))])
      await expect(resolveEndpoint('https://hooks.example.com/', { resolve, allowsPrivate: true })).rejects.toThrow(
        'cannot resolve hooks.example.com',
      );
  });

  test('with a public address returns the address to connect to', async () => {
    expect(
      await resolveEndpoint('https://hooks.example.com/a?b', { resolve: answering(PUBLIC), allowsPrivate: false }),
    ).toMatchObject({ address: PUBLIC, url: { href: 'https://hooks.example.com/a?b' } });
  });
});

describe('a message', () => {
  let server: http.Server;
  let port: number;
  let seen: { host: string | undefined; url: string | undefined; body: string }[];
  let answer: (reply: http.ServerResponse) => void;

  beforeEach(async () => {
    seen = [];
    answer = (reply) => reply.writeHead(204).end();
    server = http.createServer((request, reply) => {
      let body = '';
      request
        .setEncoding('utf8')
        .on('data', (text: string) => {
          body += text;
        })
        .on('end', () => {
          seen.push({ host: request.headers.host, url: request.url, body });
          answer(reply);
        });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    ({ port } = server.address() as AddressInfo);
  });
  afterEach(
    () =>
      new Promise((resolve) => {
        server.closeAllConnections();
        server.close(resolve);
      }),
  );

  const send = (signal = new AbortController().signal) =>
    post(
      { url: new URL(`http://rebinding.example.com:${port}/hook?a=1`), address: { address: '127.0.0.1', family: 4 } },
      {},
      '{"é":1}',
      signal,
    );

  // The name does not resolve, so the request must use the checked address.
  test('goes to the checked address with the host name of the URL', async () => {
    expect(await send()).toBe(204);
    expect(seen).toEqual([{ host: `rebinding.example.com:${port}`, url: '/hook?a=1', body: '{"é":1}' }]);
  });

  test('follows no redirects', async () => {
    answer = (reply) => reply.writeHead(302, { location: `http://127.0.0.1:${port}/inside` }).end();
    expect(await send()).toBe(302);
    expect(seen).toHaveLength(1);
  });

  test('ends when the response is too long or the connection closes', async () => {
    answer = (reply) => {
      reply.writeHead(200);
      const timer = setInterval(() => reply.write('x'.repeat(16_384)), 1);
      reply.on('close', () => clearInterval(timer));
    };
    expect(await send()).toBe(200);
    answer = (reply) => reply.socket!.destroy();
    await expect(send()).rejects.toThrow();
  });

  test('ends when aborted', async () => {
    const abort = new AbortController();
    answer = () => abort.abort();
    await expect(send(abort.signal)).rejects.toMatchObject({ name: 'AbortError' });
  });
});
