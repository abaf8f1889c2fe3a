import { request } from 'node:http';
import { SECRET_HEADER } from '../../replica-headers';
import type { ReplicaAddress } from '../driver';

const TIMEOUT_MS = 10_000;

/** Undefined when the replica answers its health path with any 2xx; else what it does instead, for people. */
export function checkReplica(address: ReplicaAddress, path: string, secret: string, signal: AbortSignal): Promise<string | undefined> {
  const target = address.type === 'unix' ? { socketPath: address.path } : { host: address.host, port: address.port };
  return new Promise((resolve) => {
    const asked = request({ ...target, path, agent: false, timeout: TIMEOUT_MS, signal, headers: { Host: 'localhost', [SECRET_HEADER]: secret } }, (response) => {
      const { statusCode = 0 } = response;
      resolve(statusCode >= 200 && statusCode < 300 ? undefined : `${path} answers ${statusCode}`);
      // Nothing of the body matters, however long it is.
      response.destroy();
    });
    asked.once('timeout', () => asked.destroy(new Error(`no answer within ${TIMEOUT_MS / 1000} s`)));
    asked.once('error', (error: NodeJS.ErrnoException) => resolve(error.code === 'ECONNREFUSED' || error.code === 'ECONNRESET' || error.code === 'ENOENT' ? 'nothing answers' : error.message));
    asked.end();
  });
}
