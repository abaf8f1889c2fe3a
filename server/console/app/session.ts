import { useEffect, useState } from 'preact/hooks';
import type { Me } from '../../api/objects';
import { call, setCsrfToken } from '../api/client';
import { type ApiProblem, toProblem } from '../api/problem';
import { forgetAll } from '../api/resource';
import { onSessionEnd } from '../api/session-end';
import { locale, setLocale } from '../i18n';
import { applyTheme, currentTheme } from './theme';

/** Who is at the console. `ended`: was signed in, and the service knows the session no more; the page stays as it is until the next sign-in. */
export interface SessionState {
  me: Me | null;
  isKnown: boolean;
  hasEnded: boolean;
  problem: ApiProblem | null;
}

let state: SessionState = { me: null, isKnown: false, hasEnded: false, problem: null };
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

/** The account; only pages behind the sign-in ask. */
export function me(): Me {
  if (state.me === null) throw new Error('nobody is signed in');
  return state.me;
}

/** Asks who is signed in, and shows the page in the language and the colours of the account. */
export async function loadSession(): Promise<void> {
  try {
    take(await call<Me>('GET', '/me', { isSigningIn: true }));
  } catch (error) {
    const problem = toProblem(error);
    change({ isKnown: true, problem: problem.status === 401 ? null : problem });
  }
}

export function take(account: Me): void {
  // Another person at the same page sees nothing of the one before.
  if (state.me !== null && state.me.id !== account.id) forgetAll();
  setCsrfToken(account.csrf_token);
  applyTheme(account.theme);
  if (account.locale !== locale()) void setLocale(account.locale);
  change({ me: account, isKnown: true, hasEnded: false, problem: null });
}

/** A new account begins in the language and the colours that its page was in. */
export async function beginSession(): Promise<void> {
  const chosen = { locale: locale(), theme: currentTheme() };
  await loadSession();
  if (state.me === null || (state.me.locale === chosen.locale && state.me.theme === chosen.theme)) return;
  try {
    take(await call<Me>('PATCH', '/me', { body: chosen, ifMatch: state.me.rev }));
  } catch {
    // It can be chosen again in the settings.
  }
}

export async function signIn(credentials: { email: string; password: string; otp?: string }): Promise<void> {
  await call('POST', '/auth/login', { body: credentials, isSigningIn: true });
  await loadSession();
}

export async function signOut(): Promise<void> {
  await call('POST', '/auth/logout');
  forget();
}

export function forget(): void {
  forgetAll();
  setCsrfToken(null);
  change({ me: null, hasEnded: false });
}

onSessionEnd(() => {
  if (state.me !== null) change({ hasEnded: true });
});
