import { TYPES } from '../../../ts/text/schema-types';
import { argumentTypesOf, typesAllowed } from '../../../ts/text/tool-calls/argument-types';

const A = { $ref: '#/$defs/a' };

test.each<[string, object, readonly string[]]>([
  ['a type', { type: ['string', 'null'] }, ['null', 'string']],
  ['alternatives', { anyOf: [{ type: 'string' }, { const: 5 }] }, ['string', 'integer']],
  ['a reference', { $defs: { a: { type: 'object' } }, ...A }, ['object']],
  ['all of two references', { $defs: { a: { enum: ['x', null] } }, allOf: [A, { type: 'string' }, A] }, ['string']],
  ['a reference to itself', { $defs: { a: A }, ...A }, TYPES],
  ['an empty schema', {}, TYPES],
])('the types that %s allows', (_name, schema, types) => {
  expect(new Set(typesAllowed(schema, schema))).toEqual(new Set(types));
});

test('an argument that the schema does not name is a string', () => {
  expect(argumentTypesOf({ properties: { n: { type: 'integer' } } })('m')).toEqual(['string']);
});

test.each(['anyOf', 'oneOf', 'allOf'])('judges each part of a recursive schema once: %s', (keyword) => {
  let numResolved = 0;
  const list = (name: string) => ({ [keyword]: Array.from({ length: 8 }, () => ({ $ref: `#/$defs/${name}` })) });
  const chain = Array.from({ length: 7 }, (_, i) => [`d${i}`, list(`d${i + 1}`)]);
  const defs = { a: list('a'), ...Object.fromEntries(chain) };
  const root = {
    get $defs() {
      numResolved++;
      return defs;
    },
  };
  expect(typesAllowed(A, root)).toEqual(TYPES);
  // A chain without a cycle branches as much.
  expect(typesAllowed({ $ref: '#/$defs/d0' }, root)).toEqual(TYPES);
  expect(numResolved).toBeLessThan(100);
});
