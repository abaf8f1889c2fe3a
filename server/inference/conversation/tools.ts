import type { Tool, ToolChoice } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { Log } from '../../base/log';
import { checkNumbers } from '../openai/structured-output';
import { show } from '../../base/json/validate';

/** The tools of a request of another interface than chat completions, as tools of the library. */
export interface ConvertedTools {
  tools: readonly Tool[];
  toolChoice: ToolChoice | undefined;
  /** For each tool, its path in the request. */
  paths: readonly string[];
  /** Types of tools that were left out, each once. */
  droppedTypes: readonly string[];
}

/** One tool of a request, read by its interface. */
export interface ReadTool {
  /** Its path in the request. */
  path: string;
  type: string;
  name: string | undefined;
  description: string | undefined;
  parameters: Readonly<Record<string, unknown>> | undefined;
  strict: boolean | undefined;
}

/**
 * Converts the tools that are served, and leaves out the others. Throws an ApiError that names the first invalid tool.
 * @param schemaField The field that holds the schema of the arguments.
 */
export function convertTools(
  read: readonly ReadTool[],
  isServed: (type: string) => boolean,
  schemaField: string,
): Omit<ConvertedTools, 'toolChoice'> {
  const served = read.filter(({ type }) => isServed(type));
  const names = new Set<string>();
  return {
    tools: served.map((tool) => {
      const converted = toTool(tool, schemaField);
      const { name } = converted.function;
      if (names.has(name)) throw invalidChoice('a name that no other tool has', name, `${tool.path}.name`);
      names.add(name);
      return converted;
    }),
    paths: served.map(({ path }) => path),
    droppedTypes: [...new Set(read.map(({ type }) => type).filter((type) => !isServed(type)))],
  };
}

/** Keeps the tools with these indices, in this order. */
export function pickTools<Converted extends Pick<ConvertedTools, 'tools' | 'paths'>>(
  converted: Converted,
  indices: readonly number[],
): Converted {
  const { tools, paths } = converted;
  return { ...converted, tools: indices.map((i) => tools[i]), paths: indices.map((i) => paths[i]) };
}

function toTool({ path, name, description, parameters, strict }: ReadTool, schemaField: string): Tool {
  const known = requiredName(name, path);
  checkNumbers(`${path}.${schemaField}`, parameters);
  return {
    type: 'function',
    function: {
      name: known,
      ...(description === undefined ? {} : { description }),
      ...(parameters === undefined ? {} : { parameters }),
      ...(strict === undefined ? {} : { strict }),
    },
  };
}

/** Returns the name of the tool with the path. Throws an ApiError if it has none. */
export function requiredName(name: string | undefined, path: string): string {
  if (name !== undefined && name !== '') return name;
  const message = `${path}.name: expected a value, but it is missing`;
  throw new ApiError('missing_required_parameter', message, { param: `${path}.name` });
}

/** Throws an ApiError if no tool has the name. */
export function checkNamed(tools: readonly Tool[], name: string | undefined, param: string): string {
  if (name === undefined)
    throw new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
  if (tools.some((tool) => tool.function.name === name)) return name;
  throw invalidChoice('the name of a tool that this server offers to the model', name, param);
}

export function invalidChoice(expected: string, received: unknown, param = 'tool_choice'): ApiError {
  return new ApiError('invalid_value', `${param}: expected ${expected}, got ${show(received)}`, { param });
}

/** Limit of the types in a log line. They are the client's text. */
const MAX_LOGGED = 10;

export function logDroppedTools(log: Log, requestId: string, types: readonly string[]): void {
  if (types.length === 0) return;
  const shown = types.slice(0, MAX_LOGGED).map((type) => type.slice(0, 100));
  log.info({ requestId, types: shown }, 'left out tools of unsupported types');
}

/**
 * Gives a tool in an error the path that it has in the request.
 * @param paths For each tool of the options.
 * @param schemaField The field of a tool that holds the schema of the arguments. That of a custom tool comes from its
 * format.
 */
export function withToolPaths(error: unknown, paths: readonly string[], schemaField: string): unknown {
  if (!(error instanceof ApiError) || error.param === null) return error;
  const renamed = (text: string) =>
    text.replace(/\btools\[(\d+)\]\.function\b(\.parameters\b)?/, (whole, index: string, schema?: string) => {
      const path = paths.at(Number(index)) ?? whole;
      return schema === undefined || path === whole
        ? path
        : `${path}.${path.endsWith('.custom') ? 'format' : schemaField}`;
    });
  const { code, message, param, headers, cause } = error;
  return new ApiError(code, renamed(message), { param: renamed(param), headers: { ...headers }, cause });
}
