import { header, type HttpRequest } from 'capstan/internal';
import { isOwnPage, type Session } from '../accounts/sessions';
import type { ApiSettings } from './context';
import { ApiProblem } from './problem';

/**
 * Refuses requests from pages of other origins. Cookies do not suffice: deployments are other origins on the same host.
 */
export function requireOwnOrigin(request: Pick<HttpRequest, 'headers'>, { ownOrigins }: ApiSettings): void {
  const site = header(request, 'sec-fetch-site');
  if (site !== undefined && site !== 'same-origin' && site !== 'none')
    throw new ApiProblem('cross_site', 'the request comes from a page of another origin');
  const origin = header(request, 'origin');
  if (origin === undefined || ownOrigins.includes(origin)) return;
  if (!URL.canParse(origin) || new URL(origin).host !== header(request, 'host')?.toLowerCase())
    throw new ApiProblem('cross_site', 'the request comes from a page of another origin');
}

/** Requires the session's CSRF token, which only the console can read. */
export function requireCsrfToken(request: Pick<HttpRequest, 'headers'>, session: Session): void {
  const token = header(request, 'x-csrf-token');
  if (token === undefined || !isOwnPage(session, token))
    throw new ApiProblem('cross_site', 'X-CSRF-Token: expected the csrf_token of GET /api/v1/me');
}
