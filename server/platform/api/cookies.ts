import { cookiesNamed, type HttpRequest, SESSION_COOKIES } from 'capstan/internal';
import type { NewSession } from '../accounts/sessions';
import type { ApiSettings } from './context';

type Headers = Record<string, string>;

/** Returns the session token. Undefined without the cookie, or with two of them: another host may have planted one. */
export function sessionTokenOf(request: Pick<HttpRequest, 'headers'>, settings: ApiSettings): string | undefined {
  const values = cookiesNamed(request, nameOf(settings));
  return values.length === 1 && values[0] !== '' ? values[0] : undefined;
}

/** Not readable by scripts, not sent by other sites, and over HTTPS not settable by other hosts. */
export function sessionCookie({ token, expiresAt }: NewSession, settings: ApiSettings, nowMs: number): Headers {
  return setCookie(settings, token, Math.floor((expiresAt - nowMs) / 1000));
}

export function endedCookie(settings: ApiSettings): Headers {
  return setCookie(settings, '', 0);
}

function setCookie(settings: ApiSettings, value: string, maxAgeS: number): Headers {
  return {
    'Set-Cookie': `${nameOf(settings)}=${value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=${maxAgeS}${settings.isSecure ? '; Secure' : ''}`,
  };
}

function nameOf({ isSecure }: ApiSettings): string {
  return SESSION_COOKIES[isSecure ? 0 : 1];
}
