import { bearerKey, header, type HttpRequest } from 'capstan/internal';
import type { ServiceActor } from '../accounts/actor';
import type { AttemptLimiter } from './attempt-limiter';
import { hasSecret, type Session } from '../accounts/sessions';
import { isForHost, requireConsoleHost } from './console-host';
import type { ApiContext, ApiSettings } from './context';
import { sessionTokenOf } from './cookies';
import { requireCsrfToken, requireOwnOrigin } from './cross-site';
import { ApiProblem } from './problem';
import type { ApiCall, ApiRoute } from './route';

export interface Caller {
  actor: ServiceActor | undefined;
  session: ApiCall['session'];
  /** Whether the session or token is still valid. Does not extend the session. */
  isStillValid: () => Promise<boolean>;
}

const ANONYMOUS: Caller = { actor: undefined, session: undefined, isStillValid: () => Promise.resolve(true) };

/**
 * Identifies the caller by management token or console cookie. Access keys of deployments are not accepted.
 * Throws ApiProblem when the route requires a caller, or does not permit this one.
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
    requireOwnOrigin(request, context.settings);
    if (route.auth !== 'none') requireCsrfToken(request, caller.session);
  }
  if (route.auth === 'none') {
    if (isChange) {
      requireOwnOrigin(request, context.settings);
      requireConsoleHost(request, context.settings);
    }
    return caller;
  }
  const { actor } = caller;
  if (actor === undefined) throw unauthenticated();
  if (route.auth === 'session' && actor.via === 'token')
    throw new ApiProblem('session_required', 'this requires a console session, not a management token');
  if (isChange && !actor.canWrite) throw new ApiProblem('forbidden', 'this management token is read-only');
  return caller;
}

/** One error for every cause, so that a caller learns nothing about tokens. */
export function unauthenticated(): ApiProblem {
  return new ApiProblem(
    'unauthenticated',
    'expected a console session, or the header "Authorization: Bearer mt-…" with a management token',
    { headers: { 'WWW-Authenticate': 'Bearer' } },
  );
}

async function bySession(request: HttpRequest, address: string, { store, settings }: ApiContext): Promise<Caller> {
  const token = sessionTokenOf(request, settings);
  const session = token === undefined ? undefined : await store.findSession(token, false);
  if (token === undefined || session === undefined || !isGuarded(request, session, settings)) return ANONYMOUS;
  // A request without the secret does not keep the session alive.
  await store.recordSessionUse(session);
  return {
    actor: {
      userId: session.userId,
      isAdmin: session.isAdmin,
      via: 'session',
      canWrite: true,
      ...clientOf(request, address),
    },
    session: { ...session, token },
    isStillValid: async () => (await store.findSession(token, false)) !== undefined,
  };
}

/** Returns whether a deployment on another port of the host cannot have sent or planted the cookie. */
function isGuarded(request: HttpRequest, session: Session, { sessionGuard, consoleHost }: ApiSettings): boolean {
  if (consoleHost !== undefined && !isForHost(request, consoleHost)) return false;
  return sessionGuard === 'own-host' || hasSecret(session, header(request, 'x-session-secret'));
}

async function byToken(
  request: HttpRequest,
  address: string,
  { store }: ApiContext,
  limiter: AttemptLimiter,
): Promise<Caller> {
  const token = bearerKey(request.headers);
  limiter.check(address);
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
      ...clientOf(request, address),
    },
    session: undefined,
    isStillValid: async () => (await store.findToken(token, address)) !== undefined,
  };
}

const MAX_USER_AGENT_LENGTH = 200;

/** Client details for the audit log. */
export function clientOf(request: HttpRequest, address: string): { ip: string; userAgent: string | null } {
  return { ip: address, userAgent: header(request, 'user-agent')?.slice(0, MAX_USER_AGENT_LENGTH) ?? null };
}
