import { createHash } from 'node:crypto';
import { header, type HttpRequest } from 'capstan/internal';
import { ServiceError } from '../store/errors';
import type { SavedResponse } from '../store/idempotency';
import type { ServiceStore } from '../store/store';
import { ApiProblem } from './problem';
import type { ApiResponse, ApiRoute } from './route';

const KEY = /^[\x21-\x7e]{1,200}$/;

/**
 * Runs a POST once per caller and `Idempotency-Key`. For 24 h an equal request gets the saved response, without its
 * secrets.
 */
export async function runIdempotent(
  store: Pick<ServiceStore, 'beginIdempotent' | 'endIdempotent'>,
  route: ApiRoute,
  request: HttpRequest,
  userId: string | undefined,
  bodyText: string,
  run: () => Promise<ApiResponse>,
): Promise<ApiResponse> {
  const key = header(request, 'idempotency-key');
  if (key === undefined || userId === undefined || route.method !== 'POST') return run();
  if (!KEY.test(key))
    throw new ApiProblem('invalid_request', 'Idempotency-Key: expected 1 to 200 visible ASCII characters');
  // Hashed, because the text crosses to the database thread.
  const summary = createHash('sha256')
    .update(JSON.stringify([request.method, request.path, request.query, bodyText]))
    .digest('hex');
  const saved = await store.beginIdempotent(userId, key, summary).catch((error: unknown) => {
    throw error instanceof ServiceError && error.code === 'invalid_argument'
      ? new ApiProblem('idempotency_mismatch', error.message)
      : error;
  });
  if (saved !== undefined) return replay(saved);
  const response = await run().catch(async (error: unknown) => {
    await store.endIdempotent(userId, key);
    throw error;
  });
  await store.endIdempotent(
    userId,
    key,
    'stream' in response
      ? undefined
      : {
          status: response.status,
          body: savedBody(response.body, route.secrets),
          location: response.headers?.Location ?? null,
        },
  );
  return response;
}

/** The ETag is derived from the body again. */
function replay({ status, body, location }: SavedResponse): ApiResponse {
  return {
    status,
    body: body === null ? undefined : { ...(JSON.parse(body) as object), replayed: true },
    headers: location === null ? {} : { Location: location },
  };
}

function savedBody(body: unknown, secrets: readonly string[] = []): string | null {
  if (body === undefined) return null;
  return JSON.stringify({ ...(body as object), ...Object.fromEntries(secrets.map((name) => [name, null])) });
}
