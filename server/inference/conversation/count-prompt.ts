import type { Messages } from '../../../ts';
import { toClientError } from '../openai/call';
import type { OpenAiContext } from '../openai/context';
import type { ConversationCall } from './generate-chat';

/** Returns the number of tokens of a conversation's prompt. Throws errors with the client's field names. */
export async function countPrompt(
  { engine, model, signal }: OpenAiContext,
  { model: name, options, names }: Omit<ConversationCall, 'messages'>,
  messages: Messages,
): Promise<number> {
  model.responseName(name);
  try {
    const text = await engine.renderChat(messages, options, { signal });
    return (await engine.tokenize(text, { addSpecialTokens: false }, { signal })).length;
  } catch (error) {
    throw toClientError(error, names);
  }
}
