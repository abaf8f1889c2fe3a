/** The tools of chat completions: functions and custom tools. */
import type { Tool, ToolChoice } from '../../../ts';
import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';
import { checkGrammar, customFunction } from '../conversation/custom-tools';
import type { ChatCompletionRequest, WireTool } from './schema';
import { withoutUndefined } from './sampling-request';
import { checkNumbers } from './structured-output';

/** A tool or a tool call, whose type says which field it needs. */
interface OneOfTwo<Function, Custom> {
  type?: 'function' | 'custom';
  function?: Function;
  custom?: Custom;
}

/** Throws an ApiError for an object without the field that its type names. */
export function checkPart(path: string, value: OneOfTwo<unknown, unknown>): void {
  const { type = 'function' } = value;
  if (value[type] === undefined) throw missing(`${path}.${type}`);
}

/** Throws an ApiError that names the first tool without a definition, or with numbers that are not finite. */
export function checkTools(tools: readonly WireTool[]): void {
  tools.forEach((tool, i) => {
    checkPart(`tools[${i}]`, tool);
    checkGrammar(grammarOf(tool.custom?.format), `tools[${i}].custom.format.grammar.definition`);
    checkNumbers(`tools[${i}].function.parameters`, tool.function?.parameters);
  });
}

/** Returns the functions of the library for tools that `checkTools` has accepted. */
export function toTools(tools: readonly WireTool[]): Tool[] {
  return tools.map(({ type, function: definition, custom }) => {
    if (type === 'function') return { type, function: definition! };
    const { name, description, format } = custom!;
    const asFunction = withoutUndefined(customFunction({ name, description, grammar: grammarOf(format) }));
    return { type: 'function', function: { ...asFunction, name } };
  });
}

/** Chat completions have the fields of a grammar in a separate object. */
function grammarOf(format: Readonly<Record<string, unknown>> = {}): Readonly<Record<string, unknown>> {
  const { grammar } = format;
  return typeof grammar === 'object' && grammar !== null ? (grammar as Record<string, unknown>) : {};
}

/** Returns the names of tools whose calls have the type `custom`. */
export function customNames(tools: readonly WireTool[] = []): string[] {
  return tools.flatMap(({ type, custom }) => (type === 'custom' ? [custom!.name] : []));
}

function nameOf({ type, ...parts }: WireTool): string {
  return parts[type]!.name;
}

/** Converts the older `functions` and `function_call` to `tools` and `tool_choice`. */
export function withTools(request: ChatCompletionRequest): ChatCompletionRequest {
  const { functions, function_call: call, tools, tool_choice: choice, ...rest } = request;
  if (tools !== undefined)
    return request.functions === undefined
      ? request
      : { ...rest, tools, ...(choice === undefined ? {} : { tool_choice: choice }) };
  const asTools = functions?.map((definition): WireTool => ({ type: 'function', function: definition }));
  const asChoice = choice ?? (typeof call === 'object' ? { type: 'function', function: call } : call);
  return {
    ...rest,
    ...(asTools === undefined ? {} : { tools: asTools, functions }),
    ...(asChoice === undefined ? {} : { tool_choice: asChoice }),
  };
}

/** Throws an ApiError for a tool of another type, because the model would not see it. */
export function checkToolTypes(body: unknown): void {
  const { tools } = (body ?? {}) as { tools?: unknown };
  if (!Array.isArray(tools)) return;
  for (const [i, tool] of tools.entries()) {
    const type = (tool as { type?: unknown } | null)?.type;
    if (typeof type !== 'string' || type === 'function' || type === 'custom') continue;
    const param = `tools[${i}].type`;
    throw new ApiError('invalid_value', `${param}: expected function or custom, got ${show(type)}`, { param });
  }
}

interface AllowedTools {
  request: ChatCompletionRequest;
  /** For each tool, its path in the request of the client. */
  toolPaths: readonly string[];
}

/** Applies a `tool_choice` of the type `allowed_tools`: keeps only its tools, and its mode becomes the choice. */
export function withAllowedTools(request: ChatCompletionRequest): AllowedTools {
  const { tools = [], tool_choice: choice } = request;
  const paths = tools.map(({ type }, i) => `tools[${i}].${type}`);
  if (typeof choice !== 'object' || choice.type !== 'allowed_tools') return { request, toolPaths: paths };
  const { allowed_tools: allowed } = choice;
  const param = 'tool_choice.allowed_tools';
  if (allowed === undefined) throw missing(param);
  const { mode = 'auto' } = allowed;
  if (mode !== 'auto' && mode !== 'required')
    throw new ApiError('invalid_value', `${param}.mode: expected auto or required, got ${show(mode)}`, {
      param: `${param}.mode`,
    });
  const names = allowed.tools.map((named, i) => {
    const part = named.type === 'custom' ? 'custom' : 'function';
    const name = (named[part] as { name?: unknown } | undefined)?.name;
    if (tools.some((tool) => nameOf(tool) === name)) return name;
    const path = `${param}.tools[${i}].${part}.name`;
    throw new ApiError('invalid_value', `${path}: expected the name of a tool in the request, got ${show(name)}`, {
      param: path,
    });
  });
  const places = tools.flatMap((tool, i) => (names.includes(nameOf(tool)) ? [i] : []));
  return {
    request: { ...request, tools: places.map((i) => tools[i]), tool_choice: names.length === 0 ? 'none' : mode },
    toolPaths: places.map((i) => paths[i]),
  };
}

/** Returns the choice for the library. Throws an ApiError for one that is not possible. */
export function toToolChoice({
  tools = [],
  tool_choice: choice,
  functions,
}: ChatCompletionRequest): ToolChoice | undefined {
  const param = functions === undefined ? 'tool_choice' : 'function_call';
  const invalid = (expected: string, received: unknown) =>
    new ApiError('invalid_value', `${param}: expected ${expected}, got ${show(received)}`, { param });
  if (choice === undefined) return undefined;
  if (typeof choice === 'string' && choice !== 'none' && choice !== 'auto' && choice !== 'required')
    throw invalid('none, auto, required or a tool', choice);
  if (typeof choice === 'object' && choice.type !== 'function' && choice.type !== 'custom')
    throw invalid('the type function, custom or allowed_tools', choice.type);
  if (choice !== 'none' && tools.length === 0) throw invalid('none, because there are no tools', choice);
  if (typeof choice === 'string') return choice;
  const part = choice.type === 'custom' ? 'custom' : 'function';
  const name = choice[part]?.name;
  if (name === undefined) throw missing(`${param}.${part}.name`);
  if (!tools.some((tool) => nameOf(tool) === name)) throw invalid('the name of a tool in the request', name);
  return { name };
}

function missing(param: string): ApiError {
  return new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
}
