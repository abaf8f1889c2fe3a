import { request } from 'node:http';
import { SECRET_HEADER } from '../../replica-headers';
import type { Misplaced, ReplicaAddress } from '../driver';

const TIMEOUT_MS = 10_000;

/** What a replica does instead of answering its health path with a 2xx. */
export interface Trouble {
  /** Absent where no answer came. */
  status?: number;
  /** For people. */
  message: string;
}

/** Undefined when the replica answers its health path with any 2xx. */
export function checkReplica(
  address: ReplicaAddress,
  path: string,
  secret: string,
  signal: AbortSignal,
): Promise<Trouble | undefined> {
  const target = address.type === 'unix' ? { socketPath: address.path } : { host: address.host, port: address.port };
  return new Promise((resolve) => {
    const asked = request(
      {
        ...target,
        path,
        agent: false,
        timeout: TIMEOUT_MS,
        signal,
        headers: { Host: 'localhost', [SECRET_HEADER]: secret },
      },
      (response) => {
        const { statusCode = 0 } = response;
        resolve(
          statusCode >= 200 && statusCode < 300
            ? undefined
            : { status: statusCode, message: `${path} answers ${statusCode}` },
        );
        // Nothing of the body matters, however long it is.
        response.destroy();
      },
    );
    asked.once('timeout', () => asked.destroy(new Error(`no answer within ${TIMEOUT_MS / 1000} s`)));
    asked.once('error', (error: NodeJS.ErrnoException) =>
      resolve({
        message:
          error.code === 'ECONNREFUSED' || error.code === 'ECONNRESET' || error.code === 'ENOENT'
            ? 'nothing answers'
            : error.message,
      }),
    );
    asked.end();
  });
}

/** An answer that no patience will better; with 502 to 504 servers say that they are still at it. */
export function judgeAnswer({ status, message }: Trouble): Misplaced | undefined {
  if (status === undefined || (status >= 502 && status <= 504)) return undefined;
  return {
    reason: 'health_check_failed',
    message: `${message}: a deployment is ready once its health path answers with 200 to 299`,
  };
}
