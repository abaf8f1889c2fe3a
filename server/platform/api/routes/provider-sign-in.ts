import { clientOf } from '../authenticate';
import { pendingSignInCookie, pendingSignInOf, providerSessionCookies, sessionTokenOf } from '../cookies';
import { ProviderResponse, ProviderSignIn, ProviderSignInStart, SignedInAtProvider, SignInProviders } from '../objects';
import { ApiProblem } from '../problem';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';
import { PENDING_MS } from '../../sign-in/provider-sign-in';
import { limitAttempts } from './auth';

const TAG = 'sessions';
const PATH = '/api/v1/auth/providers';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List the identity providers of the sign-in page',
    tag: TAG,
    auth: 'none',
    responses: { 200: SignInProviders },
    handle: async ({ context: { store } }) => ({ status: 200, body: { data: await store.listSignInProviders() } }),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/begin`,
    summary: 'Begin a sign-in at an identity provider. The cookie of the response belongs to it',
    tag: TAG,
    auth: 'none',
    body: ProviderSignInStart,
    isBodyOptional: true,
    responses: { 200: ProviderSignIn },
    problems: ['not_found', 'provider_error'],
    handle: async (call) => {
      const { pending, ...begun } = await providersOf(call).begin(call.params.id, call.body.return_to);
      return {
        status: 200,
        body: begun,
        headers: pendingSignInCookie(pending, call.context.settings, PENDING_MS / 1000),
      };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/callback`,
    summary: 'End a sign-in with the response of the identity provider, and open a session',
    tag: TAG,
    auth: 'none',
    body: ProviderResponse,
    responses: { 200: SignedInAtProvider },
    problems: ['gone', 'provider_error', 'sign_in_refused', 'too_many_attempts'],
    handle: async (call) => {
      const { request, address, context } = call;
      const { session, returnTo } = await limitAttempts(call, () =>
        providersOf(call).finish(
          call.body,
          pendingSignInOf(request, context.settings),
          clientOf(request, address),
          sessionTokenOf(request, context.settings),
        ),
      );
      return {
        status: 200,
        body: { return_to: returnTo },
        headers: {
          ...providerSessionCookies(session, context.settings, context.now()),
          'X-Session-Secret': session.secret,
        },
      };
    },
  }),
];

export function providersOf({ context: { providers } }: Pick<ApiCall, 'context'>) {
  if (providers === undefined)
    throw new ApiProblem('unavailable', 'this process has no sign-in with identity providers');
  return providers;
}
