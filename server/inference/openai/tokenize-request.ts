import type { ChatMessage, ChatOptions, Messages } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { ParseLimits } from '../settings';
import { checkConversation, conversationOptions, toMessage } from './conversation';
import type { JsonText } from './json-text';
import { CONVERSATION_NULLS } from './nulls';
import { type ConversationFields, DETOKENIZE_REQUEST, TOKENIZE_REQUEST } from './schema';
import { refuseUnsupported, TOKENIZE_UNSUPPORTED } from './unsupported';
import { validate } from './validate';

/** A request to tokenize a text or a conversation. */
export interface TokenizeCall {
  model: string | undefined;
  /** undefined: there are messages. */
  prompt: string | undefined;
  /** undefined: there is a prompt. */
  messages: Messages | undefined;
  chatOptions: ChatOptions;
  addSpecialTokens: boolean;
  returnsTokenTexts: boolean;
}

export interface DetokenizeCall {
  model: string | undefined;
  tokens: number[];
}

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseTokenizeRequest({ value }: JsonText, { settings }: ParseLimits): Promise<TokenizeCall> {
  const body = await validate(TOKENIZE_REQUEST, value, CONVERSATION_NULLS);
  refuseUnsupported(value, TOKENIZE_UNSUPPORTED);
  const { model, messages, prompt } = body;
  if (messages !== undefined && prompt !== undefined)
    throw new ApiError('invalid_value', 'prompt: not allowed with messages', { param: 'prompt' });
  if (messages === undefined && prompt === undefined)
    throw new ApiError('missing_required_parameter', 'prompt: expected prompt or messages, but both are missing', {
      param: 'prompt',
    });
  if (messages !== undefined) checkConversation(body as ConversationFields);
  return {
    model: model === '' ? undefined : model,
    prompt,
    messages: messages?.map((message): ChatMessage => toMessage(message)),
    chatOptions: {
      ...conversationOptions(body),
      templateKwargs: { ...settings.templateKwargs, ...body.chat_template_kwargs },
    },
    // Chat templates contain the special tokens that the tokenizer would add.
    addSpecialTokens: body.add_special_tokens ?? prompt !== undefined,
    returnsTokenTexts: body.return_token_strs === true,
  };
}

export async function parseDetokenizeRequest({ value }: JsonText): Promise<DetokenizeCall> {
  const { model, tokens } = await validate(DETOKENIZE_REQUEST, value);
  return { model: model === '' ? undefined : model, tokens };
}
