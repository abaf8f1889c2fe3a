/** One message of a conversation. */
export interface ChatMessage {
  /** `developer` is rendered as `system` where the template does not know it. */
  role: 'system' | 'developer' | 'user' | 'assistant' | 'tool';
  /** Text, or parts of it, which are joined by line breaks; may be left out beside tool calls. */
  content?: string | readonly TextPart[] | null;
  name?: string;
  /** Of an assistant's message: the calls that it made. */
  toolCalls?: readonly ToolCallInput[];
  /** Of a tool's message: the call that it answers. */
  toolCallId?: string;
  /** Of an assistant's message: its reasoning, which most templates drop from earlier turns. */
  reasoning?: string;
}

export interface TextPart {
  type: 'text';
  text: string;
}

/** A call that an earlier turn made: its arguments as an object or as the JSON text that the model wrote. */
export interface ToolCallInput {
  id?: string;
  name: string;
  arguments: string | Readonly<Record<string, unknown>>;
}

/** A function that the model may call. */
export interface Tool {
  type: 'function';
  function: {
    name: string;
    description?: string;
    /** JSON Schema of the arguments. */
    parameters?: Readonly<Record<string, unknown>>;
    strict?: boolean;
  };
}

/** A call that the model asks for. */
export interface ToolCall {
  id: string;
  name: string;
  /** JSON text, as the model wrote it. */
  arguments: string;
}

/** A message as Hugging Face's templates read it. */
export type TemplateMessage = Record<string, unknown>;

/** The spelling that templates were written for; arguments become objects, which templates print by `tojson`. */
export function toTemplateMessage(message: ChatMessage, knowsDeveloper: boolean): TemplateMessage {
  const { role, name, toolCalls, toolCallId, reasoning } = message;
  return {
    role: role === 'developer' && !knowsDeveloper ? 'system' : role,
    content: joinContent(message.content),
    ...(name === undefined ? {} : { name }),
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(toolCalls === undefined || toolCalls.length === 0 ? {} : { tool_calls: toolCalls.map(toTemplateToolCall) }),
    ...(toolCallId === undefined ? {} : { tool_call_id: toolCallId }),
  };
}

function joinContent(content: ChatMessage['content']): string {
  return typeof content === 'string' ? content : (content ?? []).map((part) => part.text).join('\n');
}

function toTemplateToolCall({ id, name, arguments: args }: ToolCallInput): unknown {
  return { ...(id === undefined ? {} : { id }), type: 'function', function: { name, arguments: typeof args === 'string' ? parseArguments(args) : args } };
}

/** Text that is no JSON object goes to the template as it is. */
function parseArguments(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : text;
  } catch {
    return text;
  }
}
