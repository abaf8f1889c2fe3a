import { cookiesNamed, type HttpRequest, SESSION_COOKIES, SIGN_IN_COOKIES } from 'capstan/internal';
import type { NewSession } from '../accounts/sessions';
import type { ApiSettings } from './context';

type Headers = Record<string, string>;

/** Returns the session token. Undefined without the cookie, or with two of them: another host may have planted one. */
export function sessionTokenOf(request: Pick<HttpRequest, 'headers'>, settings: ApiSettings): string | undefined {
  return valueOf(request, nameOf(SESSION_COOKIES, settings));
}

/** Returns the sign-in at a provider that this browser has begun. */
export function pendingSignInOf(request: Pick<HttpRequest, 'headers'>, settings: ApiSettings): string | undefined {
  return valueOf(request, nameOf(SIGN_IN_COOKIES, settings));
}

function valueOf(request: Pick<HttpRequest, 'headers'>, name: string): string | undefined {
  const values = cookiesNamed(request, name);
  return values.length === 1 && values[0] !== '' ? values[0] : undefined;
}

/** Not readable by scripts, not sent by other sites, and over HTTPS not settable by other hosts. */
export function sessionCookie({ token, expiresAt }: NewSession, settings: ApiSettings, nowMs: number): Headers {
  return { 'Set-Cookie': cookie(SESSION_COOKIES, settings, token, Math.floor((expiresAt - nowMs) / 1000)) };
}

export function endedCookie(settings: ApiSettings): Headers {
  return { 'Set-Cookie': cookie(SESSION_COOKIES, settings, '', 0) };
}

/** The console's own page sends it, not the redirect of the provider, so other sites never cause it to be sent. */
export function pendingSignInCookie(sealed: string, settings: ApiSettings, maxAgeS: number): Headers {
  return { 'Set-Cookie': cookie(SIGN_IN_COOKIES, settings, sealed, maxAgeS) };
}

/** The cookies of a session that a provider has opened: the pending sign-in has ended. */
export function providerSessionCookies(
  session: NewSession,
  settings: ApiSettings,
  nowMs: number,
): Readonly<Record<'Set-Cookie', readonly string[]>> {
  const opened = sessionCookie(session, settings, nowMs)['Set-Cookie'];
  return { 'Set-Cookie': [opened, cookie(SIGN_IN_COOKIES, settings, '', 0)] };
}

function cookie(names: CookieNames, settings: ApiSettings, value: string, maxAgeS: number): string {
  const attributes = `Path=/; HttpOnly; SameSite=Strict; Max-Age=${maxAgeS}${settings.isSecure ? '; Secure' : ''}`;
  return `${nameOf(names, settings)}=${value}; ${attributes}`;
}

/** The name over HTTPS, and over plain HTTP. */
type CookieNames = readonly [string, string];

function nameOf(names: CookieNames, { isSecure }: ApiSettings): string {
  return names[isSecure ? 0 : 1];
}
