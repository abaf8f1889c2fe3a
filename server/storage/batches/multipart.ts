import { ApiError } from '../../base/errors';
import { header, type HttpRequest, mediaType } from '../../http/transport';
import { show } from '../../base/json/validate';

/** More parts than any client sends. Each costs time to parse. */
const MAX_PARTS = 16;
/** Node's parser takes seconds for long headers, in which no other request is served. */
const MAX_HEADER_BYTES = 16 * 1024;

/** The characters of RFC 2046. */
const BOUNDARY = /^[\w'()+,./:=? -]{1,70}$/;

/** Reads a `multipart/form-data` body. @throws ApiError `unsupported_media_type` or `malformed_request`. */
export async function readForm(request: HttpRequest): Promise<FormData> {
  const type = header(request, 'content-type') ?? '';
  if (mediaType(request) !== 'multipart/form-data')
    throw new ApiError('unsupported_media_type', `Content-Type: expected multipart/form-data, got ${show(type)}`);
  const [, quoted, token] = /;\s*boundary=(?:"([^"]+)"|([^;\s]+))/i.exec(type) ?? [];
  const boundary = quoted ?? token;
  if (boundary === undefined || !BOUNDARY.test(boundary))
    throw new ApiError('malformed_request', 'Content-Type: expected a boundary after multipart/form-data');
  const body = await request.readBody();
  const delimiter = Buffer.from(`--${boundary}`);
  let numDelimiters = 0;
  for (let at = body.indexOf(delimiter); at >= 0; at = body.indexOf(delimiter, at + delimiter.length)) {
    if (++numDelimiters > MAX_PARTS + 1)
      throw new ApiError('malformed_request', `The body has too many parts: expected at most ${MAX_PARTS}`);
    checkHeaders(body.subarray(at + delimiter.length));
  }
  try {
    // Node's own parser. It gets the boundary that was counted, whatever other parameters the header has.
    const headers = { 'Content-Type': `multipart/form-data; boundary="${boundary}"` };
    return await new Response(new Uint8Array(body), { headers }).formData();
  } catch (error) {
    throw new ApiError('malformed_request', 'The body is not valid multipart/form-data', { cause: error });
  }
}

/** @param rest What follows the delimiter of a part. */
function checkHeaders(rest: Buffer): void {
  if (rest.length > MAX_HEADER_BYTES && !rest.subarray(0, MAX_HEADER_BYTES).includes('\r\n\r\n'))
    throw new ApiError(
      'malformed_request',
      `The headers of a part are too long: expected at most ${MAX_HEADER_BYTES} bytes`,
    );
}
