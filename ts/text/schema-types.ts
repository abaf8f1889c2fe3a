/** A schema as an object. `true` is represented as `{}`, and `false` as {@link NOTHING}. */
export type Schema = Record<string, unknown>;

export const TYPES = ['object', 'array', 'string', 'integer', 'number', 'boolean', 'null'] as const;
export type TypeName = (typeof TYPES)[number];
