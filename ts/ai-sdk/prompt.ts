import type {
  LanguageModelV4Message,
  LanguageModelV4Prompt,
  LanguageModelV4ToolResultOutput,
} from '@ai-sdk/provider' with { 'resolution-mode': 'import' };
import { CapstanError } from '../errors';
import type { ChatMessage, TextPart, ToolCallInput } from '../text/messages';

type Part<Role extends LanguageModelV4Message['role']> = Exclude<
  Extract<LanguageModelV4Message, { role: Role }>['content'],
  string
>[number];

/** @throws CapstanError `invalid_argument` for content that is not text. */
export function toMessages(prompt: LanguageModelV4Prompt): ChatMessage[] {
  return prompt.flatMap((message, i): ChatMessage[] => {
    const path = `prompt[${i}]`;
    switch (message.role) {
      case 'system':
        return [{ role: 'system', content: message.content }];
      case 'user':
        return [{ role: 'user', content: message.content.map((part, j) => toText(part, `${path}.content[${j}]`)) }];
      case 'assistant':
        return [toAssistant(message.content, path)];
      case 'tool':
        return message.content.flatMap((part): ChatMessage[] =>
          part.type === 'tool-result'
            ? [{ role: 'tool', toolCallId: part.toolCallId, name: part.toolName, content: resultText(part.output) }]
            : [],
        );
    }
  });
}

function toText(part: Part<'user'>, path: string): TextPart {
  if (part.type === 'text') return { type: 'text', text: part.text };
  if (part.data.type === 'text') return { type: 'text', text: part.data.text };
  throw CapstanError.unexpected('invalid_argument', path, 'text', `a file of type ${part.mediaType}`);
}

function toAssistant(parts: readonly Part<'assistant'>[], path: string): ChatMessage {
  let [text, reasoning] = ['', ''];
  const toolCalls: ToolCallInput[] = [];
  parts.forEach((part, j) => {
    if (part.type === 'text') text += part.text;
    else if (part.type === 'reasoning') reasoning += part.text;
    else if (part.type === 'tool-call')
      toolCalls.push({ id: part.toolCallId, name: part.toolName, arguments: argumentsOf(part.input) });
    else throw CapstanError.argument(`${path}.content[${j}].type`, 'text, reasoning or tool-call', part.type);
  });
  return {
    role: 'assistant',
    content: text,
    ...(reasoning === '' ? {} : { reasoning }),
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
  };
}

function argumentsOf(input: unknown): string {
  return typeof input === 'string' ? input : JSON.stringify(input ?? {});
}

function resultText(output: LanguageModelV4ToolResultOutput): string {
  switch (output.type) {
    case 'text':
      return output.value;
    case 'error-text':
      return `Error: ${output.value}`;
    case 'json':
      return JSON.stringify(output.value);
    case 'error-json':
      return `Error: ${JSON.stringify(output.value)}`;
    case 'execution-denied':
      return output.reason ?? 'The call was denied';
    case 'content':
      return output.value
        .map((part) => (part.type === 'text' ? part.text : `[a part of type ${part.type} that is not text]`))
        .join('\n');
  }
}
