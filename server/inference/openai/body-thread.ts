/** The thread that parses large bodies. `readCall` starts it. */
import { parentPort } from 'node:worker_threads';
import { answerCalls } from '../../../ts/thread-calls';
import { ApiError, type ApiErrorCode } from '../../base/errors';
import type { ParseLimits } from '../settings';
import { type Calls, compact, parseBody } from './parse-body';

/** The fields of an ApiError. Any other error has only a message. */
export interface BodyError {
  code?: ApiErrorCode;
  message: string;
  param?: string | null;
  headers?: Readonly<Record<string, string>>;
}

if (parentPort !== null)
  answerCalls(parentPort, {
    run: async (kind, [body, limits]) => {
      const call = await parseBody(kind as keyof Calls, body as Uint8Array, limits as ParseLimits);
      return compact(kind as keyof Calls, call);
    },
    toError: toBodyError,
  });

function toBodyError(error: unknown): BodyError {
  if (!(error instanceof ApiError)) return { message: String((error as Error).stack ?? error) };
  const { code, message, param, headers } = error;
  return { code, message, param, headers };
}
