import { ApiError } from '../errors';
import { header, type HttpRequest } from '../http/transport';
import { type JsonText, parseJsonText } from './json-text';

/** The body as JSON. A missing Content-Type is taken for JSON, another one is refused, as is a compressed body. */
export async function readJson(request: HttpRequest): Promise<JsonText> {
  const contentType = header(request, 'content-type');
  if (contentType !== undefined && contentType.split(';')[0].trim().toLowerCase() !== 'application/json') {
    throw new ApiError('unsupported_media_type', 'Content-Type: expected application/json');
  }
  const encoding = header(request, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (encoding !== 'identity')
    throw new ApiError('unsupported_media_type', 'Content-Encoding: expected none, as bodies are not decompressed');
  return parseJsonText(await request.readBody());
}
