import { ApiError } from '../../base/errors';
import { header, type HttpRequest, mediaType } from '../../http/transport';
import { type JsonText, parseJsonText } from './json-text';
import { show } from './validate';

/** Reads the body as JSON. A missing Content-Type counts as JSON. Other types and compressed bodies are refused. */
export async function readJson(request: HttpRequest): Promise<JsonText> {
  const type = mediaType(request) ?? 'application/json';
  if (type !== 'application/json')
    throw new ApiError('unsupported_media_type', `Content-Type: expected application/json, got ${show(type)}`);
  const encoding = header(request, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (encoding !== 'identity')
    throw new ApiError('unsupported_media_type', `Content-Encoding: expected none, got ${show(encoding)}`);
  return parseJsonText(await request.readBody());
}
