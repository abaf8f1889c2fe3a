/**
 * Builds JSON Schemas, with the TypeScript type of their values. The schemas validate requests and form the OpenAPI
 * document.
 */

const NULL = { type: 'null' } as const;

/** An object with required properties. */
export function object<const P extends Record<string, object>>(properties: P) {
  return { type: 'object' as const, properties, required: Object.keys(properties) as (keyof P & string)[] };
}

/** A request object. Unknown properties are refused. Properties not named in `required` are optional. */
export function input<const P extends Record<string, object>, const R extends keyof P & string = never>(
  properties: P,
  ...required: R[]
) {
  return { type: 'object' as const, additionalProperties: false as const, properties, required };
}

export function orNull<const S extends object>(schema: S) {
  return { anyOf: [schema, NULL] } as const;
}

export function list<const S extends object, const O extends object = object>(items: S, bounds?: O) {
  return { type: 'array' as const, items, ...bounds };
}

export function oneOf<const V extends string>(values: readonly V[]) {
  return { type: 'string' as const, enum: values };
}

export function record<const S extends object>(values: S, namePattern?: string) {
  return {
    type: 'object' as const,
    additionalProperties: values,
    ...(namePattern === undefined ? {} : { propertyNames: { pattern: namePattern } }),
  };
}

/** A request with the same properties, all optional. */
export function partial<const P extends Record<string, object>>({ properties }: { properties: P }) {
  return input(properties);
}

export function pair<const A extends object, const B extends object>(first: A, second: B) {
  return { type: 'array' as const, prefixItems: [first, second] as const, minItems: 2, maxItems: 2 };
}

/** One page of a list. */
export function page<const S extends object>(item: S) {
  return object({
    data: list(item),
    next: orNull({ type: 'string', description: 'Value of `after` for the next page' }),
  });
}

export interface Page<T> {
  data: T[];
  next: string | null;
}

export type Static<S> = S extends { enum: readonly (infer V)[] }
  ? V
  : S extends { const: infer V }
    ? V
    : S extends { anyOf: readonly (infer A)[] }
      ? StaticOfEach<A>
      : S extends { type: 'null' }
        ? null
        : S extends { type: 'string' }
          ? string
          : S extends { type: 'integer' | 'number' }
            ? number
            : S extends { type: 'boolean' }
              ? boolean
              : S extends { prefixItems: readonly [infer A, infer B] }
                ? [Static<A>, Static<B>]
                : S extends { type: 'array'; items: infer I }
                  ? Static<I>[]
                  : S extends { properties: infer P; required: readonly (infer R)[] }
                    ? Object_<P, R>
                    : S extends { additionalProperties: infer V extends object }
                      ? Record<string, Static<V>>
                      : unknown;
type StaticOfEach<A> = A extends unknown ? Static<A> : never;
type Object_<P, R> = { [K in keyof P as K extends R ? K : never]: Static<P[K]> } & {
  [K in keyof P as K extends R ? never : K]?: Static<P[K]>;
};
