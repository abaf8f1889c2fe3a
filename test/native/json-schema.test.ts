/** The schema front end with the grammar engine: every accepted text validates, and valid documents are accepted. */
import Ajv2020 from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import { loadAddon } from '../../ts/addon';
import type { NativeGrammar } from '../../ts/addon-types';
import type { Grammar } from '../../ts/text/grammar';
import { jsonObjectGrammar, schemaToGrammar } from '../../ts/text/json-schema';
import { withProperties } from '../../ts/text/unicode-properties';
import { numCases } from '../fakes/sample';
import { accepts, randomText } from './grammar-texts';
import { SCHEMAS } from './json-schema-cases';

// Decimal steps are not exact in binary.
const ajv = new Ajv2020({ strict: false, allowUnionTypes: true, logger: false, multipleOfPrecision: 10 });
addFormats(ajv);

const compile = (grammar: Grammar): Promise<NativeGrammar> =>
  loadAddon().compileGrammar({ kind: 'rules', ...withProperties(grammar) });

test('has at least 50 schemas', () => {
  expect(SCHEMAS.length).toBeGreaterThanOrEqual(50);
});

describe.each(SCHEMAS.map((entry) => ({ ...entry, title: JSON.stringify(entry.schema).slice(0, 100) })))(
  '$title',
  ({ schema, valid, invalid }) => {
    const validate = ajv.compile(schema as object);
    let grammar: NativeGrammar;
    beforeAll(async () => {
      grammar = await compile(schemaToGrammar(schema));
    });

    test('accepts valid documents, compact and indented', () => {
      for (const value of valid) {
        expect([value, validate(value)]).toEqual([value, true]);
        for (const text of [JSON.stringify(value), JSON.stringify(value, null, 2)])
          expect([text, accepts(grammar, text)]).toEqual([text, true]);
      }
    });

    test('refuses invalid documents', () => {
      for (const value of invalid) {
        expect([value, validate(value)]).toEqual([value, false]);
        expect([value, accepts(grammar, JSON.stringify(value))]).toEqual([value, false]);
      }
    });

    test('accepts only valid documents', () => {
      for (let seed = 1; seed <= numCases(50, 20); seed++) {
        const text = randomText(grammar, seed);
        const value: unknown = JSON.parse(text);
        if (!validate(value)) throw new Error(`seed ${seed}: ${text}: ${ajv.errorsText(validate.errors)}`);
      }
    });
  },
);

test('the JSON object grammar accepts any object and nothing else', async () => {
  const grammar = await compile(jsonObjectGrammar());
  expect(accepts(grammar, '{"a": [1, {"b": null}], "é": "\\u00e9\\n"}')).toBe(true);
  for (const text of ['[]', '1', '{', '{"a"}', '{"a":"\\ud800"}', '{"a":1}}', '{  }'])
    expect([text, accepts(grammar, text)]).toEqual([text, false]);
  for (let seed = 1; seed <= 30; seed++) expect(typeof JSON.parse(randomText(grammar, seed))).toBe('object');
});

test('compiles a large schema', async () => {
  const properties = Object.fromEntries(
    Array.from({ length: 200 }, (_, i) => [`property${i}`, { type: ['string', 'null'], maxLength: 1000 + i }]),
  );
  const grammar = await compile(schemaToGrammar({ type: 'object', properties }));
  expect(accepts(grammar, '{"property3": "x", "property7": null, "property199": "y"}')).toBe(true);
  expect(accepts(grammar, '{"property7": null, "property3": "x"}')).toBe(false);
});

test('compiles long names, many names and wide lists', async () => {
  const long = 'x'.repeat(3000);
  const grammar = await compile(
    schemaToGrammar({ properties: { [long]: { type: 'integer' } }, additionalProperties: { type: 'string' } }),
  );
  expect(accepts(grammar, `{"${long}": 1, "${long}x": "a", "${long.slice(1)}": "b"}`)).toBe(true);
  expect(accepts(grammar, `{"${long}": "a"}`)).toBe(false);
  const names = Array.from({ length: 2000 }, (_, i) => `property ${i}`);
  const wide = await compile(
    schemaToGrammar({
      properties: Object.fromEntries(names.map((name) => [name, { type: 'null' }])),
      required: names.slice(1990),
      additionalProperties: true,
    }),
  );
  const required = names.slice(1990).map((name) => `"${name}": null`);
  expect(accepts(wide, `{"property 3": null, ${required.join(', ')}, "property": 1}`)).toBe(true);
  expect(accepts(wide, `{${required.join(', ')}, "property 3": 1}`)).toBe(false);
  const list = await compile(schemaToGrammar({ enum: Array.from({ length: 10_000 }, (_, i) => `value ${i}`) }));
  expect(accepts(list, '"value 9999"')).toBe(true);
});

