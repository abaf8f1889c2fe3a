import type { NullMap } from '../../base/json/nulls';
import type { Schema } from '../../base/json/schema-types';

/** Returns the schema of a request body for clients: the validating schema, plus null where null means "not given". */
export function sentSchema(schema: Schema, nulls: NullMap): Schema {
  const { properties, required = [], items } = schema;
  const sent = { ...schema };
  if (items !== undefined && nulls.each !== undefined) sent.items = sentSchema(items, nulls.each);
  if (properties === undefined) return sent;
  sent.properties = Object.fromEntries(
    Object.entries(properties).map(([name, property]) => {
      const inner = Object.hasOwn(nulls, name) ? sentSchema(property, nulls[name]) : property;
      return [name, required.includes(name) ? inner : orNull(inner)];
    }),
  );
  return sent;
}

function orNull(schema: Schema): Schema {
  return {
    ...schema,
    ...(schema.type === undefined ? {} : { type: [...new Set([schema.type, 'null'].flat())] }),
    ...(schema.enum === undefined ? {} : { enum: [...schema.enum, null] }),
  };
}
