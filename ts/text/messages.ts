import { checkObject, checkOneOf, checkString } from '../checks';
import { CapstanError } from '../errors';

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

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool'] as const;

/** @throws CapstanError `invalid_argument` naming the message and field that is wrong. */
export function checkMessages(messages: unknown): readonly ChatMessage[] {
  if (!Array.isArray(messages) || messages.length === 0)
    throw CapstanError.argument('messages', 'an array of at least one message', messages);
  messages.forEach((message: unknown, i) => checkMessage(checkObject(`messages[${i}]`, message), `messages[${i}]`));
  return messages as ChatMessage[];
}

function checkMessage(message: Record<string, unknown>, path: string): void {
  checkOneOf(`${path}.role`, message.role, ROLES);
  for (const field of ['name', 'toolCallId', 'reasoning'])
    if (message[field] !== undefined) checkString(`${path}.${field}`, message[field]);
  const { content, toolCalls } = message;
  if (Array.isArray(content)) content.forEach((part: unknown, i) => checkPart(part, `${path}.content[${i}]`));
  else if (content !== undefined && content !== null) checkString(`${path}.content`, content);
  else if (message.role !== 'assistant')
    throw CapstanError.argument(`${path}.content`, 'a string or an array of text parts', content);
  if (toolCalls === undefined) return;
  if (!Array.isArray(toolCalls)) throw CapstanError.argument(`${path}.toolCalls`, 'an array', toolCalls);
  toolCalls.forEach((call: unknown, i) => {
    const { id, name, arguments: args } = checkObject(`${path}.toolCalls[${i}]`, call);
    checkString(`${path}.toolCalls[${i}].name`, name);
    if (id !== undefined) checkString(`${path}.toolCalls[${i}].id`, id);
    if (typeof args !== 'string') checkObject(`${path}.toolCalls[${i}].arguments`, args);
  });
}

function checkPart(part: unknown, path: string): void {
  const { type, text } = checkObject(path, part);
  if (type !== 'text') throw CapstanError.argument(`${path}.type`, 'text', type);
  checkString(`${path}.text`, text);
}

/** @throws CapstanError `invalid_argument` naming the tool and field that is wrong. */
export function checkTools(tools: unknown): readonly Tool[] {
  if (!Array.isArray(tools)) throw CapstanError.argument('tools', 'an array', tools);
  tools.forEach((tool: unknown, i) => {
    const { type, function: definition } = checkObject(`tools[${i}]`, tool);
    checkOneOf(`tools[${i}].type`, type, ['function']);
    checkString(`tools[${i}].function.name`, checkObject(`tools[${i}].function`, definition).name);
  });
  return tools as Tool[];
}

/** A message as Hugging Face's templates read it. */
export type TemplateMessage = Record<string, unknown>;

/** In what templates differ. */
export interface TemplateTraits {
  /** The role `developer` is one of its own. */
  knowsDeveloper: boolean;
  /** Arguments of calls are put into the text as they are, so that they must be text. */
  joinsArguments: boolean;
  /** A message that is calls only has null as its content. */
  knowsNoContent: boolean;
}

/** The spelling that templates were written for; arguments become objects, which most templates print by `tojson`, and ids what the model's calls have. */
export function toTemplateMessage(
  message: ChatMessage,
  { knowsDeveloper, joinsArguments, knowsNoContent }: TemplateTraits,
  toPromptId = (id: string): string => id,
): TemplateMessage {
  const { role, name, toolCalls = [], toolCallId, reasoning } = message;
  const hasCalls = toolCalls.length > 0;
  return {
    role: role === 'developer' && !knowsDeveloper ? 'system' : role,
    content: knowsNoContent && hasCalls && (message.content ?? null) === null ? null : joinContent(message.content),
    ...(name === undefined ? {} : { name }),
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(hasCalls ? { tool_calls: toolCalls.map((call) => toTemplateToolCall(call, joinsArguments, toPromptId)) } : {}),
    ...(toolCallId === undefined ? {} : { tool_call_id: toPromptId(toolCallId) }),
  };
}

function joinContent(content: ChatMessage['content']): string {
  return typeof content === 'string' ? content : (content ?? []).map((part) => part.text).join('\n');
}

function toTemplateToolCall(
  { id, name, arguments: args }: ToolCallInput,
  asText: boolean,
  toPromptId: (id: string) => string,
): unknown {
  const written = asText ? toArgumentText(args) : typeof args === 'string' ? parseArguments(args) : args;
  return {
    ...(id === undefined ? {} : { id: toPromptId(id) }),
    type: 'function',
    function: { name, arguments: written },
  };
}

function toArgumentText(args: ToolCallInput['arguments']): string {
  return typeof args === 'string' ? args : JSON.stringify(args);
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
