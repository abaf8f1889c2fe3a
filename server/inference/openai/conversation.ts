import type { ChatMessage, Tool, ToolCallInput } from '../../../ts';
import { ApiError } from '../../base/errors';
import { checkPart, checkTools, toTools } from './chat-tools';
import type { ConversationFields, WireMessage, WireToolCall } from './schema';
import { show } from '../../base/json/validate';

/** Throws an ApiError that names the invalid message and field. */
export function checkConversation({
  messages,
  tools = [],
  add_generation_prompt: addsPrompt,
  continue_final_message: continues,
}: ConversationFields): void {
  messages.forEach((message, i) => {
    checkContent(message, i);
    message.tool_calls?.forEach((call, j) => checkPart(`messages[${i}].tool_calls[${j}]`, call));
  });
  checkTools(tools);
  if (addsPrompt === true && continues === true) {
    throw new ApiError('invalid_value', 'continue_final_message: expected false with add_generation_prompt, got true', {
      param: 'continue_final_message',
    });
  }
}

function checkContent({ role, content }: WireMessage, index: number): void {
  const param = `messages[${index}].content`;
  if (content === undefined && role !== 'assistant') throw missing(param);
  if (!Array.isArray(content)) return;
  content.forEach((part, i) => {
    if (part.type === 'refusal' && role === 'assistant') {
      if (part.refusal === undefined) throw missing(`${param}[${i}].refusal`);
      return;
    }
    if (part.type !== 'text')
      throw new ApiError(
        'unsupported_value',
        `${param}[${i}].type: expected text, the only input of this model, got ${show(part.type)}`,
        { param: `${param}[${i}].type` },
      );
    if (part.text === undefined) throw missing(`${param}[${i}].text`);
  });
}

function missing(param: string): ApiError {
  return new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
}

/** Converts a message to the library's form. The older `function_call` becomes one tool call. */
export function toMessage(message: WireMessage): ChatMessage {
  const {
    role,
    content,
    name,
    tool_calls: toolCalls,
    function_call: functionCall,
    tool_call_id: toolCallId,
    reasoning,
    reasoning_content: reasoningContent,
  } = message;
  const calls = toolCalls ?? (functionCall === undefined ? undefined : [{ function: functionCall }]);
  return {
    role: role === 'function' ? 'tool' : role,
    content:
      typeof content === 'string'
        ? content
        : content?.map((part) => ({
            type: 'text' as const,
            text: (part.type === 'refusal' ? part.refusal : part.text) ?? '',
          })),
    name,
    toolCalls: calls?.map(toToolCall),
    toolCallId,
    reasoning: reasoning ?? reasoningContent,
  };
}

function toToolCall({ id, type, function: called, custom }: WireToolCall): ToolCallInput {
  if (type === 'custom') return { id, name: custom!.name, arguments: { input: custom!.input } };
  return { id, name: called!.name, arguments: called!.arguments };
}

/** Returns the options that the chat template uses. */
export function conversationOptions({
  tools,
  add_generation_prompt: addGenerationPrompt,
  continue_final_message: continueFinalMessage,
}: Partial<ConversationFields>): {
  tools?: readonly Tool[];
  addGenerationPrompt?: boolean;
  continueFinalMessage?: boolean;
} {
  return {
    ...(tools === undefined ? {} : { tools: toTools(tools) }),
    ...(addGenerationPrompt === undefined ? {} : { addGenerationPrompt }),
    ...(continueFinalMessage === undefined ? {} : { continueFinalMessage }),
  };
}
