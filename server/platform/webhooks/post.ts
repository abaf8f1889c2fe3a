import http from 'node:http';
import https from 'node:https';
import type { LookupFunction } from 'node:net';
import type { Endpoint } from '../outbound/endpoint';

/** Response bytes that are read and discarded before the connection is closed. Only the status counts. */
const MAX_RESPONSE_BYTES = 64 * 1024;

/**
 * Posts one message to the checked address without resolving the name again. Follows no redirects, ignores proxy
 * variables and keeps no connection open.
 * @param signal Aborts the attempt at its timeout.
 * @returns The status of the response.
 */
export function post(
  { url, address }: Endpoint,
  headers: Readonly<Record<string, string>>,
  body: string,
  signal: AbortSignal,
): Promise<number> {
  const bytes = Buffer.from(body);
  const lookup: LookupFunction = (_hostname, options, callback) => {
    if (options.all === true) callback(null, [address]);
    else callback(null, address.address, address.family);
  };
  return new Promise((resolve, reject) => {
    const request = (url.protocol === 'https:' ? https : http).request(url, {
      method: 'POST',
      lookup,
      agent: false,
      signal,
      maxHeaderSize: 16 * 1024,
      headers: { ...headers, 'content-type': 'application/json', 'content-length': bytes.length },
    });
    request.on('error', reject);
    request.once('response', (response) => {
      let numBytes = 0;
      const done = () => {
        resolve(response.statusCode ?? 0);
        request.destroy();
      };
      // The status has arrived, so errors of the body do not matter.
      response
        .on('data', (chunk: Buffer) => {
          if ((numBytes += chunk.length) > MAX_RESPONSE_BYTES) done();
        })
        .on('error', done)
        .once('end', done)
        .once('close', done);
    });
    request.end(bytes);
  });
}
