import type { ChatMessage, Messages } from '../../../ts';
import type { History } from '../../storage/responses/history';
import type { StoredResponse } from '../../storage/responses/store';
import { checkNotEmpty, withSystemFirst } from '../conversation/system-message';
import { toMessages } from './input-items';
import type { ResponsesCall } from './request';
import type { InputItem } from './schema';

/** A stored response with the messages of its turn: those of the input and the model's. */
export interface StoredTurn extends StoredResponse {
  messages: readonly ChatMessage[];
}

/**
 * Returns the conversation of a request, and the messages that this request adds to it. Earlier responses count without
 * their instructions.
 */
export async function conversationOf(
  history: History,
  { messages, instructions, items, previousResponseId }: ResponsesCall,
): Promise<{ messages: Messages; own: () => readonly ChatMessage[] }> {
  if (messages !== undefined) return { messages, own: () => toMessages(items) };
  const own = toMessages(await history.withoutReferences<InputItem>(items));
  const turns = previousResponseId === undefined ? [] : await history.turnsUpTo(previousResponseId);
  const earlier = turns.flatMap((turn) => (turn as StoredTurn).messages);
  const all = withSystemFirst(instructions, [...earlier, ...own]);
  checkNotEmpty(all, 'input');
  return { messages: all, own: () => own };
}
