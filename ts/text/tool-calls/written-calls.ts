import { JSON_DIALECT, PYTHON_DIALECT } from '../json-rules';
import { parseArguments, type ToolCallInput } from '../messages';
import { spacedText } from '../python-text';

/** Returns the text of a call as a JSON object. */
export function jsonCallText({ name, arguments: args }: ToolCallInput): string {
  return spacedText({ name, arguments: typeof args === 'string' ? parseArguments(args) : args }, JSON_DIALECT);
}

/** Returns the text of a call in Python. */
export function pythonCallText({ name, arguments: args }: ToolCallInput): string {
  const values: unknown = typeof args === 'string' ? parseArguments(args) : args;
  const members = typeof values === 'object' && values !== null ? Object.entries(values) : [];
  return `${name}(${members.map(([key, value]) => `${key}=${spacedText(value, PYTHON_DIALECT)}`).join(', ')})`;
}
