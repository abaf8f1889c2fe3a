import type { Tool, ToolChoice } from '../../../ts';
import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';
import { checkGrammar, customFunction } from '../conversation/custom-tools';
import {
  checkNamed,
  type ConvertedTools,
  convertTools,
  invalidChoice,
  pickTools,
  type ReadTool,
  requiredName,
} from '../conversation/tools';
import type { InnerTool, ResponsesRequest, WireTool } from './schema';

/** The name of a tool in its interface. A namespace groups tools. */
interface ToolName {
  namespace?: string;
  name: string;
}

/** How the calls of a tool are returned. */
export interface CallForm extends ToolName {
  type: 'function_call' | 'custom_tool_call';
}

/** By the name that the model has for the tool. A tool without an entry is a plain function. */
export type CallForms = ReadonlyMap<string, CallForm>;

export interface ResponsesTools extends ConvertedTools {
  callForms: CallForms;
}

const SERVED = ['function', 'custom'];

/** Reads `tools` and `tool_choice`. Throws an ApiError for an invalid tool, or a choice that is not possible. */
export function readTools({ tools = [], tool_choice: choice }: ResponsesRequest): ResponsesTools {
  const placed = tools.flatMap(withoutNamespace);
  const converted = convertTools(placed.map(readTool), (type) => SERVED.includes(type), 'parameters');
  const callForms = new Map(placed.flatMap(callFormOf));
  if (typeof choice === 'object' && choice.type === 'allowed_tools') {
    const allowed = onlyAllowed(converted, choice.tools ?? []);
    return { ...allowed, callForms, toolChoice: namedChoice(choice.mode ?? 'auto', allowed.tools) };
  }
  return { ...converted, callForms, toolChoice: toToolChoice(choice, converted) };
}

/** The name of a tool for the model, which knows no namespaces. */
export function modelName({ namespace, name }: ToolName): string {
  return namespace === undefined ? name : `${namespace}__${name}`;
}

interface PlacedTool {
  path: string;
  namespace?: string;
  tool: InnerTool;
}

/** Returns the tools of a namespace. Any other tool is alone. */
function withoutNamespace({ tools = [], ...tool }: WireTool, index: number): PlacedTool[] {
  const path = `tools[${index}]`;
  if (tool.type !== 'namespace') return [{ path, tool }];
  const namespace = requiredName(tool.name, path);
  return tools.map((inner, i) => ({ path: `${path}.tools[${i}]`, namespace, tool: inner }));
}

function readTool({ path, namespace, tool }: PlacedTool): ReadTool {
  const { type, name: own = '', description, parameters, strict, format = {} } = tool;
  const name = own === '' ? undefined : modelName({ namespace, name: own });
  if (type !== 'custom') return { path, type, name, description, parameters, strict };
  checkGrammar(format, `${path}.format.definition`);
  return { path, type, ...customFunction({ name, description, grammar: format }) };
}

function callFormOf({ namespace, tool: { type, name = '' } }: PlacedTool): [string, CallForm][] {
  const form = { ...(namespace === undefined ? {} : { namespace }), name };
  if (type === 'custom') return [[modelName(form), { type: 'custom_tool_call', ...form }]];
  if (type === 'function' && namespace !== undefined) return [[modelName(form), { type: 'function_call', ...form }]];
  return [];
}

type Choice = ResponsesRequest['tool_choice'];
type Converted = Omit<ConvertedTools, 'toolChoice'>;

function toToolChoice(choice: Choice, { tools, droppedTypes }: Converted): ToolChoice | undefined {
  if (choice === undefined) return undefined;
  if (typeof choice === 'string') return namedChoice(choice, tools);
  if (!SERVED.includes(choice.type)) throw notServed(choice.type, droppedTypes);
  return { name: checkNamed(tools, chosenName(choice), 'tool_choice.name') };
}

function namedChoice(choice: string, tools: readonly Tool[]): ToolChoice {
  if (choice === 'auto' || choice === 'none') return choice;
  if (choice !== 'required') throw invalidChoice('none, auto, required or a tool', choice);
  if (tools.length === 0) throw invalidChoice('none or auto, because there are no tools that this server has', choice);
  return choice;
}

function onlyAllowed(converted: Converted, allowed: readonly Readonly<Record<string, unknown>>[]): Converted {
  const names = allowed.map((named, i) => {
    const { type } = named;
    if (typeof type === 'string' && !SERVED.includes(type)) throw notServed(type, converted.droppedTypes);
    return checkNamed(converted.tools, chosenName(named), `tool_choice.tools[${i}].name`);
  });
  return pickTools(
    converted,
    converted.tools.flatMap((tool, i) => (names.includes(tool.function.name) ? [i] : [])),
  );
}

function chosenName({ namespace, name }: { namespace?: unknown; name?: unknown }): string | undefined {
  if (typeof name !== 'string') return undefined;
  return typeof namespace === 'string' ? modelName({ namespace, name }) : name;
}

function notServed(type: string, droppedTypes: readonly string[]): ApiError {
  const message = droppedTypes.includes(type)
    ? `tool_choice: this server has no tools of the type ${show(type)}; expected the type function or custom`
    : `tool_choice: expected the type function, custom or allowed_tools, got ${show(type)}`;
  return new ApiError('unsupported_value', message, { param: 'tool_choice' });
}
