import { trimBlanks } from '../../base/blanks';
import { ApiError } from '../../base/errors';
import { header, type HttpRequest } from '../../http/transport';
import { type JsonText, parseJsonText } from './json-text';
import { show } from './validate';

/** Reads the body as JSON. A missing Content-Type counts as JSON. Other types and compressed bodies are refused. */
export async function readJson(request: HttpRequest): Promise<JsonText> {
  const contentType = header(request, 'content-type');
  if (contentType !== undefined && trimBlanks(contentType.split(';')[0]).toLowerCase() !== 'application/json') {
    throw new ApiError('unsupported_media_type', `Content-Type: expected application/json, got ${show(contentType)}`);
  }
  const encoding = header(request, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (encoding !== 'identity')
    throw new ApiError('unsupported_media_type', `Content-Encoding: expected none, got ${show(encoding)}`);
  return parseJsonText(await request.readBody());
}
