import { request } from 'node:http';
import { SECRET_HEADER } from 'capstan/internal';
import type { Misplaced, ReplicaAddress } from '../driver';

const TIMEOUT_MS = 10_000;

/** A failed health check. */
export interface HealthFailure {
  /** Absent when there was no response. */
  status?: number;
  /** For users. */
  message: string;
}

/** Returns undefined when the health path responds with any 2xx. */
export function checkReplica(
  address: ReplicaAddress,
  path: string,
  secret: string,
  signal: AbortSignal,
): Promise<HealthFailure | undefined> {
  const target = address.type === 'unix' ? { socketPath: address.path } : { host: address.host, port: address.port };
  return new Promise((resolve) => {
    const sent = request(
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
            : { status: statusCode, message: `${path} returned ${statusCode}` },
        );
        // The body is ignored; it may be endless.
        response.destroy();
      },
    );
    sent.once('timeout', () => sent.destroy(new Error(`no response within ${TIMEOUT_MS / 1000} s`)));
    sent.once('error', (error: NodeJS.ErrnoException) =>
      resolve({
        message:
          error.code === 'ECONNREFUSED' || error.code === 'ECONNRESET' || error.code === 'ENOENT'
            ? 'nothing is listening'
            : error.message,
      }),
    );
    sent.end();
  });
}

/** Returns a lasting failure. Undefined without a response, and for 502 to 504, which servers send while they start. */
export function lastingFailure({ status, message }: HealthFailure): Misplaced | undefined {
  if (status === undefined || (status >= 502 && status <= 504)) return undefined;
  return {
    reason: 'health_check_failed',
    message: `${message}: a deployment is ready once its health path returns 200 to 299`,
  };
}