test('bounds what the patterns of one schema take together', async () => {
  const properties = Object.fromEntries(
    Array.from({ length: 500 }, (_, i) => [`p${i}`, { pattern: '^(a|bc)*$', minLength: 1, maxLength: 3000 + i }]),
  );
  await expect(compile(schemaToGrammar({ properties }))).rejects.toThrow('too large for the other patterns');
});

test('an error inside a pattern names the path of the keyword', async () => {
  const compiling = (schema: unknown) => compile(schemaToGrammar(schema));
  await expect(compiling({ properties: { a: { pattern: '(?<=a)b' } } })).rejects.toMatchObject({
    code: 'invalid_argument',
    message: 'JSON schema: #/properties/a/pattern: lookbehind is not supported at position 4',
  });
  await expect(compiling({ pattern: '^(a{5000}b|c{6000})*$', minLength: 3, maxLength: 20_000 })).rejects.toThrow(
    'JSON schema: #/pattern: too large for the other patterns, the lengths or the names beside it',
  );
  await expect(compiling({ $ref: '#' })).rejects.toThrow('no text matches');
  await expect(compiling({ type: 'object', properties: { a: { $ref: '#' } }, required: ['a'] })).rejects.toThrow(
    'no text matches',
  );
});

test('refuses malformed grammar sources', async () => {
  const compileAny = (source: unknown) => loadAddon().compileGrammar(source as never);
  for (const source of [
    undefined,
    null,
    1,
    {},
    { kind: 'x' },
    { kind: 'gbnf' },
    { kind: 'rules', root: 'a' },
    { kind: 'rules', root: 'a', rules: [1] },
    {
      kind: 'rules',
      root: 'a',
      rules: [{ name: 'a', expr: { kind: 'repeat', min: -1, max: null, item: { kind: 'literal', text: '' } } }],
    },
    { kind: 'rules', root: 'a', rules: [{ name: 'a', expr: { kind: 'class', ranges: [[0, 1e9]] } }] },
  ]) {
    expect(() => compileAny(source)).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
  }
  let deep: unknown = { kind: 'literal', text: 'a' };
  for (let i = 0; i < 100_000; i++) deep = { kind: 'repeat', min: 0, max: 1, item: deep };
  expect(() => compileAny({ kind: 'rules', root: 'a', rules: [{ name: 'a', expr: deep }] })).toThrow(
    'expected expressions of at most 600 levels',
  );
  await expect(compileAny({ kind: 'gbnf', text: 'root ::= (' })).rejects.toMatchObject({ code: 'invalid_argument' });
  await expect(compileAny({ kind: 'regex', pattern: 'a{2,1}' })).rejects.toMatchObject({ code: 'invalid_argument' });
});

test.each<[schema: object, text: string]>([
  [{ type: 'number', exclusiveMaximum: 5, minimum: 1e-20 }, '4.99999999999999999999'],
  [{ type: 'number', exclusiveMaximum: 1e16 }, '9999999999999999.9'],
  [{ type: 'number', exclusiveMinimum: 0, maximum: 1 }, `0.${'0'.repeat(330)}1`],
  [{ type: 'number', multipleOf: 0.1, exclusiveMinimum: 5e14 }, '500000000000000.01'],
  [{ type: 'integer', minimum: 1.7e308 }, '9'.repeat(309)],
])('%j: no text is parsed as a number out of range', async (schema, text) => {
  const value = JSON.parse(text) as number;
  expect(Number.isFinite(value) && ajv.validate(schema, value)).toBe(false);
  expect(accepts(await compile(schemaToGrammar(schema)), text)).toBe(false);
});

