import type { ChatEvent, ChatOptions, Generation, Messages, Submission } from '../../../ts';
import { callContext, toClientError } from '../openai/call';
import type { OpenAiContext } from '../openai/context';

/** A request of any interface as a conversation of the library. */
export interface ConversationCall {
  model: string | undefined;
  messages: Messages;
  options: ChatOptions;
  cacheSalt: string | undefined;
  /** Client names of library fields, for errors. */
  names: Readonly<Record<string, string>>;
}

/**
 * Generates the next message of a conversation and passes it to `use`. The generation ends with `use`. Throws errors
 * with the client's field names.
 * @param id The id of the response.
 */
export async function generateChat(
  context: OpenAiContext,
  { messages, options, cacheSalt, names, model: name }: ConversationCall,
  id: string,
  use: (generation: Generation<ChatEvent>, submission: Submission) => Promise<void>,
): Promise<void> {
  const { engine, model, identity } = context;
  engine.checkCapacity(context);
  const adapter = model.adapterOf(name);
  const generation = engine.chat(
    messages,
    adapter === undefined ? options : { ...options, adapter },
    callContext(context, id, cacheSalt),
  );
  try {
    await use(generation, await generation.submitted);
  } catch (error) {
    throw toClientError(error, names);
  } finally {
    generation.abort();
    identity.done(generation.numTokens);
  }
}
