import { createHash, timingSafeEqual } from 'node:crypto';
import { ApiError } from './errors';
import { header, type HttpRequest } from './http/transport';
import { SALT_HEADER, SECRET_HEADER } from './replica-headers';

/** Probes that know no secret may ask for this alone. */
const OPEN_PATHS: ReadonlySet<string> = new Set(['/health']);

/** Lets the gateway in to a replica, and nobody else. */
export class ReplicaDoor {
  readonly #secret: Buffer;

  constructor(secret: string) {
    this.#secret = digest(secret);
  }

  /**
   * What the request may say as the gateway's; undefined on a path that is open to all.
   * @throws ApiError `invalid_api_key`
   */
  admit(request: Pick<HttpRequest, 'headers'>, path: string): { salt: string } | undefined {
    const secret = header(request, SECRET_HEADER.toLowerCase());
    if (secret !== undefined && timingSafeEqual(digest(secret), this.#secret))
      return { salt: header(request, SALT_HEADER.toLowerCase()) ?? '' };
    if (OPEN_PATHS.has(path)) return undefined;
    throw new ApiError(
      'invalid_api_key',
      'This is a replica behind a gateway: send the request to the address of its deployment',
    );
  }
}

/** Of one length, whatever is sent. */
function digest(secret: string): Buffer {
  return createHash('sha256').update(secret).digest();
}
