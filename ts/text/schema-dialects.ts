/** Keywords of older dialects in terms of 2020-12: draft-04 to draft-07 and OpenAPI 3.0. */
import type { Schema } from './schema-types';

/** Returns the schema in terms of 2020-12. Returns the same object if it has no older keywords. */
export function modernized(schema: Schema): Schema {
  const steps = [withOpenBounds, withPrefixItems, withNull, withoutFalse];
  return steps.reduce((current, step) => step(current), schema);
}

/** Draft-04: `exclusiveMinimum: true` refers to `minimum`. */
function withOpenBounds(schema: Schema): Schema {
  const pairs = [
    ['minimum', 'exclusiveMinimum'],
    ['maximum', 'exclusiveMaximum'],
  ].filter(([, open]) => typeof schema[open] === 'boolean');
  if (pairs.length === 0) return schema;
  const modern = { ...schema };
  for (const [closed, open] of pairs) {
    delete modern[open];
    if (schema[open] !== true || schema[closed] === undefined) continue;
    modern[open] = schema[closed];
    delete modern[closed];
  }
  return modern;
}

/** Up to draft 2019-09, `items` lists the first elements, and `additionalItems` is the schema of the others. */
function withPrefixItems(schema: Schema): Schema {
  if (!Array.isArray(schema.items)) return schema;
  const { items, additionalItems, ...modern } = schema;
  return { ...modern, prefixItems: items, ...(additionalItems === undefined ? {} : { items: additionalItems }) };
}

/** OpenAPI 3.0: `nullable` beside `type`. */
function withNull(schema: Schema): Schema {
  if (schema.nullable !== true || schema.type === undefined) return schema;
  const types: unknown[] = Array.isArray(schema.type) ? schema.type : [schema.type];
  return types.includes('null') ? schema : { ...schema, type: [...types, 'null'] };
}

/** `not: {}` is another spelling of `false`. */
function withoutFalse(schema: Schema): Schema {
  const { not } = schema;
  const matchesAll =
    not === true || (typeof not === 'object' && not !== null && !Array.isArray(not) && Object.keys(not).length === 0);
  return matchesAll ? { enum: [] } : schema;
}
