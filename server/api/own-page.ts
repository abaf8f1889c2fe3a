import { header, type HttpRequest } from '../http/transport';
import { isOwnPage, type Session } from '../service/sessions';
import type { ApiSettings } from './context';
import { ApiProblem } from './problem';

/** Refuses what a page of another origin sends: browsers say whose page it is. Deployments are another origin on the same host, so cookies alone tell nothing. */
export function demandOwnOrigin(request: Pick<HttpRequest, 'headers'>, { ownOrigins }: ApiSettings): void {
  const site = header(request, 'sec-fetch-site');
  if (site !== undefined && site !== 'same-origin' && site !== 'none')
    throw new ApiProblem('cross_site', 'the request comes from a page of another origin');
  const origin = header(request, 'origin');
  if (origin === undefined || ownOrigins.includes(origin)) return;
  if (!URL.canParse(origin) || new URL(origin).host !== header(request, 'host')?.toLowerCase())
    throw new ApiProblem('cross_site', 'the request comes from a page of another origin');
}

/** And what comes without the session's own token, which only our page can have read. */
export function demandCsrfToken(request: Pick<HttpRequest, 'headers'>, session: Session): void {
  const token = header(request, 'x-csrf-token');
  if (token === undefined || !isOwnPage(session, token))
    throw new ApiProblem('cross_site', 'X-CSRF-Token: expected the csrf_token of GET /api/v1/me');
}
