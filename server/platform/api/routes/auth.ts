import type { NewSession } from '../../accounts/sessions';
import { clientOf } from '../authenticate';
import { endedCookie, sessionCookie, sessionTokenOf } from '../cookies';
import { input } from '../json-schema';
import { Bootstrap, Login, PasswordReset, ProviderLogout } from '../objects';
import { type ProblemCode, toProblem } from '../problem';
import { type ApiResponse, type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'sessions';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'POST',
    path: '/api/v1/auth/login',
    summary: 'Sign in to the console',
    tag: TAG,
    auth: 'none',
    body: Login,
    responses: { 204: null },
    problems: ['bad_credentials', 'otp_required', 'too_many_attempts'],
    handle: async (call) =>
      signedIn(
        call,
        await limitAttempts(call, () =>
          call.context.store.signIn(
            call.body,
            clientOf(call.request, call.address),
            sessionTokenOf(call.request, call.context.settings),
          ),
        ),
      ),
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/auth/logout',
    summary: 'Sign out of the console. A session of an identity provider gets the address of the logout there',
    tag: TAG,
    auth: 'session',
    body: input({}),
    isBodyOptional: true,
    responses: { 200: ProviderLogout, 204: null },
    handle: async ({ context: { store, settings, providers }, actor, session }) => {
      await store.revokeSession(actor, session!.idHash);
      const url = await providers?.logoutUrl(session!.idHash);
      const headers = endedCookie(settings);
      return url === undefined ? { status: 204, headers } : { status: 200, body: { url }, headers };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/auth/password-reset',
    summary: 'Set a new password with the link of an administrator. All sessions end',
    tag: TAG,
    auth: 'none',
    body: PasswordReset,
    responses: { 204: null },
    problems: ['gone', 'too_many_attempts'],
    handle: async (call) => {
      const { token, password } = call.body;
      await limitAttempts(call, () =>
        call.context.store.redeemPasswordReset(token, password, clientOf(call.request, call.address)),
      );
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/bootstrap',
    summary: 'Create the first administrator with the setup link, and sign in',
    tag: TAG,
    auth: 'none',
    body: Bootstrap,
    responses: { 204: null },
    problems: ['gone', 'too_many_attempts'],
    handle: async (call) => {
      const { token, ...spec } = call.body;
      return signedIn(
        call,
        await limitAttempts(call, () =>
          call.context.store.redeemBootstrapLink(token, spec, clientOf(call.request, call.address)),
        ),
      );
    },
  }),
];

/** The console keeps the secret of the header in the storage of its origin. */
export function signedIn({ context: { settings, now } }: Pick<ApiCall, 'context'>, session: NewSession): ApiResponse {
  return {
    status: 204,
    headers: { ...sessionCookie(session, settings, now()), 'X-Session-Secret': session.secret },
  };
}

const FAILURES: ReadonlySet<ProblemCode> = new Set(['bad_credentials', 'gone', 'sign_in_refused', 'too_many_attempts']);

/** Runs an attempt to use a secret. Limits failed attempts of any kind per address. */
export async function limitAttempts<T>(
  { attempts, address, context: { log } }: Pick<ApiCall, 'attempts' | 'address' | 'context'>,
  attempt: () => Promise<T>,
): Promise<T> {
  // Counted before the attempt, so that concurrent attempts gain nothing.
  attempts.check(address);
  attempts.count(address);
  try {
    const result = await attempt();
    attempts.forgive(address);
    return result;
  } catch (error) {
    const { code } = toProblem(error);
    if (FAILURES.has(code)) log.warn({ address, code }, 'sign-in failed');
    else attempts.forgive(address);
    throw error;
  }
}
