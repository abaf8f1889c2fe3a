import { ApiError } from '../../base/errors';
import type { ChatMessage, TextPart } from '../../../ts';

/**
 * Returns the messages with one system message at most, at the beginning, because many chat templates refuse others.
 * Leading system messages become one. Later ones become user messages. Adjacent user messages become one, because
 * some chat templates demand that the roles alternate.
 * @param instructions Comes first.
 */
export function withSystemFirst(instructions: string | undefined, messages: readonly ChatMessage[]): ChatMessage[] {
  const firstOther = messages.findIndex(({ role }) => role !== 'system');
  const numLeading = firstOther < 0 ? messages.length : firstOther;
  const texts = [...(instructions === undefined ? [] : [instructions]), ...messages.slice(0, numLeading).map(textOf)];
  return [
    ...(texts.length === 0 ? [] : [{ role: 'system' as const, content: texts.join('\n\n') }]),
    ...withJoinedUsers(
      messages
        .slice(numLeading)
        .map((message): ChatMessage => (message.role === 'system' ? { ...message, role: 'user' } : message)),
    ),
  ];
}

function withJoinedUsers(messages: readonly ChatMessage[]): ChatMessage[] {
  const runs: ChatMessage[][] = [];
  for (const message of messages) {
    const run = runs.at(-1);
    if (message.role === 'user' && run?.[0].role === 'user') run.push(message);
    else runs.push([message]);
  }
  return runs.map((run) => (run.length === 1 ? run[0] : { ...run[0], content: run.flatMap(partsOf) }));
}

function partsOf({ content }: ChatMessage): readonly TextPart[] {
  return typeof content === 'string' ? [{ type: 'text', text: content }] : (content ?? []);
}

function textOf({ content }: ChatMessage): string {
  return typeof content === 'string' ? content : (content ?? []).map(({ text }) => text).join('\n');
}

/** Throws an ApiError for a conversation without messages. */
export function checkNotEmpty(messages: readonly ChatMessage[], param: string): void {
  if (messages.length === 0)
    throw new ApiError('invalid_value', `${param}: expected at least one message, got none`, { param });
}
