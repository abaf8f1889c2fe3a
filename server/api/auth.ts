import type { NewSession } from '../service/sessions';
import { from } from './authenticate';
import { endedCookie, sessionCookie, sessionTokenOf } from './cookies';
import { input } from './json-schema';
import { Bootstrap, Login } from './objects';
import { toProblem } from './problem';
import { type ApiAnswer, type ApiCall, type ApiRoute, defineRoute } from './route';

const TAG = 'sessions';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'POST',
    path: '/api/v1/auth/login',
    summary: 'Sign in: opens a console session',
    tag: TAG,
    auth: 'none',
    body: Login,
    answers: { 204: null },
    problems: ['bad_credentials', 'otp_required', 'too_many_attempts'],
    handle: async (call) =>
      signedIn(
        call,
        await guarded(call, () =>
          call.context.store.signIn(
            call.body,
            from(call.request, call.address),
            sessionTokenOf(call.request, call.context.settings),
          ),
        ),
      ),
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/auth/logout',
    summary: 'End this console session',
    tag: TAG,
    auth: 'session',
    body: input({}),
    isBodyOptional: true,
    answers: { 204: null },
    handle: async ({ context: { store, settings }, actor, session }) => {
      await store.revokeSession(actor, session!.idHash);
      return { status: 204, headers: endedCookie(settings) };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/bootstrap',
    summary: 'Make the first administrator, by the link that the first start prints, and sign in',
    tag: TAG,
    auth: 'none',
    body: Bootstrap,
    answers: { 204: null },
    problems: ['gone', 'too_many_attempts'],
    handle: async (call) => {
      const { token, ...spec } = call.body;
      return signedIn(
        call,
        await guarded(call, () =>
          call.context.store.redeemBootstrapLink(token, spec, from(call.request, call.address)),
        ),
      );
    },
  }),
];

export function signedIn({ context: { settings, now } }: Pick<ApiCall, 'context'>, session: NewSession): ApiAnswer {
  return { status: 204, headers: sessionCookie(session, settings, now()) };
}

/** Whoever fails too often from one address has to wait, whatever it is that they try. */
export async function guarded<T>(
  { attempts, address, context: { log } }: Pick<ApiCall, 'attempts' | 'address' | 'context'>,
  attempt: () => Promise<T>,
): Promise<T> {
  // Counted before it is made: many at once gain nothing.
  attempts.demand(address);
  attempts.count(address);
  try {
    const result = await attempt();
    attempts.forgive(address);
    return result;
  } catch (error) {
    const { code } = toProblem(error);
    if (code === 'bad_credentials' || code === 'gone' || code === 'too_many_attempts')
      log.warn({ address, code }, 'a sign-in failed');
    else attempts.forgive(address);
    throw error;
  }
}
