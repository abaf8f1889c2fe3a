import http from 'node:http';
import https from 'node:https';
import { isIP } from 'node:net';
import { CidrList } from 'capstan/internal';
import { type Address, type Resolve, resolveByDns } from '../outbound/endpoint';

export interface ProviderRequest {
  method: string;
  headers: Readonly<Record<string, string>>;
  body?: unknown;
  signal?: AbortSignal;
}

/** Sends one request to an identity provider. */
export type ProviderFetch = (url: string, request: ProviderRequest) => Promise<Response>;

const MAX_RESPONSE_BYTES = 1024 * 1024;
const TIMEOUT_MS = 10_000;
/**
 * Link-local addresses, where clouds serve credentials of the machine, and addresses that name no host. Private
 * addresses are allowed: companies run their provider in their network, and only administrators name providers.
 */
const REFUSED = CidrList.parse('', [
  '0.0.0.0/8',
  '169.254.0.0/16',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '64:ff9b::a9fe:0/112', // 169.254.0.0/16 behind NAT64
  'fe80::/10',
  'ff00::/8',
  'fd00:ec2::254/128',
]);

/**
 * Returns a fetch for the endpoints of a provider: it follows no redirects, ignores proxy variables, reads at most
 * 1 MiB and connects only to the address that it has checked.
 */
export function providerFetch(resolve: Resolve = resolveByDns): ProviderFetch {
  return async (url, request) => {
    const target = new URL(url);
    const signal = AbortSignal.any([
      AbortSignal.timeout(TIMEOUT_MS),
      ...(request.signal === undefined ? [] : [request.signal]),
    ]);
    const address = await addressOf(target.hostname.replace(/^\[|\]$/g, ''), resolve);
    return send(target, address, request, signal);
  };
}

async function addressOf(hostname: string, resolve: Resolve): Promise<Address> {
  const family = isIP(hostname);
  const addresses = family === 0 ? await resolve(hostname).catch(() => []) : [{ address: hostname, family }];
  if (addresses.length === 0) throw new Error(`cannot resolve ${hostname}`);
  const refused = addresses.find(({ address }) => REFUSED.has(address.replace(/%.*$/, '')));
  if (refused !== undefined) throw new Error(`${hostname} resolves to ${refused.address}, which is not a provider`);
  return addresses[0];
}

function send(url: URL, address: Address, { method, headers, body }: ProviderRequest, signal: AbortSignal) {
  return new Promise<Response>((resolve, reject) => {
    const fail = (error: NodeJS.ErrnoException) =>
      reject(
        new Error(
          `cannot reach ${url.host}: ${signal.aborted ? 'no response in time' : (error.code ?? error.message)}`,
        ),
      );
    const request = (url.protocol === 'https:' ? https : http).request(url, {
      method,
      agent: false,
      signal,
      maxHeaderSize: 64 * 1024,
      headers: { ...headers, 'accept-encoding': 'identity' },
      lookup: (_hostname, options, callback) => {
        if (options.all === true) callback(null, [address]);
        else callback(null, address.address, address.family);
      },
    });
    request.on('error', fail);
    request.once('response', (response) => {
      const chunks: Buffer[] = [];
      let numBytes = 0;
      response.on('error', fail);
      response.on('data', (chunk: Buffer) => {
        numBytes += chunk.length;
        if (numBytes > MAX_RESPONSE_BYTES)
          request.destroy(new Error(`the response is larger than ${MAX_RESPONSE_BYTES} bytes`));
        else chunks.push(chunk);
      });
      response.once('end', () => {
        try {
          resolve(toResponse(response, Buffer.concat(chunks)));
        } catch (error) {
          // Some statuses and headers that arrive are not valid in a Response. An error here would end the process.
          fail(error as Error);
        }
      });
    });
    request.end(body === undefined || body === null ? undefined : textOf(body));
  });
}

function toResponse({ statusCode = 0, rawHeaders }: http.IncomingMessage, bytes: Buffer): Response {
  const headers = new Headers();
  for (let i = 0; i < rawHeaders.length; i += 2) headers.append(rawHeaders[i], rawHeaders[i + 1]);
  const hasBody = statusCode !== 204 && statusCode !== 205 && statusCode !== 304;
  return new Response(hasBody ? new Uint8Array(bytes) : null, { status: statusCode, headers });
}

/** The client of the protocol sends forms and texts only. */
function textOf(body: unknown): string {
  if (typeof body === 'string' || body instanceof URLSearchParams) return String(body);
  throw new Error('expected the body of a request to be a text or a form');
}
