import type { ProviderSignIn, SignedInAtProvider } from '../../api/objects';
import { ApiProblem } from './problem';
import { call } from './client';

const KEY = 'capstan.signIn';
const PARAMETERS = ['state', 'code', 'iss', 'error', 'error_description'];

/** Opens the page of an identity provider. It comes back to the current page of the console. */
export async function beginAt(providerId: string): Promise<void> {
  const { pathname, search } = location;
  const { url, state } = await call<ProviderSignIn>('POST', `/auth/providers/${providerId}/begin`, {
    body: { return_to: pathname === '/sign-in' ? '/' : pathname + search },
    isSigningIn: true,
  });
  sessionStorage.setItem(KEY, state);
  location.assign(url);
}

/** Takes the response of the provider out of the address and the history: its code is a secret. */
export function takeResponse(): Record<string, string> {
  const query = new URLSearchParams(location.search);
  history.replaceState(null, '', location.pathname);
  return Object.fromEntries([...query].filter(([name]) => PARAMETERS.includes(name)));
}

/** Opens a session, and returns the page to show. Throws {@link ApiProblem}. */
export async function finishWith(response: Record<string, string>): Promise<string> {
  const state = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  // Other ports of the host share the cookies, but not this storage: they cannot sign a user in to their account.
  if (state === null || response.state !== state) throw new ApiProblem({ status: 410, code: 'gone', detail: '' });
  const { return_to: returnTo } = await call<SignedInAtProvider>('POST', '/auth/providers/callback', {
    body: response,
    isSigningIn: true,
  });
  return returnTo;
}
