import { CapstanError } from '../../../ts/errors';
import { schemaToGrammar } from '../../../ts/text/json-schema';

function messageOf(schema: unknown): string {
  try {
    schemaToGrammar(schema);
  } catch (error) {
    if (!(error instanceof CapstanError)) throw error;
    expect(error.code).toBe('invalid_argument');
    return error.message;
  }
  return '';
}

test.each<[schema: unknown, message: string]>([
  [{ not: { type: 'string' } }, '#/not: this keyword is not supported'],
  [{ not: {} }, '#: no value matches'],
  [
    { type: 'object', properties: { 'a/b': { type: 'array', items: { if: {} } } } },
    '#/properties/a~1b/items/if: this keyword is not supported',
  ],
  [
    { anyOf: [{ type: 'string' }, { type: 'array', contains: {} }] },
    '#/anyOf/1/contains: this keyword is not supported',
  ],
  [{ type: 'object', dependentRequired: {} }, '#/dependentRequired: this keyword is not supported'],
  [{ type: 'object', dependencies: {} }, '#/dependencies: this keyword is not supported'],
  [{ $dynamicRef: '#node' }, '#/$dynamicRef: this keyword is not supported'],
  [
    { type: 'object', propertyNames: { pattern: '^a' }, properties: { '\ud800': {} } },
    '#/propertyNames: not supported with a property whose name is not valid Unicode',
  ],
  [{ type: 'object', propertyNames: { enum: ['a'] }, required: ['b'] }, '#/required: the property "b" is not allowed'],
  [
    { type: 'object', patternProperties: { a: {} }, propertyNames: { maxLength: 3 } },
    '#/patternProperties: supported only for one pattern',
  ],
  [
    { propertyNames: { enum: ['a', 'b'] }, patternProperties: { '^a': { type: 'integer' } } },
    '#/patternProperties: supported only for one pattern',
  ],
  [
    { type: 'object', required: Array.from({ length: 10_001 }, (_, i) => `p${i}`) },
    '#/required: more than 10000 properties',
  ],
  [{ type: 'array', uniqueItems: true }, '#/uniqueItems: supported for items of enum or const'],
  [{ type: 'array', uniqueItems: true, items: { type: 'string' } }, '#/uniqueItems: supported for items of enum'],
  [
    { type: 'array', uniqueItems: true, items: { enum: ['a', 'b'] }, minItems: 3 },
    '#/minItems: more elements than there are different values',
  ],
  [{ type: 'array', items: 1 }, '#/items: expected a schema'],
  [{ type: 'number', multipleOf: 0 }, '#/multipleOf: expected a number above 0'],
  [{ minimum: 1, maximum: 1, multipleOf: 5e-324 }, '#/multipleOf: more than 20 digits after the point'],
  [{ minimum: 0, maximum: 0, multipleOf: 1e-21 }, '#/multipleOf: more than 20 digits after the point'],
  [{ type: 'integer', multipleOf: 1001 }, '#/multipleOf: supported for at most 4096 multiples'],
  [{ type: 'integer', multipleOf: 7, minimum: 1e15 }, '#/multipleOf: supported for at most 4096 multiples'],
  [{ type: 'number', multipleOf: 1.01 }, '#/multipleOf: supported for at most 4096 multiples'],
  [{ type: 'integer', multipleOf: 7, minimum: 1, maximum: 6 }, '#/multipleOf: no multiple lies between the bounds'],
  [{ type: 'string', format: 1 }, '#/format: expected a string'],
  [{ type: 'text' }, '#/type: expected one of object'],
  [{ type: 'integer', minimum: 3, maximum: 2 }, '#/minimum: above the maximum'],
  [{ type: 'integer', exclusiveMinimum: 3, maximum: 3 }, '#/exclusiveMinimum: above the maximum'],
  [{ type: 'number', exclusiveMinimum: 3, maximum: 3 }, '#/exclusiveMinimum: above the maximum'],
  [{ type: 'string', minLength: 3, maxLength: 2 }, '#/maxLength: below minLength'],
  [{ type: 'string', minLength: 1.5 }, '#/minLength: expected an integer of 0 or more'],
  [{ type: 'string', pattern: 3 }, '#/pattern: expected a string'],
  [{ enum: [] }, '#: no value matches'],
  [{ type: 'integer', enum: ['a'] }, '#: no value matches'],
  [{ const: 1, enum: [2] }, '#: no value matches'],
  [{ const: 1, enum: 2 }, '#/enum: expected an array'],
  [{ enum: [{ a: 1 }], properties: { a: {} } }, '#/properties: not supported with enum'],
  [{ enum: ['\ud800'], pattern: '.' }, '#/pattern: not supported with a constant that is not valid Unicode'],
  [{ enum: [5], multipleOf: 0 }, '#/multipleOf: expected a number above 0'],
  [{ enum: [5], minimum: '3' }, '#/minimum: expected a number'],
  [
    { uniqueItems: true, items: { enum: ['a'], pattern: 'a' }, type: 'array' },
    '#/items/pattern: not supported with enum',
  ],
  [{ const: {}, required: ['toString'] }, '#: no value matches'],
  [{ enum: ['a'], minLength: 2 }, '#: no value matches'],
  [false, '#: no value matches'],
  [
    { oneOf: [{ const: 7 }, { type: 'integer', minimum: 5 }] },
    '#/oneOf: a value might match both alternatives 0 and 1',
  ],
  [
    {
      oneOf: [
        { type: 'number', maximum: 3 },
        { type: 'number', minimum: 3 },
      ],
    },
    '#/oneOf: a value might match both alternatives 0 and 1',
  ],
  [
    {
      oneOf: [
        { type: 'string', format: 'date' },
        { type: 'string', format: 'hostname' },
      ],
    },
    '#/oneOf: a value might match both alternatives 0 and 1',
  ],
  [{ oneOf: [{ type: 'integer' }, { type: 'number' }] }, '#/oneOf: a value might match both alternatives 0 and 1'],
  [
    { oneOf: [{ type: 'null' }, { type: 'object', properties: { a: {} } }, { type: 'object', properties: { b: {} } }] },
    '#/oneOf: a value might match both alternatives 1 and 2',
  ],
  [
    { allOf: [{ patternProperties: { '^a': { type: 'integer' } } }, { additionalProperties: false }] },
    '#/patternProperties: not supported with additionalProperties of another part',
  ],
  [
    {
      allOf: [
        { patternProperties: { '^a': {} }, additionalProperties: false },
        { additionalProperties: { type: 'null' } },
      ],
    },
    '#/patternProperties: not supported with additionalProperties of another part',
  ],
  [
    { allOf: [{ unevaluatedProperties: false, anyOf: [{ properties: { a: {} } }] }, { properties: { b: {} } }] },
    '#/allOf/0/unevaluatedProperties: not supported with anyOf in a part of another schema',
  ],
  [
    {
      oneOf: [
        { type: 'object', properties: { a: {} }, required: ['a'], anyOf: [{ properties: { b: {} }, required: ['b'] }] },
        { type: 'object', properties: { b: {} }, required: ['b'], anyOf: [{ properties: { a: {} } }] },
      ],
    },
    '#/oneOf: a value might match both alternatives 0 and 1',
  ],
  [{ allOf: [{ anyOf: [{ type: 'string' }] }, { anyOf: [{ type: 'null' }] }] }, '#/anyOf: no value matches'],
  [{ allOf: [{ multipleOf: 2 }, { multipleOf: 3 }] }, '#/multipleOf: two different multipleOf'],
  [{ allOf: [{ type: 'string' }, { type: 'integer' }] }, '#: no value matches'],
  [
    {
      allOf: [
        { additionalProperties: false, properties: { a: {} } },
        { properties: { b: {} }, required: ['b'] },
      ],
    },
    'the property "b" is not allowed',
  ],
  [{ type: 'object', required: ['a'], additionalProperties: false }, '#/required: the property "a" is not allowed'],
  [
    { type: 'object', properties: { a: {}, b: {} }, minProperties: 2 },
    '#/minProperties: more than 1 is not supported with optional properties',
  ],
  [{ type: 'object', minProperties: 2 }, '#/minProperties: more than 1'],
  [{ type: 'object', properties: { a: {} }, patternProperties: { b: {} } }, '#/patternProperties: supported only'],
  [{ $ref: 'https://example.com/schema' }, '#/$ref: only references within the schema'],
  [{ $ref: '#/$defs/missing' }, '#/$ref: the target of the reference does not exist'],
  [{ $ref: '#/__proto__/x' }, '#/$ref: the target of the reference does not exist'],
  [{ $ref: '#/%' }, '#/$ref: the reference is not a JSON pointer'],
  [{ $ref: '#', title: 'x', type: 'object' }, 'a schema that refers to itself cannot be merged'],
  [{ anyOf: [] }, '#/anyOf: expected an array of schemas'],
  [{ anyOf: [false, false] }, '#/anyOf: no value matches'],
  [{ properties: { a: 1 } }, '#/properties/a: expected a schema'],
  [[], '#: expected a schema'],
  ['{}', '#: expected a schema'],
])('refuses %j', (schema, message) => {
  expect(messageOf(schema)).toContain(message);
});

