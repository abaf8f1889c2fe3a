import type { ChatMessage } from '../../../ts';
import { withSystemFirst } from '../conversation/system-message';
import { readable, REFERENCE, required, resultOf, textsOf, unsupported } from './block-text';
import type { ContentBlock, ConversationRequest, WireMessage } from './schema';

/**
 * Claude Code begins the system prompt with such a line. It is for Anthropic's accounting, and it changes with each
 * request, so that the prefix cache would find nothing.
 */
const ACCOUNTING = /^x-anthropic-billing-header:[^\n]*\n?/;

/** Converts `system` and `messages`. Throws an ApiError that names the first block that the model cannot read. */
export function toMessages({ system, messages }: Pick<ConversationRequest, 'system' | 'messages'>): ChatMessage[] {
  const instructions = system === undefined ? [] : textsOf(system, 'system');
  const text = instructions
    .map((part) => part.replace(ACCOUNTING, ''))
    .filter((part) => part !== '')
    .join('\n');
  return withSystemFirst(
    text === '' ? undefined : text,
    messages.flatMap((message, i) => toTurn(message, `messages[${i}].content`)),
  );
}

/** Whether the model continues the last message instead of starting a new one. */
export function isPrefilled(messages: readonly WireMessage[]): boolean {
  return messages.at(-1)?.role === 'assistant';
}

/** Returns the names of the tools that results of the client's tool search refer to, each once. */
export function foundTools(messages: readonly WireMessage[]): string[] {
  const names = new Set<string>();
  for (const { content } of messages)
    for (const block of typeof content === 'string' ? [] : content)
      for (const { type, tool_name: name } of typeof block.content === 'object' ? block.content : [])
        if (type === REFERENCE && name !== undefined) names.add(name);
  return [...names];
}

function toTurn({ role, content }: WireMessage, path: string): ChatMessage[] {
  if (typeof content === 'string') return [{ role, content }];
  return role === 'assistant' ? [assistantTurn(content, path)] : userTurn(role, content, path);
}

function assistantTurn(content: readonly ContentBlock[], path: string): ChatMessage {
  const texts: string[] = [];
  const thoughts: string[] = [];
  const toolCalls: NonNullable<ChatMessage['toolCalls']>[number][] = [];
  content.forEach((block, i) => {
    const at = `${path}[${i}]`;
    switch (block.type) {
      case 'text':
        return texts.push(required(block.text, `${at}.text`));
      case 'thinking':
        return thoughts.push(required(block.thinking, `${at}.thinking`));
      case 'redacted_thinking':
        return;
      case 'tool_use':
        return toolCalls.push({
          id: required(block.id, `${at}.id`),
          name: required(block.name, `${at}.name`),
          arguments: required(block.input, `${at}.input`),
        });
      default:
        throw unsupported(block.type, 'text, thinking, redacted_thinking or tool_use', at);
    }
  });
  return {
    role: 'assistant',
    content: texts.join('\n'),
    ...(thoughts.length === 0 ? {} : { reasoning: thoughts.join('\n') }),
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
  };
}

/** Each result is a message. Texts before, between and after results are messages, too. */
function userTurn(role: 'user' | 'system', content: readonly ContentBlock[], path: string): ChatMessage[] {
  const turn: ChatMessage[] = [];
  let texts: string[] = [];
  const endText = () => {
    if (texts.length > 0) turn.push({ role, content: texts.map((text) => ({ type: 'text', text })) });
    texts = [];
  };
  content.forEach((block, i) => {
    const at = `${path}[${i}]`;
    if (block.type !== 'tool_result') {
      return texts.push(readable(block, at, 'text, document, search_result or tool_result'));
    }
    endText();
    const text = resultOf(block.content ?? '', `${at}.content`).join('\n');
    turn.push({
      role: 'tool',
      content: block.is_error === true ? `Error: ${text}` : text,
      toolCallId: required(block.tool_use_id, `${at}.tool_use_id`),
    });
  });
  endText();
  return turn;
}
