import { typeOfValue, unescapePointer } from '../schema-merge';
import { type TypeName, TYPES } from '../schema-types';
import { CallInput } from './input';
import { readPythonLiteral } from './python-literal';

const MAX_DEPTH = 16;

/** Returns a lookup of the types that an argument may have. An argument that the schema does not name is a string. */
export function argumentTypesOf(parameters: unknown): (key: string) => readonly TypeName[] {
  const properties = asRecord(asRecord(parameters)?.properties);
  return (key) =>
    properties !== undefined && Object.hasOwn(properties, key) ? typesAllowed(properties[key], parameters) : ['string'];
}

/** Returns the types that a schema allows, judged by `type`, constants, references and alternatives. */
export function typesAllowed(schema: unknown, root: unknown): readonly TypeName[] {
  return new AllowedTypes(root).of(schema, 0);
}

/** The types that the parts of a schema allow. Each part is judged once, so the time is linear in the schema. */
class AllowedTypes {
  readonly #root: unknown;
  /** The result for each part. While a part is judged, a reference back to it allows all types. */
  readonly #known = new Map<unknown, readonly TypeName[]>();

  constructor(root: unknown) {
    this.#root = root;
  }

  of(schema: unknown, depth: number): readonly TypeName[] {
    const known = this.#known.get(schema);
    if (known !== undefined) return known;
    if (depth > MAX_DEPTH) return TYPES;
    this.#known.set(schema, TYPES);
    const types = this.#judge(asRecord(schema) ?? {}, depth + 1);
    this.#known.set(schema, types);
    return types;
  }

  #judge(schema: Record<string, unknown>, depth: number): readonly TypeName[] {
    const { type, enum: values, const: value, anyOf, oneOf, allOf, $ref } = schema;
    if (type !== undefined)
      return TYPES.filter((name) => type === name || (Array.isArray(type) && type.includes(name)));
    if (Array.isArray(values)) return TYPES.filter((name) => values.some((entry) => typeOfValue(entry) === name));
    if (value !== undefined) return TYPES.filter((name) => typeOfValue(value) === name);
    for (const list of [anyOf, oneOf]) {
      if (!Array.isArray(list)) continue;
      const allowed = new Set(list.flatMap((item) => this.of(item, depth)));
      return TYPES.filter((name) => allowed.has(name));
    }
    if (Array.isArray(allOf)) {
      const all = allOf.map((item) => this.of(item, depth));
      return TYPES.filter((name) => all.every((allowed) => allowed.includes(name)));
    }
    if (typeof $ref === 'string' && $ref.startsWith('#')) return this.of(resolve($ref, this.#root), depth);
    return TYPES;
  }
}

/** Converts a raw value to JSON of an allowed type. Falls back to a string. */
export function toArgument(raw: string, types: readonly TypeName[]): string {
  const text = raw.trim();
  for (const json of [text, pythonToJson(text)]) {
    if (json !== undefined && isOneOf(json, types)) return json;
  }
  return JSON.stringify(raw);
}

function isOneOf(json: string, types: readonly TypeName[]): boolean {
  try {
    const type = typeOfValue(JSON.parse(json));
    return type !== 'string' && (types.includes(type) || (type === 'integer' && types.includes('number')));
  } catch {
    return false;
  }
}

function pythonToJson(text: string): string | undefined {
  const input = new CallInput();
  let json = '';
  const reader = readPythonLiteral(input, (part) => {
    json += part;
  });
  let step = reader.next();
  for (const char of text) {
    if (step.done === true) return undefined;
    step = reader.next(char);
  }
  // A word ends at the character after it.
  if (step.done !== true) step = reader.next('\n');
  return step.done === true && step.value && (input.ahead ?? '\n') === '\n' ? json : undefined;
}

function resolve(pointer: string, root: unknown): unknown {
  return pointer
    .split('/')
    .slice(1)
    .reduce((at: unknown, part) => asRecord(at)?.[unescapePointer(part)], root);
}

function asRecord(value: unknown): Record<string, unknown> | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;
}
