import { header, type HttpRequest } from 'capstan/internal';

/** The deployment that a request names, and the path within it. */
export interface DeploymentAddress {
  slug: string;
  /** Path at the deployment. Begins with a slash. */
  path: string;
  /** The removed path prefix: `/d/{slug}`, or empty when the host names the deployment. */
  prefix: string;
}

const BY_PATH = /^(\/d\/([a-z0-9-]{1,63}))(\/.*)?$/s;
const LABEL = /^[a-z0-9-]{1,63}$/;

/** Parses `{slug}.{domain}` from the host, then `/d/{slug}/…` from the path. Returns undefined for anything else. */
export function addressOf(
  request: Pick<HttpRequest, 'path' | 'headers'>,
  domain: string | undefined,
): DeploymentAddress | undefined {
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
