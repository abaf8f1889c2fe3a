import type { HttpReply, HttpRequest } from '../../http/transport';
import { ApiError } from '../../base/errors';
import { toClientError } from './call';
import type { OpenAiContext } from './context';
import { TokenWords } from './logprobs';
import { readCall } from './read-call';
import { CLIENT_NAMES } from './sampling-request';
import { sendJson } from '../../http/send-json';
import type { TokenizeCall } from './tokenize-request';
import { mapInTurns } from './turns';

/** POST /tokenize: tokenizes a text, or a conversation rendered by the chat template. */
export async function tokenize(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model, signal } = context;
  const call = await readCall('tokenize', request, context);
  model.responseName(call.model);
  try {
    const text = await textOf(context, call);
    const tokenIds = await engine.tokenize(text, { addSpecialTokens: call.addSpecialTokens }, { signal });
    if (call.returnsTokenTexts) checkTokenTexts(tokenIds.length, engine.info.maxModelLen);
    const words = new TokenWords(engine);
    sendJson(reply, {
      count: tokenIds.length,
      max_model_len: engine.info.maxModelLen,
      tokens: Array.from(tokenIds),
      token_strs: call.returnsTokenTexts ? await mapInTurns(tokenIds, (tokenId) => words.text(tokenId)) : null,
    });
  } catch (error) {
    throw toClientError(error, CLIENT_NAMES);
  }
}

async function textOf({ engine, signal }: OpenAiContext, call: TokenizeCall): Promise<string> {
  if (call.messages === undefined) return call.prompt ?? '';
  return engine.renderChat(call.messages, call.chatOptions, { signal });
}

const MIN_TOKEN_TEXTS = 65_536;

/** The texts of tokens are made in the main thread. */
function checkTokenTexts(numTokens: number, maxModelLen: number): void {
  const max = Math.max(MIN_TOKEN_TEXTS, maxModelLen);
  if (numTokens > max)
    throw new ApiError('invalid_value', `return_token_strs: expected at most ${max} tokens, got ${numTokens}`, {
      param: 'return_token_strs',
    });
}

/** POST /detokenize: converts token ids to text, special tokens included. */
export async function detokenize(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model } = context;
  const call = await readCall('detokenize', request, context);
  model.responseName(call.model);
  try {
    sendJson(reply, { prompt: await engine.detokenizeAsync(call.tokens, { skipSpecialTokens: false }) });
  } catch (error) {
    throw toClientError(error, { token_ids: 'tokens' });
  }
}
