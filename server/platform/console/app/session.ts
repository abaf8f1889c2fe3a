import { useEffect, useState } from 'preact/hooks';
import type { Me, ProviderLogout } from '../../api/objects';
import { call, setCsrfToken } from '../api/client';
import { type ApiProblem, toProblem } from '../api/problem';
import { clearResources } from '../api/resource';
import { onSessionEnd } from '../api/session-end';
import { setSessionSecret } from '../api/session-secret';
import { locale, setLocale } from '../i18n';
import { applyTheme, currentTheme } from './theme';

/** The state of the console session. */
export interface SessionState {
  me: Me | null;
  isLoaded: boolean;
  /** The session has expired. The page stays, and waits for the next sign-in. */
  hasEnded: boolean;
  problem: ApiProblem | null;
}

let state: SessionState = { me: null, isLoaded: false, hasEnded: false, problem: null };
const listeners = new Set<() => void>();

function change(next: Partial<SessionState>): void {
  state = { ...state, ...next };
  for (const listener of listeners) listener();
}

export function useSession(): SessionState {
  const [shown, setShown] = useState(state);
  useEffect(() => {
    const update = () => setShown(state);
    listeners.add(update);
    update();
    return () => {
      listeners.delete(update);
    };
  }, []);
  return shown;
}

/** Returns the signed-in account. Throws if there is none, so only pages behind the sign-in call it. */
export function me(): Me {
  if (state.me === null) throw new Error('expected a signed-in account');
  return state.me;
}

/** Loads the account, and applies its language and theme. */
export async function loadSession(): Promise<void> {
  try {
    setAccount(await call<Me>('GET', '/me', { isSigningIn: true }));
  } catch (error) {
    const problem = toProblem(error);
    change({ isLoaded: true, problem: problem.status === 401 ? null : problem });
  }
}

export function setAccount(account: Me): void {
  // A different user must not see cached data of the previous one.
  if (state.me !== null && state.me.id !== account.id) clearResources();
  setCsrfToken(account.csrf_token);
  applyTheme(account.theme);
  if (account.locale !== locale()) void setLocale(account.locale);
  change({ me: account, isLoaded: true, hasEnded: false, problem: null });
}

/** Loads the session of a new account, and stores the language and theme of the current page in it. */
export async function beginSession(): Promise<void> {
  const chosen = { locale: locale(), theme: currentTheme() };
  await loadSession();
  if (state.me === null || (state.me.locale === chosen.locale && state.me.theme === chosen.theme)) return;
  try {
    setAccount(await call<Me>('PATCH', '/me', { body: chosen, ifMatch: state.me.rev }));
  } catch {
    // The user can choose them again in the settings.
  }
}

export async function signIn(credentials: { email: string; password: string; otp?: string }): Promise<void> {
  await call('POST', '/auth/login', { body: credentials, isSigningIn: true });
  await loadSession();
}

/** Signs out, also at the identity provider if it has a logout. */
export async function signOut(): Promise<void> {
  const logout = await call<ProviderLogout | undefined>('POST', '/auth/logout');
  clearSession();
  if (logout !== undefined) location.assign(logout.url);
}

export function clearSession(): void {
  clearResources();
  setCsrfToken(null);
  setSessionSecret(null);
  change({ me: null, hasEnded: false });
}

onSessionEnd(() => {
  if (state.me !== null) change({ hasEnded: true });
});
