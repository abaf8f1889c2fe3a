import { ApiError } from '../errors';
import { header, type HttpRequest } from '../http/transport';
import { type JsonText, parseJsonText } from './json-text';

/** The body as JSON. A missing Content-Type is taken for JSON, another one is refused. */
export async function readJson(request: HttpRequest): Promise<JsonText> {
  const contentType = header(request, 'content-type');
  if (contentType !== undefined && contentType.split(';')[0].trim().toLowerCase() !== 'application/json') {
    throw new ApiError('unsupported_media_type', 'Content-Type: expected application/json');
  }
  return parseJsonText(await request.readBody());
}
