/** A custom tool has one text as its input. The model calls it as a function with one string. */
import type { ReadTool } from './tools';

export interface CustomTool {
  name: string | undefined;
  description: string | undefined;
  /** The fields of a grammar. Other formats have none. */
  grammar: Readonly<Record<string, unknown>>;
}

/**
 * Returns the function for a custom tool. The text matches a regular expression. The model sees any other grammar as
 * part of the description.
 */
export function customFunction({ name, description, grammar }: CustomTool): Omit<ReadTool, 'type'> {
  const { syntax, definition } = grammar;
  if (typeof definition !== 'string')
    return { name, description, parameters: parametersFor({ type: 'string' }), strict: undefined };
  if (syntax === 'regex') {
    return {
      name,
      description,
      parameters: parametersFor({ type: 'string', pattern: whole(definition) }),
      strict: true,
    };
  }
  const shown = `The text in \`input\` follows this ${typeof syntax === 'string' ? syntax : ''} grammar:\n${definition}`;
  return {
    name,
    description: description === undefined ? shown : `${description}\n\n${shown}`,
    parameters: parametersFor({ type: 'string' }),
    strict: undefined,
  };
}

/** Returns the pattern of texts that match as a whole. An invalid one stays, such as `a)|(b`, and is refused later. */
function whole(pattern: string): string {
  try {
    new RegExp(pattern);
  } catch {
    return pattern;
  }
  return `^(?:${pattern})$`;
}

function parametersFor(input: object): Readonly<Record<string, unknown>> {
  return { type: 'object', properties: { input }, required: ['input'] };
}

/** Returns the text of a custom tool's call. Arguments of another form, such as cut ones, are the text themselves. */
export function customInput(args: string): string {
  try {
    const { input } = JSON.parse(args) as { input?: unknown };
    return typeof input === 'string' ? input : args;
  } catch {
    return args;
  }
}
