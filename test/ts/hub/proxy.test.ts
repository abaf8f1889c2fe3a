import dns from 'node:dns';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { createHttp } from '../../../ts/hub/http';
import { proxyFor } from '../../../ts/hub/proxy';

const ask = (url: string, env: NodeJS.ProcessEnv): string | undefined => proxyFor(new URL(url), env)?.href;

test.each<[url: string, env: NodeJS.ProcessEnv, proxy: string | undefined]>([
  ['https://huggingface.co/x', {}, undefined],
  ['https://huggingface.co/x', { HTTPS_PROXY: 'http://p:3128' }, 'http://p:3128/'],
  ['https://huggingface.co/x', { https_proxy: 'p:3128', HTTPS_PROXY: 'http://other' }, 'http://p:3128/'],
  ['https://huggingface.co/x', { HTTP_PROXY: 'http://p' }, undefined],
  ['http://hub.local/x', { HTTP_PROXY: 'http://p' }, 'http://p/'],
  ['http://hub.local/x', { ALL_PROXY: 'https://p' }, 'https://p/'],
  ['https://a.huggingface.co', { HTTPS_PROXY: 'http://p', NO_PROXY: 'huggingface.co' }, undefined],
  ['https://ahuggingface.co', { HTTPS_PROXY: 'http://p', NO_PROXY: 'huggingface.co' }, 'http://p/'],
  ['https://a.b', { HTTPS_PROXY: 'http://p', NO_PROXY: 'x, .b' }, undefined],
  ['https://a.b', { HTTPS_PROXY: 'http://p', NO_PROXY: 'a.b:8443' }, 'http://p/'],
  ['https://a.b:8443', { HTTPS_PROXY: 'http://p', NO_PROXY: 'a.b:8443' }, undefined],
  ['https://[::1]:1', { HTTPS_PROXY: 'http://p', NO_PROXY: '[::1]' }, undefined],
  ['https://a.b', { HTTPS_PROXY: 'http://p', NO_PROXY: '*' }, undefined],
])('%s with %j uses %s', (url, env, proxy) => {
  expect(ask(url, env)).toBe(proxy);
});

test('a proxy that is no URL is refused without showing its password', () => {
  const env = { HTTPS_PROXY: 'socks5://user:secret@p' };
  expect(() => ask('https://a.b', env)).toThrow(/^HTTPS_PROXY: expected a URL such as http:\/\/proxy:3128$/);
});

test.each(['user:sec%ret@p', 'us%er:secret@p'])(
  'a bare %% in %s is refused, and the message asks for %%25',
  (proxy) => {
    expect(() => ask('https://a.b', { HTTPS_PROXY: `http://${proxy}` })).toThrow(
      expect.objectContaining({
        code: 'invalid_argument',
        message: expect.stringMatching(/^HTTPS_PROXY: expected %25 for each % (?!.*sec)/) as string,
      }),
    );
  },
);

