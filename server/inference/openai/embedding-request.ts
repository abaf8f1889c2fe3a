import type { EmbedOptions } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { JsonText } from '../../base/json/json-text';
import { checkPromptSizes, poolingCall, type PoolingCall } from './pooling-call';
import { EMBEDDING_REQUEST, MAX_INPUTS } from './pooling-schema';
import { type Prompt, toPrompts } from './prompts';
import { EMBEDDING_UNSUPPORTED, refuseUnsupported, unsupportedValue } from './unsupported';
import { validate } from '../../base/json/validate';

/** A request for embeddings as library options. */
export interface EmbeddingCall extends PoolingCall {
  inputs: Prompt[];
  options: EmbedOptions;
  /** Whether embeddings are sent as base64 of their bytes. */
  isBase64: boolean;
}

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseEmbeddingRequest({ value }: JsonText): Promise<EmbeddingCall> {
  const request = await validate(EMBEDDING_REQUEST, value);
  refuseUnsupported(value, EMBEDDING_UNSUPPORTED);
  const { dimensions, prompt_name: promptName, add_special_tokens: addsTokens, use_activation: activation } = request;
  // Token ids are used unchanged. They are the way to leave special tokens out.
  if (addsTokens === false && hasTexts(request.input)) throw unsupportedValue('add_special_tokens', false);
  const { normalize = activation } = request;
  if (activation !== undefined && normalize !== activation)
    throw new ApiError('invalid_value', `normalize: expected the value of use_activation, got ${normalize}`, {
      param: 'normalize',
    });
  const inputs = toPrompts('input', request.input, MAX_INPUTS);
  checkPromptSizes('input', inputs);
  const call = poolingCall(request);
  return {
    ...call,
    inputs,
    options: {
      ...call.options,
      ...(dimensions === undefined ? {} : { dimensions }),
      ...(normalize === undefined ? {} : { normalize }),
      ...(promptName === undefined ? {} : { promptName }),
    },
    isBase64: request.encoding_format === 'base64',
  };
}

function hasTexts(input: string | readonly unknown[]): boolean {
  return typeof input === 'string' || input.some((item) => typeof item === 'string');
}
