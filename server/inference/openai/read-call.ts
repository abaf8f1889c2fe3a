import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { ApiError } from '../../base/errors';
import { ThreadCalls } from '../../base/thread-calls';
import { header, type HttpRequest, mediaType } from '../../http/transport';
import type { ParseLimits } from '../settings';
import type { BodyError } from './body-thread';
import type { OpenAiContext } from './context';
import { type Calls, parseBody } from './parse-body';
import { show } from './validate';

/** Larger bodies are parsed in a thread, because parsing and checking one may take long: 60 ms for 250 KB of one-letter messages. */
const MAX_INLINE_BYTES = 64 * 1024;
const THREAD_FILE = join(__dirname, 'body-thread.js');

/**
 * Reads and checks the body of a request. A missing Content-Type counts as JSON. Other types and compressed bodies are
 * refused. Throws an ApiError that names the first invalid field.
 */
export async function readCall<Kind extends keyof Calls>(
  kind: Kind,
  request: HttpRequest,
  { settings, engine }: Pick<OpenAiContext, 'settings' | 'engine'>,
): Promise<Calls[Kind]> {
  checkJson(request);
  const body = await request.readBody();
  const limits = { settings, vocabSize: engine.info.vocabSize };
  const thread = body.length > MAX_INLINE_BYTES ? openBodyThread() : undefined;
  return thread === undefined
    ? parseBody(kind, body, limits)
    : (thread.call(kind, [body, limits satisfies ParseLimits], ownMemory(body)) as Promise<Calls[Kind]>);
}

function checkJson(request: HttpRequest): void {
  const type = mediaType(request) ?? 'application/json';
  if (type !== 'application/json')
    throw new ApiError('unsupported_media_type', `Content-Type: expected application/json, got ${show(type)}`);
  const encoding = header(request, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (encoding !== 'identity')
    throw new ApiError('unsupported_media_type', `Content-Encoding: expected none, got ${show(encoding)}`);
}

/** Returns the memory of a body that shares it with no other buffer. */
function ownMemory({ buffer, byteLength }: Buffer): ArrayBuffer[] {
  return buffer instanceof ArrayBuffer && buffer.byteLength === byteLength ? [buffer] : [];
}

/** One thread for the process, because parsing needs no model. */
let bodyThread: ThreadCalls<BodyError> | undefined;

/**
 * Returns undefined without the compiled file, in tests from sources and in bundles. Then the calling thread parses all
 * bodies.
 */
export function openBodyThread(start = startThread): ThreadCalls<BodyError> | undefined {
  if (start === startThread && !existsSync(THREAD_FILE)) return undefined;
  return (bodyThread ??= new ThreadCalls<BodyError>({
    start,
    revive: ({ code, message, ...details }) =>
      code === undefined ? new Error(message) : new ApiError(code, message, details),
    toError: (message, cause) =>
      new ApiError('internal_error', `The thread that parses requests ${message}`, { cause }),
  }));
}

function startThread(): Worker {
  return new Worker(THREAD_FILE, { name: 'capstan-body' });
}
