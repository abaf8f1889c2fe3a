/** A custom tool has one text as its input. The model calls it as a function with one string. */
import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';
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
export function customFunction({ name, description, grammar }: CustomTool): Omit<ReadTool, 'path' | 'type'> {
  const { syntax, definition } = grammar;
  const text = { name, description, parameters: parametersFor({ type: 'string' }), strict: undefined };
  if (typeof definition !== 'string') return text;
  if (syntax === 'regex') {
    const parameters = parametersFor({ type: 'string', pattern: `^(?:${inJavaScript(definition)})$` });
    // Servers of OpenAI's interface want both for strict functions.
    return { name, description, parameters: { ...parameters, additionalProperties: false }, strict: true };
  }
  const kind = typeof syntax === 'string' ? `${syntax} grammar` : 'grammar';
  const shown = `The text in \`input\` follows this ${kind}:\n${definition}`;
  return { ...text, description: description === undefined ? shown : `${description}\n\n${shown}` };
}

/** Escapes, classes, and the beginning of a named group as Rust and Python write it. */
const NAMED_GROUP = /\\[^]|\[(?:\\[^]|[^\]\\])*\]|\(\?P</g;

function inJavaScript(definition: string): string {
  return definition.replace(NAMED_GROUP, (part) => (part === '(?P<' ? '(?<' : part));
}

/**
 * Throws an ApiError for an invalid regular expression. The group around it would make some valid, such as `a)|(b`.
 * @param path Path of the definition in the request.
 */
export function checkGrammar({ syntax, definition }: CustomTool['grammar'], path: string): void {
  if (syntax !== 'regex' || typeof definition !== 'string') return;
  try {
    new RegExp(inJavaScript(definition));
  } catch {
    const message = `${path}: expected a regular expression, got ${show(definition)}`;
    throw new ApiError('invalid_value', message, { param: path });
  }
}

function parametersFor(input: object): Readonly<Record<string, unknown>> {
  return { type: 'object', properties: { input }, required: ['input'] };
}

/** Returns the text of a custom tool's call. Arguments of another form, such as truncated ones, become the text. */
export function customInput(args: string): string {
  try {
    const { input } = JSON.parse(args) as { input?: unknown };
    return typeof input === 'string' ? input : args;
  } catch {
    return args;
  }
}
