import { type CallContext, checkContext } from './call-context';
import type { ChatOptions } from './chat';
import { checkKnownKeys, checkNumber, checkObject, checkString } from './checks';
import { CapstanError, type CapstanErrorCode } from './errors';
import type { ChatEvent, GenerationResult } from './events';
import type { Generation } from './generation';
import type { EmbedOptions, EmbedResult } from './pooling';
import type { SamplingParams } from './sampling';
import type { Messages } from './text/text-service';

/**
 * Token ids.
 * @inline
 */
type Ids = readonly number[] | Int32Array;

/** One call of a batch. `customId` names its result. */
export type BatchRequest =
  | {
      /** Names the call in its result. */
      customId: string;
      /** The conversation, as in {@link Engine.chat}. */
      messages: Messages;
      /** Options of the chat. Default: none. */
      options?: ChatOptions;
    }
  | {
      /** Names the call in its result. */
      customId: string;
      /** A text or token ids, as in {@link Engine.generate}. */
      prompt: string | Ids;
      /** Options of the completion. Default: none. */
      options?: SamplingParams & {
        /** As in {@link GenerateOptions}. Default: true. */
        addSpecialTokens?: boolean;
      };
    }
  | {
      /** Names the call in its result. */
      customId: string;
      /** Texts or token ids, as in {@link Engine.embed}. */
      inputs: string | Ids | readonly (string | Ids)[];
      /** Options of the embedding. Default: none. */
      options?: EmbedOptions;
    };

/** The end of one call of a batch: a result of the method that its request asks for, or its error. */
export type BatchResult =
  | {
      /** That of the request. */
      customId: string;
      /** The result of a chat or a completion. */
      result: GenerationResult;
      /** Absent. */
      embeddings?: undefined;
      /** Absent. */
      error?: undefined;
    }
  | {
      /** That of the request. */
      customId: string;
      /** The result of an embedding. */
      embeddings: EmbedResult;
      /** Absent. */
      result?: undefined;
      /** Absent. */
      error?: undefined;
    }
  | {
      /** That of the request. */
      customId: string;
      /** Why this call failed. The others run anyway. */
      error: CapstanError;
      /** Absent. */
      result?: undefined;
      /** Absent. */
      embeddings?: undefined;
    };

/** The methods of an engine that calls of a batch use. */
interface BatchEngine {
  chat(messages: Messages, options: ChatOptions | undefined, context: CallContext): Generation<ChatEvent>;
  generate(prompt: string | Ids, options: SamplingParams | undefined, context: CallContext): Generation;
  embed(inputs: string | Ids | readonly (string | Ids)[], options: EmbedOptions): Promise<EmbedResult>;
  checkCapacity(context: CallContext): void;
}

/** Options of `Engine.batch`. */
export interface BatchOptions extends Pick<CallContext, 'signal' | 'cacheSalt' | 'priority'> {
  /** Calls that run at the same time. Default: `maxNumSeqs`. */
  concurrency?: number;
}

/** Background work: other calls come first. */
const BATCH_PRIORITY = 1;
/** Until the next attempt when the queue is full of other calls. */
const RETRY_MS = 100;
/** Errors that end the whole batch, because no later call can succeed. */
const FATAL: ReadonlySet<CapstanErrorCode> = new Set(['aborted', 'engine_closed', 'device_lost']);
const OPTION_KEYS = Object.keys({
  signal: true,
  cacheSalt: true,
  priority: true,
  concurrency: true,
} satisfies Record<keyof BatchOptions, true>);

/** @throws CapstanError `invalid_argument` that names the first invalid option. */
export function checkBatchOptions(options: BatchOptions, maxNumSeqs: number): Required<Omit<BatchOptions, 'signal'>> {
  checkKnownKeys('options', checkObject('options', options), OPTION_KEYS);
  const { signal, cacheSalt = '', priority = BATCH_PRIORITY, concurrency = maxNumSeqs } = options;
  checkContext(signal, cacheSalt, '', priority);
  checkNumber('concurrency', concurrency, { min: 1, max: 65_536, isInteger: true });
  return { cacheSalt, priority, concurrency };
}

