import { counted } from 'capstan/internal';

/** The subset of JSON Schema that the management API uses. */
export interface Schema {
  readonly type?: string;
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly anyOf?: readonly Schema[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly additionalProperties?: Schema | false;
  readonly propertyNames?: Schema;
  readonly items?: Schema;
  readonly prefixItems?: readonly Schema[];
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly pattern?: string;
  readonly format?: string;
  readonly default?: unknown;
  /** Describes the expected value where the other keywords do not. */
  readonly description?: string;
}

/** Describes in words what a schema expects. */
export function describeSchema(schema: Schema): string {
  if (schema.anyOf !== undefined) return schema.anyOf.map(describeSchema).join(', or ');
  if (schema.enum !== undefined)
    return schema.enum.length === 1 ? String(schema.enum[0]) : `one of ${schema.enum.join(', ')}`;
  if ('const' in schema) return JSON.stringify(schema.const);
  if (schema.type === 'null') return 'null';
  const tag = Object.entries(schema.properties ?? {}).find(([, property]) => 'const' in property);
  if (tag !== undefined) return describeVariant(schema, tag);
  if (schema.format === 'date-time') return 'a time such as 2030-01-31T00:00:00Z';
  if (schema.description !== undefined && (schema.pattern !== undefined || schema.format !== undefined))
    return schema.description;
  return `${withArticle(schema.type ?? 'value')}${bounds(schema)}`;
}

/** Describes one variant of a tagged union: its tag and its other required fields. */
function describeVariant({ required = [] }: Schema, [name, { const: value }]: readonly [string, Schema]): string {
  return `an object with ${[`${name} ${JSON.stringify(value)}`, ...required.filter((other) => other !== name)].join(' and ')}`;
}

function bounds({
  minimum,
  maximum,
  exclusiveMinimum,
  minItems,
  maxItems,
  minLength,
  maxLength,
  pattern,
}: Schema): string {
  if (exclusiveMinimum !== undefined)
    return ` above ${exclusiveMinimum}${maximum === undefined ? '' : ` and up to ${maximum}`}`;
  if (minimum !== undefined) return maximum === undefined ? ` of ${minimum} or more` : ` from ${minimum} to ${maximum}`;
  if (maxItems !== undefined) return ` of ${minItems ?? 0} to ${maxItems} items`;
  if (minItems !== undefined) return ` of at least ${counted(minItems, 'item')}`;
  if (pattern !== undefined) return ` that matches ${pattern}`;
  if (maxLength !== undefined) return ` of ${minLength ?? 0} to ${maxLength} characters`;
  return '';
}

function withArticle(type: string): string {
  return `${/^[aeiou]/.test(type) ? 'an' : 'a'} ${type}`;
}
