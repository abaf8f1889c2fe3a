import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { ApiError } from '../../base/errors';
import { ThreadCalls } from '../../../ts/thread-calls';
import { checkJson } from '../../http/check-json';
import type { HttpRequest } from '../../http/transport';
import type { ParseLimits } from '../settings';
import type { BodyError } from './body-thread';
import type { OpenAiContext } from './context';
import { type Calls, parseBody } from './parse-body';

/** Larger bodies are parsed in a thread. For example, 250 KB of one-letter messages take 60 ms. */
const MAX_INLINE_BYTES = 64 * 1024;
/** Bodies that wait for the thread. One more is refused, unless nothing else waits. */
const MAX_WAITING_BYTES = 256 * 2 ** 20;
const THREAD_FILE = join(__dirname, 'body-thread.js');

/**
 * Reads and checks the body of a request. A missing Content-Type counts as JSON. Other types and compressed bodies are
 * refused. Throws an ApiError that names the first invalid field.
 */
export async function readCall<Kind extends keyof Calls>(
  kind: Kind,
  request: HttpRequest,
  {
    settings,
    engine,
    signal,
  }: Pick<OpenAiContext, 'settings' | 'signal'> & { engine: { info: Omit<ParseLimits, 'settings'> } },
): Promise<Calls[Kind]> {
  checkJson(request);
  const body = await request.readBody();
  const { vocabSize, maxModelLen } = engine.info;
  const limits: ParseLimits = { settings, vocabSize, maxModelLen };
  const thread = body.length > MAX_INLINE_BYTES ? openBodyThread() : undefined;
  if (thread === undefined) return parseBody(kind, body, limits);
  const { byteLength } = body;
  if (waitingBytes > 0 && waitingBytes + byteLength > MAX_WAITING_BYTES)
    throw new ApiError('queue_full', `The queue is full: ${waitingBytes} bytes of request bodies wait to be parsed`);
  waitingBytes += byteLength;
  try {
    return (await thread.call(kind, [body, limits], { signal, transfer: ownMemory(body) })) as Calls[Kind];
  } finally {
    waitingBytes -= byteLength;
  }
}

/** Returns the memory of a body that shares it with no other buffer. */
function ownMemory({ buffer, byteLength }: Buffer): ArrayBuffer[] {
  return buffer instanceof ArrayBuffer && buffer.byteLength === byteLength ? [buffer] : [];
}

/** One thread for the process, because parsing needs no model. */
let bodyThread: ThreadCalls<BodyError> | undefined;
let waitingBytes = 0;

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
