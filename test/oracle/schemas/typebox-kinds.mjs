/** Schemas that use every kind of TypeBox with a JSON Schema. */
export function kinds(Type) {
  const Base = Type.Object({ id: Type.String(), tags: Type.Array(Type.String()) });
  return {
    strings: Type.Object({
      any: Type.String(),
      bounded: Type.String({ minLength: 1, maxLength: 20 }),
      pattern: Type.String({ pattern: '^[a-z]+$', minLength: 2, maxLength: 8 }),
      email: Type.String({ format: 'email', maxLength: 60 }),
      date: Type.String({ format: 'date-time' }),
      uuid: Type.String({ format: 'uuid' }),
      url: Type.String({ format: 'uri' }),
    }),
    numbers: Type.Object({
      integer: Type.Integer({ minimum: 0, maximum: 100 }),
      number: Type.Number({ exclusiveMinimum: 0 }),
      step: Type.Integer({ multipleOf: 5, minimum: 0, maximum: 60 }),
      boolean: Type.Boolean(),
      nothing: Type.Null(),
    }),
    literals: Type.Union([Type.Literal('a'), Type.Literal(1), Type.Literal(true)]),
    enum: Type.Enum({ A: 'a', B: 'b' }),
    optional: Type.Object({ a: Type.Optional(Type.String()), b: Type.Readonly(Type.Number()) }),
    strict: Type.Object({ a: Type.String() }, { additionalProperties: false, title: 'Strict', $id: 'Strict' }),
    extra: Type.Object({ a: Type.String() }, { additionalProperties: Type.Number() }),
    tuple: Type.Tuple([Type.String(), Type.Integer()]),
    record: Type.Record(Type.String(), Type.Number()),
    recordPattern: Type.Record(Type.String({ pattern: '^x-' }), Type.String()),
    recordLiterals: Type.Record(Type.Union([Type.Literal('a'), Type.Literal('b')]), Type.Number()),
    recordInteger: Type.Record(Type.Integer(), Type.String()),
    intersect: Type.Intersect([Base, Type.Object({ name: Type.String() })]),
    intersectClosed: Type.Intersect([Base, Type.Object({ name: Type.String() })], { unevaluatedProperties: false }),
    ...(Type.Composite ? { composite: Type.Composite([Base, Type.Object({ name: Type.String() })]) } : {}),
    union: Type.Union([
      Type.Object({ kind: Type.Literal('circle'), radius: Type.Number() }),
      Type.Object({ kind: Type.Literal('square'), side: Type.Number() }),
    ]),
    nullable: Type.Object({ a: Type.Union([Type.String(), Type.Null()]) }),
    partial: Type.Partial(Base),
    pick: Type.Pick(Base, ['id']),
    omit: Type.Omit(Base, ['id']),
    keyOf: Type.KeyOf(Base),
    unique: Type.Array(Type.Union([Type.Literal('a'), Type.Literal('b')]), { uniqueItems: true }),
    templateLiteral: Type.TemplateLiteral([Type.Literal('id-'), Type.Integer()]),
    any: Type.Any(),
    unknown: Type.Object({ value: Type.Unknown() }),
    ...(Type.Recursive
      ? { recursive: Type.Recursive((This) => Type.Object({ value: Type.Number(), next: Type.Optional(This) })) }
      : {
          recursive: Type.Cyclic(
            { Node: Type.Object({ value: Type.Number(), next: Type.Optional(Type.Ref('Node')) }) },
            'Node',
          ),
        }),
    module: Type.Module({ Name: Type.String(), User: Type.Object({ name: Type.Ref('Name') }) }).Import?.('User'),
  };
}
