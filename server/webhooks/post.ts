import http from 'node:http';
import https from 'node:https';
import type { LookupFunction } from 'node:net';
import type { Endpoint } from './endpoint';

/** So much of an answer is read, and thrown away: its status is all that counts. */
const MAX_ANSWER_BYTES = 64 * 1024;

/**
 * Sends one message to the address that was looked at, whatever its name leads to by now. Follows no redirect, takes no proxy from the environment, keeps no connection.
 * @param signal Ends it: of the time that one attempt has.
 * @returns The status of the answer.
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
      // The status has come: what becomes of the rest does not matter.
      response
        .on('data', (chunk: Buffer) => {
          if ((numBytes += chunk.length) > MAX_ANSWER_BYTES) done();
        })
        .on('error', done)
        .once('end', done)
        .once('close', done);
    });
    request.end(bytes);
  });
}
