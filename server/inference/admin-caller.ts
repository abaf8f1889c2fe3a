import { ApiError } from '../base/errors';
import { header, type HttpRequest } from '../http/transport';

/**
 * The admin listener needs no key, so a web page of another origin, in a browser of the same machine, must not read or
 * change anything through it. Throws ApiError `permission_denied`.
 */
export function refuseWebPages(request: HttpRequest): void {
  if (header(request, 'origin') !== undefined)
    throw new ApiError('permission_denied', 'The admin listener refuses requests of web pages (header Origin)');
}
