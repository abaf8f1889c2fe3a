/** Parts of the JSON Schemas of response bodies. */

export type ResponseSchema = Readonly<Record<string, unknown>>;

export const string = { type: 'string' };
export const boolean = { type: 'boolean' };
export const count = { type: 'integer', minimum: 0 };
export const nullable = (schema: ResponseSchema): ResponseSchema => ({ anyOf: [schema, { type: 'null' }] });
export const list = (items: ResponseSchema, further: ResponseSchema = {}): ResponseSchema => ({
  type: 'array',
  items,
  ...further,
});
export const ref = (name: string): ResponseSchema => ({ $ref: `#/components/schemas/${name}` });
export const tokenIds = list(count);
export const seconds = { type: 'integer', description: 'Seconds since 1970' };

/** An object with exactly these keys. Only the `optional` ones may be absent. */
export function exactly(
  properties: Record<string, ResponseSchema>,
  optional: Record<string, ResponseSchema> = {},
): ResponseSchema {
  return {
    type: 'object',
    required: Object.keys(properties),
    properties: { ...properties, ...optional },
    additionalProperties: false,
  };
}
