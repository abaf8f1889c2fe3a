import { checkObject, checkOneOf, checkPlainSchema, checkString } from '../checks';
import { CapstanError } from '../errors';

/** One message of a conversation. */
export interface ChatMessage {
  /** `developer` is rendered as `system` if the chat template does not know it. */
  role: 'system' | 'developer' | 'user' | 'assistant' | 'tool';
  /** A text, or text parts, which are joined by line breaks. Optional in assistant messages. */
  content?: string | readonly TextPart[] | null;
  /** Name of the participant, for templates that use it. */
  name?: string;
  /** Tool calls of an assistant message. */
  toolCalls?: readonly ToolCallInput[];
  /** Id of the tool call whose result a tool message holds. */
  toolCallId?: string;
  /** Reasoning of an assistant message. Most templates drop it from earlier turns. */
  reasoning?: string;
}

/** Part of a message. */
export interface TextPart {
  /** Kind of the part. */
  type: 'text';
  /** Its text. */
  text: string;
}

/** A tool call of an earlier turn. */
export interface ToolCallInput {
  /** Id of the call, to which the `toolCallId` of its result refers. Default: none. */
  id?: string;
  /** Name of the function. */
  name: string;
  /** An object, or the JSON text that the model wrote. */
  arguments: string | Readonly<Record<string, unknown>>;
}

/** A function that the model may call. */
export interface Tool {
  /** Kind of the tool. */
  type: 'function';
  /** The function. */
  function: {
    /** The name that the model calls it by. */
    name: string;
    /** What the function does, for the model. */
    description?: string;
    /** JSON Schema of the arguments. Default: no arguments. */
    parameters?: Readonly<Record<string, unknown>>;
    /** Constrains the arguments to `parameters`. Default: false. */
    strict?: boolean;
  };
}

/** A tool call of the model. */
export interface ToolCall {
  /** Id of the call, for the `toolCallId` of its result. */
  id: string;
  /** Name of the function. */
  name: string;
  /** JSON text of an object, as the model wrote it. */
  arguments: string;
}

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool'] as const;

/** @throws CapstanError `invalid_argument` that names the message and the field. */
export function checkMessages(messages: unknown): readonly ChatMessage[] {
  if (!Array.isArray(messages) || messages.length === 0)
    throw CapstanError.argument(
      'messages',
      "an array of at least one message such as { role: 'user', content: 'Hello!' }",
      messages,
    );
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

/**
 * Returns the tools without the name of their JSON Schema dialect, which clients such as the AI SDK and LangChain add,
 * and which only costs tokens in a prompt.
 * @throws CapstanError `invalid_argument` that names the tool and the field.
 */
export function checkTools(tools: unknown): readonly Tool[] {
  if (!Array.isArray(tools)) throw CapstanError.argument('tools', 'an array', tools);
  const names = new Set<string>();
  return tools.map((tool: unknown, i) => {
    const fields = checkObject(`tools[${i}]`, tool);
    checkOneOf(`tools[${i}].type`, fields.type, ['function']);
    const param = `tools[${i}].function`;
    const definition = checkObject(param, fields.function);
    const name = checkString(`${param}.name`, definition.name);
    if (names.has(name)) throw CapstanError.argument(`${param}.name`, 'a name that no other tool has', name);
    names.add(name);
    const { parameters } = definition;
    if (typeof parameters !== 'object' || parameters === null) return tool as Tool;
    const { $schema, ...schema } = checkPlainSchema(`${param}.parameters`, parameters);
    return $schema === undefined
      ? (tool as Tool)
      : ({ ...fields, function: { ...definition, parameters: schema } } as unknown as Tool);
  });
}

/** A message in the format of Hugging Face chat templates. */
export type TemplateMessage = Record<string, unknown>;

/** Differences between chat templates. */
export interface TemplateTraits {
  /** The template handles the role `developer`. */
  knowsDeveloper: boolean;
  /** The template concatenates the arguments of calls into the text, so they must be a string. */
  joinsArguments: boolean;
  /** The template takes a list of parts as the content of a user message. */
  knowsParts: boolean;
  /** The template expects null as the content of a message that has only tool calls: it drops calls beside text. */
  knowsNoContent: boolean;
}

/** Converts a message. Arguments become objects, because most templates print them with `tojson`. */
export function toTemplateMessage(
  message: ChatMessage,
  { knowsDeveloper, joinsArguments, knowsParts, knowsNoContent }: TemplateTraits,
  toPromptId = (id: string): string => id,
): TemplateMessage {
  const { role, name, toolCalls = [], toolCallId, reasoning } = message;
  const hasCalls = toolCalls.length > 0;
  const hasNoContent = knowsNoContent && hasCalls && (message.content?.length ?? 0) === 0;
  const keepsParts = knowsParts && role === 'user' && Array.isArray(message.content) && message.content.length > 1;
  const content = keepsParts ? message.content : joinContent(message.content);
  return {
    role: role === 'developer' && !knowsDeveloper ? 'system' : role,
    content: hasNoContent ? null : content,
    ...(name === undefined ? {} : { name }),
    // Templates read it by either name.
    ...(reasoning === undefined ? {} : { thinking: reasoning, reasoning_content: reasoning }),
    ...(hasCalls ? { tool_calls: toolCalls.map((call) => toTemplateToolCall(call, joinsArguments, toPromptId)) } : {}),
    ...(toolCallId === undefined ? {} : { tool_call_id: toPromptId(toolCallId) }),
  };
}

/** Returns the text of a message's content. */
export function joinContent(content: ChatMessage['content']): string {
  return typeof content === 'string' ? content : (content ?? []).map((part) => part.text).join('\n');
}

function toTemplateToolCall(
  { id, name, arguments: args }: ToolCallInput,
  asText: boolean,
  toPromptId: (id: string) => string,
): unknown {
  const asObject = (): unknown => (typeof args === 'string' ? parseArguments(args) : args);
  return {
    ...(id === undefined ? {} : { id: toPromptId(id) }),
    type: 'function',
    function: { name, arguments: asText ? toArgumentText(args) : asObject() },
  };
}

function toArgumentText(args: ToolCallInput['arguments']): string {
  return typeof args === 'string' ? args : JSON.stringify(args);
}

/** Returns text that is not a JSON object unchanged. */
export function parseArguments(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : text;
  } catch {
    return text;
  }
}
