import { createHash } from 'node:crypto';
import { header, type HttpRequest } from '../http/transport';
import { ServiceError } from '../service/errors';
import type { SavedAnswer } from '../service/idempotency';
import type { ServiceStore } from '../service/store';
import { ApiProblem } from './problem';
import type { ApiAnswer, ApiRoute } from './route';

const KEY = /^[\x21-\x7e]{1,200}$/;

/** Runs a POST once for each `Idempotency-Key` of a caller: for 24 h the same request is answered as before, without the secrets that were shown then. */
export async function once(
  store: Pick<ServiceStore, 'beginOnce' | 'endOnce'>,
  route: ApiRoute,
  request: HttpRequest,
  userId: string | undefined,
  bodyText: string,
  run: () => Promise<ApiAnswer>,
): Promise<ApiAnswer> {
  const key = header(request, 'idempotency-key');
  if (key === undefined || userId === undefined || route.method !== 'POST') return run();
  if (!KEY.test(key))
    throw new ApiProblem('invalid_request', 'Idempotency-Key: expected 1 to 200 visible ASCII characters');
  // Short, whatever the body's length: it crosses to the database's thread.
  const summary = createHash('sha256')
    .update(JSON.stringify([request.method, request.path, request.query, bodyText]))
    .digest('hex');
  const saved = await store.beginOnce(userId, key, summary).catch((error: unknown) => {
    throw error instanceof ServiceError && error.code === 'invalid_argument'
      ? new ApiProblem('idempotency_mismatch', error.message)
      : error;
  });
  if (saved !== undefined) return replay(saved);
  const answer = await run().catch(async (error: unknown) => {
    await store.endOnce(userId, key);
    throw error;
  });
  await store.endOnce(
    userId,
    key,
    'stream' in answer
      ? undefined
      : {
          status: answer.status,
          body: savedBody(answer.body, route.secrets),
          location: answer.headers?.Location ?? null,
        },
  );
  return answer;
}

/** The `ETag` follows from the body. */
function replay({ status, body, location }: SavedAnswer): ApiAnswer {
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
