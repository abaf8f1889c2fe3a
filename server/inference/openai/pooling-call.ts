import { CapstanError, type PoolingOptions } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { RequestContext } from '../../http/routes';
import { toClientError } from './call';
import type { Prompt } from './prompts';
import type { RerankRequest } from './pooling-schema';

/** What requests for embeddings and scores have in common. */
export interface PoolingCall {
  model: string | undefined;
  options: PoolingOptions;
  cacheSalt: string | undefined;
  requestId: string | undefined;
}

type PoolingFields = Pick<RerankRequest, 'model' | 'truncate_prompt_tokens' | 'cache_salt' | 'request_id'>;

export function poolingCall(request: PoolingFields): PoolingCall {
  const { model, truncate_prompt_tokens: truncatePromptTokens, cache_salt: cacheSalt, request_id: requestId } = request;
  return {
    model: model === '' ? undefined : model,
    options: truncatePromptTokens === undefined ? {} : { truncatePromptTokens },
    cacheSalt,
    requestId,
  };
}

/** Runs a call of the engine, and counts the tokens that it computes against the client's limits, whatever its end. */
export async function withTokenCount<T>(
  { identity, allowance }: Pick<RequestContext, 'identity' | 'allowance'>,
  run: (onTokens: (numTokens: number) => void) => Promise<T>,
): Promise<T> {
  let numTokens = 0;
  try {
    return await run((count) => {
      allowance?.takePrompt(count);
      numTokens += count;
    });
  } finally {
    identity.done(numTokens);
  }
}

/**
 * As toClientError, and it converts the option that the message of a long input recommends.
 * @param names Client names by library name.
 */
export function toPoolingError(error: unknown, names: Readonly<Record<string, string>>): ApiError {
  if (!(error instanceof CapstanError)) return toClientError(error, names);
  const message = error.message.replace('truncatePromptTokens: -1', 'truncate_prompt_tokens: -1');
  return toClientError(new CapstanError(error.code, message, error), names);
}

/** Token ids in all inputs of one request. They bound the time that a request takes. */
const MAX_REQUEST_TOKENS = 2 ** 20;
/** Bytes of the texts that one request computes, at 8 bytes per token. */
const MAX_REQUEST_TEXT_BYTES = 8 * MAX_REQUEST_TOKENS;

export function checkPromptSizes(param: string, inputs: readonly Prompt[]): void {
  let numTokens = 0;
  let numBytes = 0;
  for (const input of inputs) {
    if (typeof input === 'string') numBytes += Buffer.byteLength(input);
    else numTokens += input.length;
  }
  checkTotal(param, numTokens, MAX_REQUEST_TOKENS, 'token ids');
  checkTotal(param, numBytes, MAX_REQUEST_TEXT_BYTES, 'bytes of text');
}

/** Checks pairs. A single text on the left counts once for each pair. */
export function checkTextSizes(param: string, left: readonly string[], right: readonly string[]): void {
  const sum = (texts: readonly string[]) => texts.reduce((bytes, text) => bytes + Buffer.byteLength(text), 0);
  const numRepeats = left.length === 1 ? right.length : 1;
  checkTotal(param, sum(left) * numRepeats + sum(right), MAX_REQUEST_TEXT_BYTES, 'bytes of text in all pairs together');
}

function checkTotal(param: string, received: number, max: number, unit: string): void {
  if (received <= max) return;
  throw new ApiError(
    'invalid_value',
    `${param}: expected at most ${max} ${unit}, got ${received}. Send several requests.`,
    {
      param,
    },
  );
}
