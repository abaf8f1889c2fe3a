import { ApiError } from '../base/errors';
import { show } from '../base/json/validate';
import { header, type HttpRequest, mediaType } from './transport';

/** Refuses bodies that are not plain JSON. Throws ApiError `unsupported_media_type`. */
export function checkJson(request: HttpRequest): void {
  const type = mediaType(request) ?? 'application/json';
  if (type !== 'application/json')
    throw new ApiError('unsupported_media_type', `Content-Type: expected application/json, got ${show(type)}`);
  const encoding = header(request, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (encoding !== 'identity')
    throw new ApiError('unsupported_media_type', `Content-Encoding: expected none, got ${show(encoding)}`);
}
