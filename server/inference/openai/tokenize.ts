import type { HttpReply, HttpRequest } from '../../http/transport';
import { ApiError } from '../../base/errors';
import type { ServerSettings } from '../settings';
import { toClientError } from './call';
import type { OpenAiContext } from './context';
import { checkConversation, conversationOptions, toMessage } from './conversation';
import { sendJson } from './send-json';
import { readJson } from './json-body';
import { TokenWords } from './logprobs';
import { CONVERSATION_NULLS } from './nulls';
import { CLIENT_NAMES } from './sampling-request';
import { type ConversationFields, DETOKENIZE_REQUEST, TOKENIZE_REQUEST } from './schema';
import { mapInTurns } from './turns';
import { refuseUnsupported, TOKENIZE_UNSUPPORTED } from './unsupported';
import { validate } from './validate';

/** POST /tokenize: tokenizes a text, or a conversation rendered by the chat template. */
export async function tokenize(
  { engine, model, settings }: OpenAiContext,
  request: HttpRequest,
  reply: HttpReply,
): Promise<void> {
  const { value } = await readJson(request);
  const body = await validate(TOKENIZE_REQUEST, value, CONVERSATION_NULLS);
  refuseUnsupported(value, TOKENIZE_UNSUPPORTED);
  const { messages, prompt } = body;
  if (messages !== undefined && prompt !== undefined)
    throw new ApiError('invalid_value', 'prompt: not allowed with messages', { param: 'prompt' });
  if (messages === undefined && prompt === undefined)
    throw new ApiError('missing_required_parameter', 'prompt: expected prompt or messages, but both are missing', {
      param: 'prompt',
    });
  model.responseName(body.model === '' ? undefined : body.model);
  try {
    const text = prompt ?? (await render(engine, body as ConversationFields, settings));
    // Chat templates contain the special tokens that the tokenizer would add.
    const tokenIds = await engine.tokenize(text, { addSpecialTokens: body.add_special_tokens ?? prompt !== undefined });
    const words = new TokenWords(engine);
    sendJson(reply, {
      count: tokenIds.length,
      max_model_len: engine.info.maxModelLen,
      tokens: Array.from(tokenIds),
      token_strs: body.return_token_strs === true ? await mapInTurns(tokenIds, (tokenId) => words.text(tokenId)) : null,
    });
  } catch (error) {
    throw toClientError(error, CLIENT_NAMES);
  }
}

function render(
  engine: OpenAiContext['engine'],
  request: ConversationFields,
  settings: ServerSettings,
): Promise<string> {
  checkConversation(request);
  return engine.renderChat(request.messages.map(toMessage), {
    ...conversationOptions(request),
    templateKwargs: { ...settings.templateKwargs, ...request.chat_template_kwargs },
  });
}

/** POST /detokenize: converts token ids to text, special tokens included. */
export async function detokenize(
  { engine, model }: OpenAiContext,
  request: HttpRequest,
  reply: HttpReply,
): Promise<void> {
  const { value } = await readJson(request);
  const { model: name, tokens } = await validate(DETOKENIZE_REQUEST, value);
  model.responseName(name === '' ? undefined : name);
  try {
    sendJson(reply, { prompt: await engine.detokenizeAsync(tokens, { skipSpecialTokens: false }) });
  } catch (error) {
    throw toClientError(error, { token_ids: 'tokens' });
  }
}
