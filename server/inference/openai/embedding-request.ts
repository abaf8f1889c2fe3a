import type { ChatMessage, ChatOptions, EmbedOptions, Messages } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { JsonText } from '../../base/json/json-text';
import { CONVERSATION_NULLS } from '../../base/json/nulls';
import type { ParseLimits } from '../settings';
import { checkConversation, conversationOptions, toMessage } from './conversation';
import { checkPromptSizes, poolingCall, type PoolingCall } from './pooling-call';
import { EMBEDDING_REQUEST, type EmbeddingRequest, MAX_INPUTS } from './pooling-schema';
import { type Prompt, toPrompts } from './prompts';
import type { ConversationFields } from './schema';
import { checkLength } from './tokenize-request';
import { EMBEDDING_UNSUPPORTED, refuseUnsupported, unsupportedValue } from './unsupported';
import { validate } from '../../base/json/validate';

/** A request for embeddings as library options. */
export interface EmbeddingCall extends PoolingCall {
  /** None: there are messages. */
  inputs: Prompt[];
  /** A conversation, which the chat template renders to one input. */
  messages?: Messages;
  chatOptions: ChatOptions;
  /** Whether a conversation gets the special tokens that the tokenizer adds to a text. */
  addSpecialTokens: boolean;
  options: EmbedOptions;
  /** Whether embeddings are sent as base64 of their bytes. */
  isBase64: boolean;
}

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseEmbeddingRequest(
  { value }: JsonText,
  { settings, maxModelLen }: ParseLimits,
): Promise<EmbeddingCall> {
  const request = await validate(EMBEDDING_REQUEST, value, CONVERSATION_NULLS);
  refuseUnsupported(value, EMBEDDING_UNSUPPORTED);
  const { dimensions, prompt_name: promptName, add_special_tokens: addsTokens, use_activation: activation } = request;
  const { input, messages } = request;
  checkOneInput(request);
  // Token ids are used unchanged. They are the way to leave special tokens out.
  if (addsTokens === false && input !== undefined && hasTexts(input))
    throw unsupportedValue('add_special_tokens', false, 'true or no value beside texts');
  const { normalize = activation } = request;
  if (activation !== undefined && normalize !== activation)
    throw new ApiError('invalid_value', `normalize: expected the value of use_activation, got ${normalize}`, {
      param: 'normalize',
    });
  const inputs = input === undefined ? [] : toPrompts('input', input, MAX_INPUTS);
  checkPromptSizes('input', inputs);
  if (messages !== undefined) {
    checkConversation(request as ConversationFields);
    checkLength(request, maxModelLen);
  }
  const call = poolingCall(request);
  return {
    ...call,
    inputs,
    ...(messages === undefined ? {} : { messages: messages.map((message): ChatMessage => toMessage(message)) }),
    chatOptions: {
      // The conversation is complete, unless the request says otherwise.
      addGenerationPrompt: false,
      ...conversationOptions(request),
      templateKwargs: { ...settings.templateKwargs, ...request.chat_template_kwargs },
    },
    addSpecialTokens: addsTokens ?? false,
    options: {
      ...call.options,
      ...(dimensions === undefined ? {} : { dimensions }),
      ...(normalize === undefined ? {} : { normalize }),
      ...(promptName === undefined ? {} : { promptName }),
    },
    isBase64: request.encoding_format === 'base64',
  };
}

function checkOneInput({ input, messages, prompt_name: promptName }: EmbeddingRequest): void {
  if (messages === undefined && input === undefined)
    throw new ApiError('missing_required_parameter', 'input: expected input or messages, but both are missing', {
      param: 'input',
    });
  if (messages === undefined) return;
  if (input !== undefined) throw new ApiError('invalid_value', 'input: not allowed with messages', { param: 'input' });
  if (promptName !== undefined)
    throw new ApiError('invalid_value', 'prompt_name: not allowed with messages', { param: 'prompt_name' });
}

function hasTexts(input: string | readonly unknown[]): boolean {
  return typeof input === 'string' || input.some((item) => typeof item === 'string');
}
