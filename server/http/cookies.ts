import type { HttpRequest } from './transport';

/** What the console's session is kept under: the first where the browser sees HTTPS, the second on plain HTTP. No deployment ever gets to see either. */
export const SESSION_COOKIES = ['__Host-capstan', 'capstan_session'] as const;

/** All cookies of a request under one name; more than one was planted. */
export function cookiesNamed({ headers }: Pick<HttpRequest, 'headers'>, name: string): string[] {
  return headers
    .filter(([header]) => header === 'cookie')
    .flatMap(([, value]) => value.split(';'))
    .map((pair) => pair.trim())
    .filter((pair) => pair.startsWith(`${name}=`))
    .map((pair) => pair.slice(name.length + 1));
}
