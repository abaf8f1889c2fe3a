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
  [{ not: {} }, '#/not: this keyword is not supported'],
  [
    { type: 'object', properties: { 'a/b': { type: 'array', items: { if: {} } } } },
    '#/properties/a~1b/items/if: this keyword is not supported',
  ],
  [
    { anyOf: [{ type: 'string' }, { type: 'array', contains: {} }] },
    '#/anyOf/1/contains: this keyword is not supported',
  ],
  [{ type: 'object', dependentRequired: {} }, '#/dependentRequired: this keyword is not supported'],
  [{ type: 'object', propertyNames: {} }, '#/propertyNames: this keyword is not supported'],
  [{ type: 'array', uniqueItems: true }, '#/uniqueItems: not supported'],
  [{ type: 'array', items: [{}] }, '#/items: expected a schema'],
  [{ type: 'number', multipleOf: 0.1 }, '#/multipleOf: not supported'],
  [{ type: 'string', format: 'iri' }, '#/format: not supported; supported are date'],
  [{ type: 'string', format: 'date', pattern: 'a' }, '#/format: not supported with pattern'],
  [{ type: 'text' }, '#/type: expected one of object'],
  [{ type: 'integer', minimum: 3, maximum: 2 }, '#/minimum: above the maximum'],
  [{ type: 'integer', exclusiveMinimum: 3, maximum: 3 }, '#/exclusiveMinimum: above the maximum'],
  [{ type: 'number', exclusiveMinimum: 3, maximum: 3 }, '#/exclusiveMinimum: above the maximum'],
  [{ type: 'string', minLength: 3, maxLength: 2 }, '#/maxLength: below minLength'],
  [{ type: 'string', minLength: 1.5 }, '#/minLength: expected an integer of 0 or more'],
  [{ type: 'string', pattern: 3 }, '#/pattern: expected a string'],
  [{ enum: [] }, '#: no value matches'],
  [{ type: 'integer', enum: ['a'] }, '#: no value matches'],
  [{ enum: ['a'], minLength: 1 }, '#/minLength: not supported with enum'],
  [false, '#: no value matches'],
  [{ oneOf: [{ type: 'integer' }, { type: 'number' }] }, '#/oneOf: a value might match both alternatives 0 and 1'],
  [
    { oneOf: [{ type: 'null' }, { type: 'object', properties: { a: {} } }, { type: 'object', properties: { b: {} } }] },
    '#/oneOf: a value might match both alternatives 1 and 2',
  ],
  [{ allOf: [{ pattern: 'a' }, { pattern: 'b' }] }, '#/pattern: two different pattern'],
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
    { type: 'object', properties: { a: {} }, minProperties: 1 },
    '#/minProperties: not supported with optional properties',
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
  test('refuses deeply nested schemas', () => {
    let deep: unknown = {};
    for (let i = 0; i < 10_000; i++) deep = { items: deep };
    expect(messageOf(deep)).toContain('nested deeper than 64');
    let all: unknown = {};
    for (let i = 0; i < 10_000; i++) all = { allOf: [all] };
    expect(messageOf(all)).toContain('cannot be merged');
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
    expect(grammar).toContain('\\"__proto__\\":');
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
