import { header, type HttpRequest, isLight, MAX_DEPTH, mediaType } from 'capstan/internal';
import { ApiProblem } from './problem';
import type { ApiRoute } from './route';
import { checkValue } from './validate';

const MAX_BODY_BYTES = 1_048_576;
/** Fields, lists and objects. To check a megabyte of unknown fields takes most of a second. */
const MAX_NODES = 10_000;

export interface Body {
  value: unknown;
  /** The raw text. Empty without a body. */
  text: string;
}

/** Reads the JSON body of a request and checks it against its schema. Throws ApiProblem. */
export async function readJson(
  { body: schema, isBodyOptional = false, maxBodyBytes = MAX_BODY_BYTES }: ApiRoute,
  request: HttpRequest,
): Promise<Body> {
  if (schema === undefined) return { value: undefined, text: '' };
  if (Number(header(request, 'content-length') ?? 0) > maxBodyBytes) throw tooLarge(maxBodyBytes);
  const bytes = await request.readBody();
  if (bytes.length > maxBodyBytes) throw tooLarge(maxBodyBytes);
  if (bytes.length === 0 && isBodyOptional) return { value: {}, text: '' };
  // HTML forms of other origins cannot send this type.
  if (mediaType(request) !== 'application/json')
    throw new ApiProblem('unsupported_media_type', 'Content-Type: expected application/json');
  if (!isLight(bytes, MAX_NODES))
    throw new ApiProblem(
      'request_too_large',
      `the body: expected at most ${MAX_NODES} fields, lists and objects, in at most ${MAX_DEPTH} levels`,
    );
  const text = bytes.toString('utf8');
  const value = parseJson(text);
  await checkValue(schema, value);
  return { value, text };
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // Do not pass the parser's message on: it quotes the body.
    throw new ApiProblem('invalid_json', 'the body: expected JSON');
  }
}

function tooLarge(maxBodyBytes: number): ApiProblem {
  return new ApiProblem('request_too_large', `the body: expected at most ${maxBodyBytes} bytes`);
}
