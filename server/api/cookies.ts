import { SESSION_COOKIES, cookiesNamed } from '../http/cookies';
import type { HttpRequest } from '../http/transport';
import type { NewSession } from '../service/sessions';
import type { ApiSettings } from './context';

type Headers = Record<string, string>;

/** The value of our cookie; undefined without one, or where somebody planted a second. */
export function sessionTokenOf(request: Pick<HttpRequest, 'headers'>, settings: ApiSettings): string | undefined {
  const values = cookiesNamed(request, nameOf(settings));
  return values.length === 1 && values[0] !== '' ? values[0] : undefined;
}

/** Scripts cannot read it, other sites cannot send it, and with HTTPS no other host can set it. */
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
