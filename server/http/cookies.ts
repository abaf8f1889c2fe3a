import { trimBlanks } from '../base/blanks';
import type { HttpRequest } from './transport';

/**
 * Names of the console's session cookie: the first over HTTPS, the second over plain HTTP. The gateway removes both
 * before it forwards a request.
 */
export const SESSION_COOKIES = ['__Host-capstan', 'capstan_session'] as const;

/** Names of the cookie of a sign-in at an identity provider, in the same order. The gateway removes them, too. */
export const SIGN_IN_COOKIES = ['__Host-capstan_signin', 'capstan_signin'] as const;

/** Returns the values of all cookies of one name. More than one means that another site planted a cookie. */
export function cookiesNamed({ headers }: Pick<HttpRequest, 'headers'>, name: string): string[] {
  return headers
    .filter(([header]) => header === 'cookie')
    .flatMap(([, value]) => value.split(';'))
    .map(trimBlanks)
    .filter((pair) => pair.startsWith(`${name}=`))
    .map((pair) => pair.slice(name.length + 1));
}
