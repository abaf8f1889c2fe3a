import { header, type HttpRequest } from '../http/transport';
import { ApiProblem } from './problem';

/** The revision that a change expects, as `ETag` gave it; undefined without the header, or for `*`. @throws ApiProblem */
export function ifMatchOf(request: Pick<HttpRequest, 'headers'>): number | undefined {
  const text = header(request, 'if-match');
  if (text === undefined || text === '*') return undefined;
  const [, rev] = /^"(\d{1,15})"$/.exec(text) ?? [];
  if (rev === undefined) throw new ApiProblem('stale', 'If-Match: expected the ETag of one answer, such as "7"');
  return Number(rev);
}

/** Of an object that has a revision. */
export function etagOf(body: unknown): Record<string, string> {
  const rev = (body as { rev?: unknown } | null | undefined)?.rev;
  return typeof rev === 'number' ? { ETag: `"${rev}"` } : {};
}
