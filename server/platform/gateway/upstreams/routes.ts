import { ApiError, INPUT_TOKENS_PATH } from 'capstan/internal';
import type { UpstreamInterface } from './interfaces';

/**
 * The interface of a request to an upstream. `other`: a route of OpenAI's older interfaces, which passes unchanged.
 * Other requests are refused, because they would act on the account of the key, for example on its files.
 */
export type UpstreamRoute = UpstreamInterface | 'count_tokens' | 'input_tokens' | 'models' | 'other';

const POSTS: ReadonlyMap<string, UpstreamRoute> = new Map([
  ['/v1/chat/completions', 'chat'],
  ['/v1/responses', 'responses'],
  [INPUT_TOKENS_PATH, 'input_tokens'],
  ['/v1/messages', 'messages'],
  ['/v1/messages/count_tokens', 'count_tokens'],
  ['/v1/completions', 'other'],
  ['/v1/embeddings', 'other'],
  ['/v1/rerank', 'other'],
  ['/v1/score', 'other'],
  ['/v1/moderations', 'other'],
]);
/** The interface of the requests whose tokens a route counts. */
export const COUNTED_BY: Readonly<Partial<Record<UpstreamRoute, UpstreamInterface>>> = {
  count_tokens: 'messages',
  input_tokens: 'responses',
};
const MODELS = '/v1/models';

/** Throws ApiError for a request that upstreams do not get. */
export function upstreamRoute(
  { method, path }: { method: string; path: string },
  interfaces: readonly UpstreamInterface[],
): UpstreamRoute {
  const route = method === 'POST' ? POSTS.get(path) : undefined;
  const countedBy = route === undefined ? undefined : COUNTED_BY[route];
  if (countedBy !== undefined && !interfaces.includes(countedBy))
    throw new ApiError(
      'unknown_url',
      `The upstream of this deployment cannot count tokens here: it has no interface ${countedBy}`,
    );
  if (route === 'other' && !interfaces.includes('chat'))
    throw new ApiError('unknown_url', `The upstream of this deployment has no ${path}: it has no interface chat`);
  if (route !== undefined) return route;
  if ((method === 'GET' || method === 'HEAD') && path === MODELS) return 'models';
  if (POSTS.has(path)) throw wrongMethod(method, 'POST');
  if (path === MODELS) throw wrongMethod(method, 'GET, HEAD');
  throw new ApiError(
    'unknown_url',
    `This deployment forwards to an upstream, which gets no requests for ${path.slice(0, 100)}. Expected ${[...POSTS.keys(), MODELS].join(', ')}`,
  );
}

function wrongMethod(method: string, allowed: string): ApiError {
  return new ApiError('method_not_allowed', `Expected ${allowed} here, got ${method.slice(0, 20)}`, {
    headers: { Allow: allowed },
  });
}
