import type { Tool, ToolChoice } from '../../../ts';
import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';
import { checkGrammar, customFunction } from '../conversation/custom-tools';
import { checkNamed, type ConvertedTools, convertTools, invalidChoice, type ReadTool } from '../conversation/tools';
import type { ResponsesRequest, WireTool } from './schema';

export interface ResponsesTools extends ConvertedTools {
  /** Names of tools whose calls are returned as `custom_tool_call`. */
  customNames: readonly string[];
}

const SERVED = ['function', 'custom'];

/** Reads `tools` and `tool_choice`. Throws an ApiError for an invalid tool, or a choice that is not possible. */
export function readTools({ tools = [], tool_choice: choice }: ResponsesRequest): ResponsesTools {
  const converted = convertTools(tools.map(readTool), (type) => SERVED.includes(type), 'parameters');
  const customNames = tools.flatMap(({ type, name = '' }) => (type === 'custom' ? [name] : []));
  if (typeof choice === 'object' && choice.type === 'allowed_tools') {
    const allowed = onlyAllowed(converted, choice.tools ?? []);
    return { ...allowed, customNames, toolChoice: namedChoice(choice.mode ?? 'auto', allowed.tools) };
  }
  return { ...converted, customNames, toolChoice: toToolChoice(choice, converted) };
}

function readTool({ type, name, description, parameters, strict, format = {} }: WireTool, index: number): ReadTool {
  if (type !== 'custom') return { type, name, description, parameters, strict };
  checkGrammar(format, `tools[${index}].format.definition`);
  return { type, ...customFunction({ name, description, grammar: format }) };
}

type Choice = ResponsesRequest['tool_choice'];
type Converted = Omit<ConvertedTools, 'toolChoice'>;

function toToolChoice(choice: Choice, { tools, droppedTypes }: Converted): ToolChoice | undefined {
  if (choice === undefined) return undefined;
  if (typeof choice === 'string') return namedChoice(choice, tools);
  if (!SERVED.includes(choice.type)) throw notServed(choice.type, droppedTypes);
  return { name: checkNamed(tools, choice.name, 'tool_choice.name') };
}

function namedChoice(choice: string, tools: readonly Tool[]): ToolChoice {
  if (choice === 'auto' || choice === 'none') return choice;
  if (choice !== 'required') throw invalidChoice('none, auto, required or a tool', choice);
  if (tools.length === 0) throw invalidChoice('none or auto, because there are no tools that this server has', choice);
  return choice;
}

function onlyAllowed(converted: Converted, allowed: readonly Readonly<Record<string, unknown>>[]): Converted {
  const names = allowed.map(({ type, name }, i) => {
    if (typeof type === 'string' && !SERVED.includes(type)) throw notServed(type, converted.droppedTypes);
    return checkNamed(converted.tools, typeof name === 'string' ? name : undefined, `tool_choice.tools[${i}].name`);
  });
  const kept = converted.tools.flatMap((tool, i) => (names.includes(tool.function.name) ? [i] : []));
  return {
    ...converted,
    tools: kept.map((i) => converted.tools[i]),
    places: kept.map((i) => converted.places[i]),
  };
}

function notServed(type: string, droppedTypes: readonly string[]): ApiError {
  const message = droppedTypes.includes(type)
    ? `tool_choice: this server has no tools of the type ${show(type)}; expected the type function or custom`
    : `tool_choice: expected the type function, custom or allowed_tools, got ${show(type)}`;
  return new ApiError('unsupported_value', message, { param: 'tool_choice' });
}
