/** A custom tool has one text as its input. The model calls it as a function with one string. */
import type { ReadTool } from './tools';

/** The arguments of the function. */
const PARAMETERS = { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] } as const;

export interface CustomTool {
  name: string | undefined;
  description: string | undefined;
  /** The fields of a grammar. Other formats have none. */
  grammar: Readonly<Record<string, unknown>>;
}

/** Returns the function for a custom tool. The model sees a grammar as part of the description. */
export function customFunction({ name, description, grammar }: CustomTool): Omit<ReadTool, 'type'> {
  return { name, description: withGrammar(description, grammar), parameters: PARAMETERS, strict: undefined };
}

function withGrammar(
  description: string | undefined,
  { syntax, definition }: CustomTool['grammar'],
): string | undefined {
  if (typeof definition !== 'string') return description;
  const grammar = `The text in \`input\` follows this ${typeof syntax === 'string' ? syntax : ''} grammar:\n${definition}`;
  return description === undefined ? grammar : `${description}\n\n${grammar}`;
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
