import { header, type HttpRequest } from '../http/transport';

/** Which deployment a request is for, and what it asks of it. */
export interface Addressed {
  slug: string;
  /** At the deployment; begins with a slash. */
  path: string;
  /** What stood before that path: `/d/{slug}`, or nothing where the host names the deployment. */
  prefix: string;
}

const BY_PATH = /^(\/d\/([a-z0-9-]{1,63}))(\/.*)?$/s;
const LABEL = /^[a-z0-9-]{1,63}$/;

/** `{slug}.{domain}` as the host goes before `/d/{slug}/…`; undefined for anything else. */
export function addressOf(
  request: Pick<HttpRequest, 'path' | 'headers'>,
  domain: string | undefined,
): Addressed | undefined {
  const slug = domain === undefined ? undefined : slugOfHost(header(request, 'host') ?? '', domain);
  if (slug !== undefined) return { slug, path: request.path, prefix: '' };
  const [, prefix, named, path = '/'] = BY_PATH.exec(request.path) ?? [];
  return named === undefined ? undefined : { slug: named, path, prefix };
}

function slugOfHost(host: string, domain: string): string | undefined {
  const name = host.replace(/:\d{1,5}$/, '').toLowerCase();
  if (!name.endsWith(`.${domain}`)) return undefined;
  const label = name.slice(0, -domain.length - 1);
  return LABEL.test(label) ? label : undefined;
}
