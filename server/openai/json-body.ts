import { ApiError } from '../errors';
import { header, type HttpRequest } from '../http/transport';

/** The body as JSON. A missing Content-Type is taken for JSON, another one is refused. */
export async function readJson(request: HttpRequest): Promise<unknown> {
  const contentType = header(request, 'content-type');
  if (contentType !== undefined && contentType.split(';')[0].trim().toLowerCase() !== 'application/json') {
    throw new ApiError('unsupported_media_type', 'Content-Type: expected application/json');
  }
  const body = await request.readBody();
  try {
    return JSON.parse(body.toString('utf8')) as unknown;
  } catch {
    throw new ApiError('invalid_json', 'The body is not valid JSON');
  }
}
