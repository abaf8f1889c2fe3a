import http from 'node:http';
import https from 'node:https';
import type { Duplex } from 'node:stream';
import { connect as connectTls } from 'node:tls';
import { CapstanError } from '../errors';

/**
 * Returns the proxy for a URL, or undefined for a direct connection. Reads `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and
 * `NO_PROXY`, in lower case first, as curl does.
 * @throws CapstanError `invalid_argument` for a proxy that is not an http or https URL, or whose user name or password
 *   has a bare `%`. The message does not repeat the value.
 */
export function proxyFor(url: URL, env: NodeJS.ProcessEnv): URL | undefined {
  const read = (name: string): string => env[name.toLowerCase()] || env[name] || '';
  if (isExcluded(url, read('NO_PROXY'))) return undefined;
  const names = [url.protocol === 'https:' ? 'HTTPS_PROXY' : 'HTTP_PROXY', 'ALL_PROXY'];
  const name = names.find((candidate) => read(candidate) !== '');
  if (name === undefined) return undefined;
  const text = read(name);
  const full = text.includes('://') ? text : `http://${text}`;
  const proxy = URL.canParse(full) ? new URL(full) : undefined;
  if (proxy === undefined || !/^https?:$/.test(proxy.protocol))
    throw new CapstanError('invalid_argument', `${name}: expected a URL such as http://proxy:3128`, { param: name });
  if (!isDecodable(proxy.username) || !isDecodable(proxy.password))
    throw new CapstanError(
      'invalid_argument',
      `${name}: expected %25 for each % in the user name and the password, got another text after a %`,
      { param: name },
    );
  return proxy;
}

function isDecodable(text: string): boolean {
  try {
    decodeURIComponent(text);
    return true;
  } catch {
    return false;
  }
}

const DEFAULT_PORTS: Readonly<Record<string, string>> = { 'http:': '80', 'https:': '443' };

/** An entry is `*`, a host, a domain with its subdomains, or one of these with a port. */
function isExcluded(url: URL, list: string): boolean {
  const port = url.port || DEFAULT_PORTS[url.protocol];
  const host = bareHost(url);
  return list
    .toLowerCase()
    .split(/[\s,]+/)
    .filter((entry) => entry !== '')
    .some((entry) => {
      if (entry === '*') return true;
      const [, name, onlyPort] = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(entry) ?? [undefined, entry, undefined];
      const domain = name.replace(/^\*?\.|[[\]]/g, '');
      return (onlyPort === undefined || onlyPort === port) && (host === domain || host.endsWith(`.${domain}`));
    });
}

/** A host without the brackets of an IPv6 address. */
export function bareHost(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, '');
}

export function proxyHeaders(proxy: URL): Record<string, string> {
  if (proxy.username === '') return {};
  const user = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`;
  return { 'Proxy-Authorization': `Basic ${Buffer.from(user).toString('base64')}` };
}

/** Opens a TLS connection to the host of a URL through a proxy. Rejects with a network error. */
export function openTunnel(url: URL, proxy: URL, signal: AbortSignal, idleMs: number): Promise<Duplex> {
  const target = `${url.hostname}:${url.port === '' ? '443' : url.port}`;
  const { request } = proxy.protocol === 'https:' ? https : http;
  return new Promise((done, fail) => {
    const connect = request({
      host: bareHost(proxy),
      port: proxy.port === '' ? undefined : proxy.port,
      method: 'CONNECT',
      path: target,
      headers: { Host: target, ...proxyHeaders(proxy) },
      agent: false,
      signal,
      timeout: idleMs,
    });
    connect.once('timeout', () => connect.destroy(new Error('the proxy does not answer')));
    connect.once('connect', ({ statusCode }, socket) => {
      if (statusCode === 200) {
        socket.setTimeout(0);
        const host = bareHost(url);
        return done(connectTls({ socket, timeout: idleMs, ...(/^[\d.]+$|:/.test(host) ? {} : { servername: host }) }));
      }
      socket.destroy();
      fail(new Error(`the proxy ${proxy.host} refused the connection with status ${statusCode}`));
    });
    connect.once('response', (response) => {
      response.destroy();
      fail(new Error(`the proxy ${proxy.host} refused the connection with status ${response.statusCode}`));
    });
    connect.once('error', fail);
    connect.end();
  });
}
