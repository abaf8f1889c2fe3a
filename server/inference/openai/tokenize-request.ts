import { looseTextBytes } from '../../../ts/text-limits';
import type { ChatMessage, ChatOptions, Messages } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { ParseLimits } from '../settings';
import { checkConversation, conversationOptions, toMessage } from './conversation';
import type { JsonText } from '../../base/json/json-text';
import { CONVERSATION_NULLS } from '../../base/json/nulls';
import { type ConversationFields, DETOKENIZE_REQUEST, TOKENIZE_REQUEST, type TokenizeRequest } from './schema';
import { refuseUnsupported, TOKENIZE_UNSUPPORTED } from './unsupported';
import { validate } from '../../base/json/validate';

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
  tokens: number[] | Int32Array;
}

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseTokenizeRequest(
  { value }: JsonText,
  { settings, maxModelLen }: ParseLimits,
): Promise<TokenizeCall> {
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
  checkLength(body, maxModelLen);
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

/** A text may be longer than the context, so that clients can count what they must cut, but not without limit. */
export function checkLength(
  { prompt, messages, tools }: Pick<Partial<TokenizeRequest>, 'prompt' | 'messages' | 'tools'>,
  maxModelLen: number,
): void {
  const param = messages === undefined ? 'prompt' : 'messages';
  const check = (received: number, max: number, unit: string) => {
    if (received <= max) return;
    const message = `${param}: expected at most ${max} ${unit} for a context of ${maxModelLen} tokens, got ${received}`;
    throw new ApiError('context_length_exceeded', message, { param });
  };
  check(messages?.length ?? 0, maxModelLen, 'messages');
  const text = prompt ?? JSON.stringify([messages, tools]);
  check(Buffer.byteLength(text), looseTextBytes(maxModelLen), 'bytes');
}

export async function parseDetokenizeRequest(
  { value }: JsonText,
  { maxModelLen }: ParseLimits,
): Promise<DetokenizeCall> {
  const { model, tokens } = await validate(DETOKENIZE_REQUEST, value);
  const maxTokens = looseTextBytes(maxModelLen);
  if (tokens.length > maxTokens)
    throw new ApiError('invalid_value', `tokens: expected at most ${maxTokens} token ids, got ${tokens.length}`, {
      param: 'tokens',
    });
  return { model: model === '' ? undefined : model, tokens };
}
