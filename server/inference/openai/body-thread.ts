/** The thread that parses large bodies. `readCall` starts it. */
import { parentPort } from 'node:worker_threads';
import { ApiError, type ApiErrorCode } from '../../base/errors';
import type { ThreadCall, ThreadReply } from '../../base/thread-calls';
import type { ParseLimits } from '../settings';
import { type Calls, compact, parseBody } from './parse-body';

/** The fields of an ApiError. Any other error has only a message. */
export interface BodyError {
  code?: ApiErrorCode;
  message: string;
  param?: string | null;
  headers?: Readonly<Record<string, string>>;
}

if (parentPort !== null) {
  const port = parentPort;
  port.on('message', ({ id, method, args }: ThreadCall) => {
    const kind = method as keyof Calls;
    void parseBody(kind, ...(args as [body: Uint8Array, limits: ParseLimits]))
      .then((call) => ({ id, value: compact(kind, call) }))
      .catch((error: unknown) => ({ id, error: toBodyError(error) }))
      .then((reply: ThreadReply<BodyError>) => port.postMessage(reply));
  });
}

function toBodyError(error: unknown): BodyError {
  if (!(error instanceof ApiError)) return { message: String((error as Error).stack ?? error) };
  const { code, message, param, headers } = error;
  return { code, message, param, headers };
}