describe('through a proxy', () => {
  let target: Server;
  let proxy: Server;
  const seen: string[] = [];
  const listen = async (server: Server): Promise<number> => {
    await once(server.listen(0, '127.0.0.1'), 'listening');
    return (server.address() as AddressInfo).port;
  };

  beforeEach(() => {
    seen.length = 0;
    target = createServer((request, response) => response.end(`target ${request.url}`));
    proxy = createServer((request, response) => {
      seen.push(`${request.url} ${request.headers['proxy-authorization']}`);
      response.end('forwarded');
    });
  });
  afterEach(() => {
    for (const server of [target, proxy]) {
      server.closeAllConnections();
      server.close();
    }
  });

  const get = async (url: string, env: NodeJS.ProcessEnv): Promise<string> => {
    const { send, close } = createHttp(env);
    try {
      const request = { method: 'GET' as const, headers: {}, signal: new AbortController().signal };
      const { body } = await send(new URL(url), request);
      const chunks: Buffer[] = [];
      for await (const chunk of body) chunks.push(chunk);
      return Buffer.concat(chunks).toString();
    } finally {
      close();
    }
  };

  test('a plain request is forwarded with the user of the proxy', async () => {
    const port = await listen(proxy);
    expect(await get('http://hub.local/a?b=c', { HTTP_PROXY: `http://me:s%40crt@127.0.0.1:${port}` })).toBe(
      'forwarded',
    );
    expect(seen).toEqual([`http://hub.local/a?b=c Basic ${Buffer.from('me:s@crt').toString('base64')}`]);
  });

  test('a plain request is sent over TLS to an https proxy', async () => {
    const port = await listen(proxy);
    // The proxy of this test speaks no TLS.
    await expect(get('http://hub.local/', { HTTP_PROXY: `https://127.0.0.1:${port}` })).rejects.toMatchObject({
      code: expect.stringMatching(/^(ERR_SSL|EPROTO|ECONNRESET)/) as string,
    });
  });

  test('a TLS request asks for a tunnel, and a refusal names the proxy', async () => {
    const port = await listen(proxy);
    proxy.on('connect', (request, socket) => {
      seen.push(request.url!);
      socket.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n');
    });
    await expect(get('https://hub.local/x', { HTTPS_PROXY: `http://127.0.0.1:${port}` })).rejects.toThrow(
      `the proxy 127.0.0.1:${port} refused the connection with status 407`,
    );
    expect(seen).toEqual(['hub.local:443']);
  });

  test('a tunnel carries TLS to the target', async () => {
    const port = await listen(proxy);
    const plainPort = await listen(target);
    proxy.on('connect', (_request, socket) => {
      const upstream = connect(plainPort, '127.0.0.1', () => {
        socket.write('HTTP/1.1 200 OK\r\n\r\n');
        // The target speaks no TLS, so it answers the first bytes of the handshake with an error.
        socket.pipe(upstream).pipe(socket);
      });
      upstream.on('error', () => {});
      socket.on('error', () => {});
    });
    await expect(get('https://hub.local/x', { HTTPS_PROXY: `http://127.0.0.1:${port}` })).rejects.toMatchObject({
      code: expect.stringMatching(/^(ERR_SSL|EPROTO|ECONNRESET)/) as string,
    });
  });

  test('a server that does not answer is given up', async () => {
    target.removeAllListeners('request');
    const port = await listen(target);
    const { send, close } = createHttp({}, 1);
    const request = { method: 'GET' as const, headers: {}, signal: new AbortController().signal };
    await expect(send(new URL(`http://127.0.0.1:${port}/`), request)).rejects.toThrow('no data for 0.001 s');
    close();
  });

  test.each([
    ['http://hub.local/', {}, 'no data for 0.001 s'],
    ['https://hub.local/', {}, 'no data for 0.001 s'],
    ['http://hub.local/', { HTTP_PROXY: 'http://proxy.local' }, 'no data for 0.001 s'],
    ['https://hub.local/', { HTTPS_PROXY: 'http://proxy.local' }, 'the proxy does not answer'],
    ['https://hub.local/', { HTTPS_PROXY: 'https://proxy.local' }, 'the proxy does not answer'],
  ])('a name server that does not answer is given up: %s with %j', async (url, env, message) => {
    const lookup = jest.spyOn(dns, 'lookup').mockImplementation((() => undefined) as never);
    const { send, close } = createHttp(env, 1);
    try {
      const request = { method: 'GET' as const, headers: {}, signal: new AbortController().signal };
      await expect(send(new URL(url), request)).rejects.toThrow(message);
    } finally {
      lookup.mockRestore();
      close();
    }
  });

  test('a target that does not answer through the tunnel is given up', async () => {
    const port = await listen(proxy);
    proxy.on('connect', (_request, socket) => {
      socket.on('error', () => {});
      socket.write('HTTP/1.1 200 OK\r\n\r\n');
    });
    const { send, close } = createHttp({ HTTPS_PROXY: `http://127.0.0.1:${port}` }, 50);
    const request = { method: 'GET' as const, headers: {}, signal: new AbortController().signal };
    await expect(send(new URL('https://hub.local/'), request)).rejects.toThrow('no data for 0.05 s');
    close();
  });
});