/**
 * Runs the calls and yields their results in the order in which they end. Requests are taken when a call can start, so
 * they may come from a stream that is longer than the memory.
 */
export async function* runBatch(
  engine: BatchEngine,
  requests: Iterable<BatchRequest> | AsyncIterable<BatchRequest>,
  options: Required<Omit<BatchOptions, 'signal'>>,
  signal: AbortSignal | undefined,
): AsyncGenerator<BatchResult, undefined> {
  const { concurrency, cacheSalt, priority } = options;
  const aborter = new AbortController();
  const context = { signal: aborter.signal, cacheSalt, priority };
  const onAbort = () => aborter.abort(signal?.reason);
  signal?.addEventListener('abort', onAbort, { once: true });
  if (signal?.aborted === true) onAbort();
  const source = iteratorOf(requests);
  const running = new Set<Promise<BatchResult>>();
  const ended: BatchResult[] = [];
  let isExhausted = false;
  try {
    for (;;) {
      checkAborted(aborter.signal);
      while (!isExhausted && running.size < concurrency && ended.length === 0) {
        const next = await source.next();
        isExhausted = next.done === true;
        if (isExhausted) break;
        const call = run(engine, checkRequest(next.value), context).then((result) => {
          running.delete(call);
          ended.push(result);
          return result;
        });
        running.add(call);
      }
      if (ended.length === 0 && running.size > 0) await Promise.race(running);
      for (let result = ended.shift(); result !== undefined; result = ended.shift()) {
        if (result.error !== undefined && FATAL.has(result.error.code)) throw result.error;
        yield result;
      }
      if (isExhausted && running.size === 0 && ended.length === 0) return;
    }
  } finally {
    signal?.removeEventListener('abort', onAbort);
    aborter.abort();
    await Promise.all(running);
    if (!isExhausted) await source.return?.();
  }
}

function iteratorOf(
  requests: Iterable<BatchRequest> | AsyncIterable<BatchRequest>,
): AsyncIterator<unknown> | Iterator<unknown> {
  if (typeof requests === 'object' && requests !== null) {
    if (Symbol.asyncIterator in requests) return requests[Symbol.asyncIterator]();
    if (Symbol.iterator in requests) return requests[Symbol.iterator]();
  }
  throw CapstanError.argument('requests', 'an iterable of requests', requests);
}

function checkAborted(signal: AbortSignal): void {
  if (signal.aborted) throw new CapstanError('aborted', 'The batch was aborted', { cause: signal.reason });
}

function checkRequest(value: unknown): BatchRequest {
  const request = checkObject('request', value) as Partial<Record<string, unknown>>;
  checkString('customId', request.customId);
  const kinds = ['messages', 'prompt', 'inputs'].filter((name) => request[name] !== undefined);
  if (kinds.length !== 1)
    throw CapstanError.argument('request', 'one of messages, prompt and inputs', kinds.join(' and ') || 'none');
  return value as BatchRequest;
}

/** Never rejects. */
async function run(
  engine: BatchEngine,
  request: BatchRequest,
  context: Required<Pick<CallContext, 'signal' | 'cacheSalt' | 'priority'>>,
): Promise<BatchResult> {
  const { customId } = request;
  for (;;) {
    try {
      engine.checkCapacity(context);
      if ('inputs' in request)
        return { customId, embeddings: await engine.embed(request.inputs, { ...request.options, ...context }) };
      const generation =
        'messages' in request
          ? engine.chat(request.messages, request.options, context)
          : engine.generate(request.prompt, request.options, context);
      return { customId, result: await generation.result() };
    } catch (thrown) {
      const error = CapstanError.from(thrown);
      if (error.code !== 'queue_full' || context.signal.aborted) return { customId, error };
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}
