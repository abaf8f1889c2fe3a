import { header, type HttpRequest } from 'capstan/internal';
import { ApiProblem } from './problem';

/** Returns the expected revision of If-Match. Undefined without the header, or for `*`. Throws ApiProblem. */
export function ifMatchOf(request: Pick<HttpRequest, 'headers'>): number | undefined {
  const text = header(request, 'if-match');
  if (text === undefined || text === '*') return undefined;
  const [, rev] = /^"(\d{1,15})"$/.exec(text) ?? [];
  if (rev === undefined) throw new ApiProblem('stale', 'If-Match: expected a single ETag, such as "7"');
  return Number(rev);
}

/** Returns the ETag header of an object that has a revision. */
export function etagOf(body: unknown): Record<string, string> {
  const rev = (body as { rev?: unknown } | null | undefined)?.rev;
  return typeof rev === 'number' ? { ETag: `"${rev}"` } : {};
}
