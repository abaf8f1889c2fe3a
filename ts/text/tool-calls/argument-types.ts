import { type TypeName, TYPES } from '../schema-merge';
import { CallInput } from './input';
import { readPythonLiteral } from './python-literal';

const MAX_DEPTH = 16;

/** What types the arguments of a tool may have, by the schema of its parameters. One that the schema does not name is text. */
export function argumentTypes(parameters: unknown): (key: string) => readonly TypeName[] {
  const properties = asRecord(asRecord(parameters)?.properties);
  return (key) =>
    properties !== undefined && Object.hasOwn(properties, key)
      ? typesAllowed(properties[key], parameters, 0)
      : ['string'];
}

/** Of what a schema allows, as far as `type`, constants, references and alternatives tell. */
export function typesAllowed(schema: unknown, root: unknown, depth = 0): readonly TypeName[] {
  const { type, enum: values, const: value, anyOf, oneOf, allOf, $ref } = asRecord(schema) ?? {};
  if (depth > MAX_DEPTH) return TYPES;
  if (type !== undefined) return TYPES.filter((name) => type === name || (Array.isArray(type) && type.includes(name)));
  if (Array.isArray(values)) return TYPES.filter((name) => values.some((entry) => typeOf(entry) === name));
  if (value !== undefined) return TYPES.filter((name) => typeOf(value) === name);
  for (const list of [anyOf, oneOf]) {
    if (!Array.isArray(list)) continue;
    const allowed = list.flatMap((item) => typesAllowed(item, root, depth + 1));
    return TYPES.filter((name) => allowed.includes(name));
  }
  if (Array.isArray(allOf))
    return allOf.reduce<readonly TypeName[]>(
      (left, item) => left.filter((name) => typesAllowed(item, root, depth + 1).includes(name)),
      TYPES,
    );
  if (typeof $ref === 'string' && $ref.startsWith('#')) return typesAllowed(resolve($ref, root), root, depth + 1);
  return TYPES;
}

/** JSON of a raw value: of the allowed types that it can be read as, text last. */
export function toArgument(raw: string, types: readonly TypeName[]): string {
  const text = raw.trim();
  for (const json of [text, pythonToJson(text)]) {
    if (json !== undefined && isOneOf(json, types)) return json;
  }
  return JSON.stringify(raw);
}

function isOneOf(json: string, types: readonly TypeName[]): boolean {
  try {
    const type = typeOf(JSON.parse(json));
    return type !== 'string' && (types.includes(type) || (type === 'integer' && types.includes('number')));
  } catch {
    return false;
  }
}

function pythonToJson(text: string): string | undefined {
  const input = new CallInput();
  let json = '';
  const reading = readPythonLiteral(input, (part) => {
    json += part;
  });
  let step = reading.next();
  for (const char of text) {
    if (step.done === true) return undefined;
    step = reading.next(char);
  }
  if (step.done !== true) step = reading.next(undefined);
  return step.done === true && step.value && input.ahead === undefined ? json : undefined;
}

function typeOf(value: unknown): TypeName {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value as TypeName;
}

function resolve(pointer: string, root: unknown): unknown {
  return pointer
    .split('/')
    .slice(1)
    .reduce((at: unknown, part) => asRecord(at)?.[part.replace(/~1/g, '/').replace(/~0/g, '~')], root);
}

function asRecord(value: unknown): Record<string, unknown> | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;
}
