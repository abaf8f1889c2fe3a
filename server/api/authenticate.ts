import { bearerKey } from '../access/authorization';
import { header, type HttpRequest } from '../http/transport';
import type { ServiceActor } from '../service/actor';
import type { AttemptLimiter } from './attempt-limiter';
import type { ApiContext } from './context';
import { sessionTokenOf } from './cookies';
import { demandCsrfToken, demandOwnOrigin } from './own-page';
import { ApiProblem } from './problem';
import type { ApiCall, ApiRoute } from './route';

export interface Caller {
  actor: ServiceActor | undefined;
  session: ApiCall['session'];
  /** Whether the session or token is still in force; asking keeps no session from ending. */
  isKnown: () => Promise<boolean>;
}

const NOBODY: Caller = { actor: undefined, session: undefined, isKnown: () => Promise.resolve(true) };

/**
 * Who calls, by a management token or else the console's cookie. An access key of deployments opens nothing here.
 * @throws ApiProblem where nobody known calls a route that is not open, or where the caller may not use it this way
 */
export async function authenticate(
  route: ApiRoute,
  request: HttpRequest,
  address: string,
  context: ApiContext,
  limiter: AttemptLimiter,
): Promise<Caller> {
  const isChange = route.method !== 'GET';
  const caller =
    header(request, 'authorization') === undefined
      ? await bySession(request, address, context)
      : await byToken(request, address, context, limiter);
  if (isChange && caller.session !== undefined) {
    demandOwnOrigin(request, context.settings);
    if (route.auth !== 'none') demandCsrfToken(request, caller.session);
  }
  if (route.auth === 'none') {
    if (isChange) demandOwnOrigin(request, context.settings);
    return caller;
  }
  const { actor } = caller;
  if (actor === undefined) throw unauthenticated();
  if (route.auth === 'session' && actor.via === 'token')
    throw new ApiProblem('session_required', 'this needs a console session: a management token may not do it');
  if (isChange && !actor.canWrite) throw new ApiProblem('forbidden', 'this management token may only read');
  return caller;
}

/** The same for everything that is wrong. */
export function unauthenticated(): ApiProblem {
  return new ApiProblem(
    'unauthenticated',
    'expected a console session, or the header "Authorization: Bearer mt-…" with a management token',
    { headers: { 'WWW-Authenticate': 'Bearer' } },
  );
}

async function bySession(request: HttpRequest, address: string, { store, settings }: ApiContext): Promise<Caller> {
  const token = sessionTokenOf(request, settings);
  const session = token === undefined ? undefined : await store.findSession(token);
  if (token === undefined || session === undefined) return NOBODY;
  return {
    actor: {
      userId: session.userId,
      isAdmin: session.isAdmin,
      via: 'session',
      canWrite: true,
      ...from(request, address),
    },
    session: { ...session, token },
    isKnown: async () => (await store.findSession(token, false)) !== undefined,
  };
}

async function byToken(
  request: HttpRequest,
  address: string,
  { store }: ApiContext,
  limiter: AttemptLimiter,
): Promise<Caller> {
  const token = bearerKey(request.headers);
  limiter.demand(address);
  const bearer = token === undefined ? undefined : await store.findToken(token, address);
  if (token === undefined || bearer === undefined) {
    limiter.count(address);
    throw unauthenticated();
  }
  return {
    actor: {
      userId: bearer.userId,
      isAdmin: bearer.isAdmin,
      via: 'token',
      canWrite: bearer.rights === 'write',
      ...from(request, address),
    },
    session: undefined,
    isKnown: async () => (await store.findToken(token, address)) !== undefined,
  };
}

const MAX_USER_AGENT_LENGTH = 200;

/** For the audit. */
export function from(request: HttpRequest, address: string): { ip: string; userAgent: string | null } {
  return { ip: address, userAgent: header(request, 'user-agent')?.slice(0, MAX_USER_AGENT_LENGTH) ?? null };
}
