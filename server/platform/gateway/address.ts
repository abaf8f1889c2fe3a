import { header, type HttpRequest, INPUT_TOKENS_PATH } from 'capstan/internal';

/** The deployment that a request names, and the path within it. */
export interface DeploymentAddress {
  slug: string;
  /** Path at the deployment. Begins with a slash. */
  path: string;
  /** The removed path prefix: `/d/{slug}`, or empty when the host names the deployment. */
  prefix: string;
  /** The request names its deployment in its body. Cookies of the shared host name are not passed on. */
  isApi?: true;
}

/** `api.{domain}` is the API of all deployments. It cannot clash with a slug: slugs have twelve characters. */
export const API_LABEL = 'api';
/** Paths of inference requests that are not below /v1. */
const INFERENCE_PATHS = new Set(['/rerank', '/v2/rerank', '/score', '/tokenize', '/detokenize']);
/** Routes that change no state. Containers may have others below /v1, and so have adapters and batches. */
const REPEATABLE_PATHS = new Set([
  ...INFERENCE_PATHS,
  '/v1/chat/completions',
  '/v1/chat/completions/render',
  '/v1/completions',
  '/v1/embeddings',
  '/v1/rerank',
  '/v1/score',
  '/v1/responses',
  INPUT_TOKENS_PATH,
  '/v1/responses/compact',
  '/v1/messages',
  '/v1/messages/count_tokens',
  '/v1/audio/transcriptions',
  '/v1/audio/translations',
  '/v1/audio/speech',
]);
const BY_PATH = /^(\/d\/([a-z0-9-]{1,63}))(\/.*)?$/s;
const LABEL = /^[a-z0-9-]{1,63}$/;

/** Parses `{slug}.{domain}` from the host, then `/d/{slug}/…` from the path. Returns undefined for anything else. */
export function addressOf(
  request: Pick<HttpRequest, 'path' | 'headers'>,
  domain: string | undefined,
): DeploymentAddress | undefined {
  const slug = domain === undefined ? undefined : slugOfHost(header(request, 'host') ?? '', domain);
  if (slug === API_LABEL) return undefined;
  if (slug !== undefined) return { slug, path: request.path, prefix: '' };
  const [, prefix, named, path = '/'] = BY_PATH.exec(request.path) ?? [];
  return named === undefined ? undefined : { slug: named, path, prefix };
}

/** Whether a request is to the API of all deployments: `api.{domain}`, or an inference path at the root. */
export function isApiRequest(request: Pick<HttpRequest, 'path' | 'headers'>, domain: string | undefined): boolean {
  if (isInference(request.path) || request.path === '/v1') return addressOf(request, domain) === undefined;
  return domain !== undefined && slugOfHost(header(request, 'host') ?? '', domain) === API_LABEL;
}

/** Whether a request changes no state, so that another replica or deployment can get it as well. */
export function isRepeatable({ method, path }: { method: string; path: string }): boolean {
  return method === 'POST' && REPEATABLE_PATHS.has(path);
}

/** Whether a path is a route of Capstan that takes a model. Containers and upstreams may have others. */
export function isModelRoute(path: string): boolean {
  return REPEATABLE_PATHS.has(path);
}

/** Whether a path belongs to the API of all deployments. */
export function isInference(path: string): boolean {
  return path.startsWith('/v1/') || INFERENCE_PATHS.has(path);
}

function slugOfHost(host: string, domain: string): string | undefined {
  const name = host.replace(/:\d{1,5}$/, '').toLowerCase();
  if (!name.endsWith(`.${domain}`)) return undefined;
  const label = name.slice(0, -domain.length - 1);
  return LABEL.test(label) ? label : undefined;
}