describe('hostile schemas', () => {
  test('refuses extreme numbers with an error, or accepts them', () => {
    const extremes = [5e-324, 1e-300, 1e-20, 0.1, 1, 3, 2 ** 53, 1e21, 1e300, Number.MAX_VALUE];
    const numbers = [0, ...extremes, ...extremes.map((value) => -value)];
    for (const type of ['integer', 'number'])
      for (const minimum of numbers)
        for (const exclusiveMaximum of numbers)
          for (const multipleOf of [undefined, ...extremes])
            expect(messageOf({ type, minimum, exclusiveMaximum, multipleOf })).toMatch(/^$|^JSON schema: #/);
  });

  test('refuses deeply nested schemas', () => {
    const nested = (depth: number, around: (inner: unknown) => unknown): unknown =>
      Array.from({ length: depth }).reduce<unknown>((inner) => around(inner), {});
    expect(messageOf(nested(65, (items) => ({ items })))).toContain('nested deeper than 64');
    expect(messageOf(nested(65, (part) => ({ allOf: [part], minLength: 1 })))).toContain('cannot be merged');
    for (const around of [
      (inner: unknown) => ({ items: inner }),
      (inner: unknown) => ({ allOf: [inner] }),
      (inner: unknown) => ({ const: inner }),
      (inner: unknown) => ({ enum: [inner] }),
      (inner: unknown) => ({ propertyNames: inner }),
      (inner: unknown) => ({ title: inner }),
    ])
      expect(messageOf(nested(10_000, around))).toContain('#: nested deeper than 256 levels of JSON');
  });

  test('follows long chains of references', () => {
    const chain = (around: (ref: unknown) => unknown) => ({
      $defs: Object.fromEntries(
        Array.from({ length: 5000 }, (_, i) => [`d${i}`, i === 0 ? {} : around({ $ref: `#/$defs/d${i - 1}` })]),
      ),
      $ref: '#/$defs/d4999',
    });
    expect(messageOf(chain((ref) => ref))).toBe('');
    expect(messageOf(chain((ref) => ({ properties: { a: ref } })))).toBe('');
  });

  test('limits long lists', () => {
    const list = <T>(length: number, item: (i: number) => T): T[] => Array.from({ length }, (_, i) => item(i));
    const many = (schema: unknown) => ({ properties: Object.fromEntries(list(3000, (i) => [`p${i}`, schema])) });
    expect(messageOf({ type: list(300_000, () => 'string') })).toBe('');
    expect(messageOf({ enum: list(10_000, (i) => `v${i}`) })).toBe('');
    expect(messageOf({ enum: list(300_000, (i) => i) })).toContain('#/enum: more than 50000 values');
    expect(messageOf({ anyOf: list(300_000, () => ({ type: 'null' })) })).toContain(
      '#/anyOf: more than 10000 alternatives',
    );
    expect(messageOf({ required: list(300_000, (i) => `p${i}`) })).toContain('#/required: more than 10000 properties');
    expect(messageOf(many({ uniqueItems: true, items: { enum: list(7, (i) => i) } }))).toContain(
      'more than 100000 rules and constants',
    );
    expect(messageOf(many({ type: 'integer', multipleOf: 97 }))).toContain('more than 100000 rules and constants');
    expect(messageOf(many({ multipleOf: 3, minimum: 0, maximum: 12_000 }))).toContain(
      'more than 100000 rules and constants',
    );
  });

  test('limits intersections of alternatives', () => {
    const union = { anyOf: Array.from({ length: 101 }, (_, i) => ({ properties: { [`p${i}`]: {} } })) };
    const other = { anyOf: Array.from({ length: 100 }, (_, i) => ({ properties: { [`q${i}`]: {} } })) };
    expect(messageOf({ allOf: [union, other] })).toContain('#/anyOf: more than 10000 alternatives');
    const few = { anyOf: Array.from({ length: 10 }, (_, i) => ({ properties: { [`r${i}`]: {} } })) };
    expect(messageOf({ allOf: [few, { anyOf: other.anyOf.slice(0, 10) }, few, few, { anyOf: [{}] }] })).toMatch(
      /more than/,
    );
  });

  test('limits nested alternatives', () => {
    let wide: unknown = { type: 'string' };
    for (let i = 0; i < 20; i++) wide = { anyOf: [wide, wide, wide] };
    expect(messageOf(wide)).toContain('more than 10000 schemas');
  });

  test('treats __proto__ as an ordinary key', () => {
    const grammar = JSON.stringify(
      schemaToGrammar(JSON.parse('{"type":"object","properties":{"__proto__":{"const":7}},"required":["__proto__"]}')),
    );
    expect(grammar).toContain('\\"__proto__\\"');
    expect(grammar).toContain('"text":"7"');
  });

  test('compares long lists quickly', () => {
    const values = Array.from({ length: 20_000 }, (_, i) => ({ id: i }));
    const begin = process.cpuUsage();
    expect(messageOf({ allOf: [{ enum: values }, { enum: values.slice(1000).reverse() }] })).toBe('');
    expect(messageOf({ oneOf: Array.from({ length: 101 }, (_, i) => ({ const: i })) })).toContain(
      '#/oneOf: more than 100 alternatives',
    );
    // CPU time in microseconds, so that other load on the machine does not count.
    const { user, system } = process.cpuUsage(begin);
    expect(user + system).toBeLessThan(20_000_000);
  });

  test('truncates long paths in messages', () => {
    expect(messageOf({ properties: { ['x'.repeat(5000)]: { not: {} } } }).length).toBeLessThan(400);
  });
});

test('does not modify the schema', () => {
  const schema = {
    type: 'object',
    properties: { a: { allOf: [{ type: 'string' }, { maxLength: 3 }] } },
    anyOf: [{ required: ['a'] }],
    $defs: {},
  };
  const before = JSON.stringify(schema);
  schemaToGrammar(schema);
  expect(JSON.stringify(schema)).toBe(before);
});