test.each([
  ['uri', '(?<!x)https:\\/\\/example\\.com', 'lookbehind is not supported'],
  ['date', '\\p{Letters}', 'unknown Unicode property at position 3'],
  ['emoji', '^(\\p{Emoji})\\1$', 'backreferences are not supported'],
])('refuses a pattern that no automaton matches beside a format: %s %s', async (format, pattern, message) => {
  await expect(compile(schemaToGrammar({ type: 'string', format, pattern }))).rejects.toThrow(`#/pattern: ${message}`);
});

test.each([
  '^(?=[\\s\\S]*[\\p{Extended_Pictographic}\\p{Regional_Indicator}\\u20E3])[\\p{Extended_Pictographic}\\p{Emoji_Component}]+$',
  '^(\\p{Extended_Pictographic}|\\p{Emoji_Component})+$',
])('the format emoji matches the pattern that zod sends with it: %s', async (pattern) => {
  const grammar = await compile(schemaToGrammar({ type: 'string', format: 'emoji', pattern }));
  for (let seed = 1; seed <= 100; seed++)
    expect(JSON.parse(randomText(grammar, seed))).toMatch(new RegExp(pattern, 'u'));
});

test('a duration has no gaps between its units, as in RFC 3339 but not in ajv', async () => {
  const grammar = await compile(schemaToGrammar({ type: 'string', format: 'duration' }));
  expect(['P1Y2D', 'PT1H5S', 'P1Y2M3D', 'PT1H4M5S'].map((text) => accepts(grammar, JSON.stringify(text)))).toEqual([
    false,
    false,
    true,
    true,
  ]);
});

describe('Unicode properties', () => {
  test.each([
    ['^[\\p{L}\\p{M}]+$', ['é', 'Zürich', '東京', 'नमस्ते', '𝒜'], ['', 'a1', 'a b', '٣']],
    ['^\\p{Lu}\\p{Ll}*( \\p{Lu}\\p{Ll}*)*$', ['Ärger', 'Élan Vital'], ['ärger', 'ÄRger']],
    ['^[^\\p{L}\\d]{2}$', ['--', '…!', '😀 '], ['a-', '-1', 'é-', '--- ']],
    ['^\\P{Script=Greek}+$', ['abc', 'я'], ['αβγ', 'abγ']],
    ['^(?=.*\\p{Nd})[\\p{L}\\p{Nd}]{3,5}$', ['ab٣', '1éa'], ['abc', 'ab-1']],
    ['\\p{Sc}', ['costs €5', '$'], ['5']],
  ])('%s', async (pattern, valid, invalid) => {
    const schema = { type: 'string', pattern };
    const grammar = await compile(schemaToGrammar(schema));
    for (const text of [...valid, ...invalid]) {
      expect([text, accepts(grammar, JSON.stringify(text))]).toEqual([text, ajv.validate(schema, text)]);
      expect(ajv.validate(schema, text)).toBe(valid.includes(text));
    }
    for (let seed = 1; seed <= 50; seed++)
      expect(JSON.parse(randomText(grammar, seed))).toMatch(new RegExp(pattern, 'u'));
  });

  test.each(['\\p', '\\p{', '\\p{}', '\\p{Letters}', '\\p{script=greek}', '\\p{RGI_Emoji}', '\\p{__proto__}'])(
    'refuses %s',
    async (pattern) => {
      await expect(compile(schemaToGrammar({ type: 'string', pattern }))).rejects.toThrow('Unicode property');
    },
  );

  test('a grammar may name 16', async () => {
    // The tests above have found the code points of the first eight. To find those of another one takes 0.2 s.
    const names = 'L Lu Ll M Nd Sc Emoji Script=Greek Pc Pd Pe Pf Zl Zp Zs Cc Cf'.split(' ');
    const pattern = (count: number) =>
      `^[${names
        .slice(0, count)
        .map((name) => `\\p{${name}}`)
        .join('')}]$`;
    expect(accepts(await compile(schemaToGrammar({ type: 'string', pattern: pattern(16) })), '"_"')).toBe(true);
    expect(() => withProperties(schemaToGrammar({ type: 'string', pattern: pattern(17) }))).toThrow(
      'grammar: expected at most 16 Unicode properties, got 17',
    );
  });
});
