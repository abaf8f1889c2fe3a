import { ApiProblem, type FieldError } from './problem';
import type { Schema } from './schema';
import { checkValue, shortened } from './validate';

export type Query = Readonly<Record<string, unknown>>;

/** Parses query parameters by their schema: converts numbers and booleans, and fills in defaults. Throws ApiProblem. */
export async function parseQuery(schema: Schema | undefined, text: string): Promise<Query> {
  const { properties = {} } = schema ?? {};
  const parameters = new URLSearchParams(text);
  const query = Object.create(null) as Record<string, unknown>;
  const errors: FieldError[] = [];
  for (const name of new Set(parameters.keys())) {
    if (!Object.hasOwn(properties, name)) {
      errors.push({ pointer: pointerOf(`/${name}`), message: 'unknown parameter' });
      continue;
    }
    const values = parameters.getAll(name);
    if (values.length > 1)
      errors.push({ pointer: pointerOf(`/${name}`), message: `expected once, got ${values.length} times` });
    else query[name] = toValue(properties[name], values[0]);
  }
  if (errors.length > 0)
    throw new ApiProblem('invalid_request', `${errors[0].pointer}: ${errors[0].message}`, {
      errors: errors.slice(0, 20),
    });
  for (const [name, property] of Object.entries(properties))
    if (query[name] === undefined && property.default !== undefined) query[name] = property.default;
  if (schema !== undefined) await checkValue(schema, query, pointerOf);
  return query;
}

function pointerOf(path: string): string {
  return `?${shortened(path.slice(1))}`;
}

/** Text that does not match its type is returned unchanged. The schema check then refuses it. */
function toValue({ type }: Schema, text: string): unknown {
  if (type === 'integer' && /^-?\d{1,15}$/.test(text)) return Number(text);
  if (type === 'number' && /^-?\d{1,15}(\.\d{1,15})?$/.test(text)) return Number(text);
  if (type === 'boolean' && (text === 'true' || text === 'false')) return text === 'true';
  return text;
}
