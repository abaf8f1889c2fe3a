import type { AIMessage, BaseMessage, ToolMessage } from '@langchain/core/messages';
import { CapstanError } from '../errors';
import type { Choice, Usage } from '../events';
import type { ChatMessage, TextPart } from '../text/messages';

/** @throws CapstanError `invalid_argument` for content that is not text. */
export function toMessages(messages: readonly BaseMessage[]): ChatMessage[] {
  return messages.map((message, i): ChatMessage => {
    const content = toContent(message.content, `messages[${i}].content`);
    const name = message.name === undefined ? {} : { name: message.name };
    switch (message.getType()) {
      case 'system':
        return { role: 'system', content, ...name };
      case 'human':
        return { role: 'user', content, ...name };
      case 'ai':
        return toAssistant(message as AIMessage, content);
      case 'tool':
        return { role: 'tool', content, toolCallId: (message as ToolMessage).tool_call_id, ...name };
      case 'generic':
        return { role: (message as unknown as { role: ChatMessage['role'] }).role, content, ...name };
      default:
        throw CapstanError.argument(`messages[${i}]`, 'a system, human, ai, tool or chat message', message.getType());
    }
  });
}

function toContent(content: BaseMessage['content'], path: string): string | TextPart[] {
  if (typeof content === 'string') return content;
  return content.flatMap((block, j): TextPart[] => {
    if (block.type === 'text') return [{ type: 'text', text: String(block.text) }];
    // Calls and reasoning of an answer are fields of its message.
    if (block.type === 'tool_call' || block.type === 'reasoning') return [];
    throw CapstanError.argument(`${path}[${j}].type`, 'text', block.type);
  });
}

function toAssistant({ tool_calls: calls = [], additional_kwargs: extra }: AIMessage, content: ChatMessage['content']) {
  const { reasoning_content: reasoning } = extra as { reasoning_content?: unknown };
  return {
    role: 'assistant' as const,
    content,
    ...(typeof reasoning === 'string' ? { reasoning } : {}),
    ...(calls.length === 0
      ? {}
      : { toolCalls: calls.map(({ id, name, args }) => ({ id, name, arguments: args as Record<string, unknown> })) }),
  };
}

/** The calls of a choice whose arguments are JSON, and those whose arguments are not, because they were cut off. */
export function toToolCalls({ toolCalls }: Choice) {
  const valid: { id: string; name: string; args: Record<string, unknown>; type: 'tool_call' }[] = [];
  const invalid: { id: string; name: string; args: string; error: string; type: 'invalid_tool_call' }[] = [];
  for (const { id, name, arguments: text } of toolCalls) {
    try {
      valid.push({ id, name, args: JSON.parse(text) as Record<string, unknown>, type: 'tool_call' });
    } catch (error) {
      invalid.push({ id, name, args: text, error: (error as Error).message, type: 'invalid_tool_call' });
    }
  }
  return { tool_calls: valid, invalid_tool_calls: invalid };
}

export function toUsageMetadata({ promptTokens, completionTokens, totalTokens, cachedTokens, reasoningTokens }: Usage) {
  return {
    input_tokens: promptTokens,
    output_tokens: completionTokens,
    total_tokens: totalTokens,
    input_token_details: { cache_read: cachedTokens },
    ...(reasoningTokens === undefined ? {} : { output_token_details: { reasoning: reasoningTokens } }),
  };
}
