import { createHash, timingSafeEqual } from 'node:crypto';
import { ApiError } from '../base/errors';
import { header, type HttpRequest } from '../http/transport';
import { BATCH_PRIORITY, PRIORITY_HEADER, SALT_HEADER, SECRET_HEADER } from '../http/replica-headers';

/** Health probes do not know the secret. */
const OPEN_PATHS: ReadonlySet<string> = new Set(['/health']);

/** Refuses all requests to a replica that do not come from its gateway. */
export class ReplicaGuard {
  readonly #secret: Buffer;

  constructor(secret: string) {
    this.#secret = digest(secret);
  }

  /**
   * Returns the gateway's salt for the prefix cache and the priority, or undefined on an open path. Throws ApiError
   * `invalid_api_key`.
   */
  check(request: Pick<HttpRequest, 'headers'>, path: string): { cacheSalt: string; priority: number } | undefined {
    const secret = header(request, SECRET_HEADER.toLowerCase());
    if (secret !== undefined && timingSafeEqual(digest(secret), this.#secret))
      return {
        cacheSalt: header(request, SALT_HEADER.toLowerCase()) ?? '',
        priority: header(request, PRIORITY_HEADER.toLowerCase()) === String(BATCH_PRIORITY) ? BATCH_PRIORITY : 0,
      };
    if (OPEN_PATHS.has(path)) return undefined;
    throw new ApiError(
      'invalid_api_key',
      'This replica accepts requests from its gateway only. Send the request to the address of the deployment.',
    );
  }
}

/** Secrets of all lengths have digests of one length, which timingSafeEqual needs. */
function digest(secret: string): Buffer {
  return createHash('sha256').update(secret).digest();
}
