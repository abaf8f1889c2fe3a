import type { HttpReply, HttpRequest } from '../../http/transport';
import { toClientError } from './call';
import type { OpenAiContext } from './context';
import { TokenWords } from './logprobs';
import { readCall } from './read-call';
import { CLIENT_NAMES } from './sampling-request';
import { sendJson } from './send-json';
import type { TokenizeCall } from './tokenize-request';
import { mapInTurns } from './turns';

/** POST /tokenize: tokenizes a text, or a conversation rendered by the chat template. */
export async function tokenize(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model } = context;
  const call = await readCall('tokenize', request, context);
  model.responseName(call.model);
  try {
    const tokenIds = await engine.tokenize(await textOf(engine, call), { addSpecialTokens: call.addSpecialTokens });
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

async function textOf(engine: OpenAiContext['engine'], call: TokenizeCall): Promise<string> {
  return call.messages === undefined ? (call.prompt ?? '') : engine.renderChat(call.messages, call.chatOptions);
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
