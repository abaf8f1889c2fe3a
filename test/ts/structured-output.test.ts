import { z } from 'zod';
import { Engine, type StructuredOutput } from '../../ts';
import { planStructuredOutput } from '../../ts/structured-output';
import { fake, type FakeGrammar } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

const regex = {
  kind: 'regex',
  pattern: 'a|b',
  isSearch: false,
  isJsonString: false,
  minLength: 0,
  maxLength: null,
  label: 'regex',
};

test.each<[StructuredOutput, unknown]>([
  [
    { type: 'regex', pattern: 'a|b' },
    { kind: 'rules', root: 'root', rules: [{ name: 'root', expr: regex, isPlain: true }] },
  ],
  [
    { type: 'choice', choices: ['a', 'b'] },
    {
      kind: 'rules',
      root: 'root',
      rules: [
        {
          expr: {
            kind: 'choice',
            items: [
              { kind: 'literal', text: 'a' },
              { kind: 'literal', text: 'b' },
            ],
          },
          isPlain: true,
        },
      ],
    },
  ],
  [
    { type: 'grammar', grammar: 'root ::= "a"' },
    { kind: 'gbnf', text: 'root ::= "a"' },
  ],
  [
    { type: 'json' },
    {
      kind: 'rules',
      root: 'root',
      rules: expect.arrayContaining([expect.objectContaining({ name: 'json object' })]) as unknown,
    },
  ],
  [
    { type: 'json', schema: { type: 'integer' } },
    { kind: 'rules', root: 'root' },
  ],
  [
    { type: 'json', schema: true },
    { kind: 'rules', root: 'root' },
  ],
])('submits %j as a grammar', async (structuredOutput, source) => {
  await engine.generate('x', { structuredOutput }).result();
  expect((fake.requests[0].grammar as FakeGrammar).source).toMatchObject(source as object);
});

test('is compiled once for compile(), generate() and chat()', async () => {
  const structuredOutput = { type: 'choice', choices: ['once'] } as const;
  await Promise.all([
    engine.compile(structuredOutput),
    engine.generate([1], { structuredOutput }).result(),
    engine.chat([{ role: 'user', content: 'x' }], { structuredOutput }).result(),
  ]);
  expect(fake.grammars).toHaveLength(1);
  expect(fake.requests[0].grammar).toBe(fake.requests[1].grammar);
});

test('different outputs never share a key', () => {
  const outputs: StructuredOutput[] = [
    { type: 'json' },
    { type: 'json', schema: {} },
    { type: 'json', schema: true },
    { type: 'regex', pattern: '{}' },
    { type: 'grammar', grammar: '{}' },
    { type: 'choice', choices: ['{}'] },
    { type: 'choice', choices: ['a', 'b'] },
    { type: 'choice', choices: ['a","b'] },
    { type: 'json', schema: { properties: { a: {}, b: {} } } },
    { type: 'json', schema: { properties: { b: {}, a: {} } } },
  ];
  expect(new Set(outputs.map((output) => planStructuredOutput(output).json)).size).toBe(outputs.length);
});

test.each<[unknown, string, RegExp]>([
  [5, 'structuredOutput', /an object/],
  [{}, 'structuredOutput.type', /one of json, regex, choice, grammar/],
  [{ type: 'ebnf' }, 'structuredOutput.type', /got "ebnf"/],
  [{ type: 'json', schema: 5 }, 'structuredOutput.schema', /an object, got 5/],
  [{ type: 'json', schema: z.object({ a: z.string() }) }, 'structuredOutput.schema', /z\.toJSONSchema\(schema\)/],
  [{ type: 'json', schema: new (class Schema {})() }, 'structuredOutput.schema', /a schema object of a library/],
  [{ type: 'json', scheme: {} }, 'structuredOutput.scheme', /one of the options type, schema/],
  [
    { type: 'json', schema: { properties: { a: { uniqueItems: true } } } },
    'structuredOutput.schema',
    /#\/properties\/a\/uniqueItems/,
  ],
  [
    { type: 'json', schema: { properties: { a: { not: { type: 'string' } } } } },
    'structuredOutput.schema',
    /#\/properties\/a\/not: this keyword is not supported/,
  ],
  [{ type: 'json', schema: false }, 'structuredOutput.schema', /no value/],
  [{ type: 'regex' }, 'structuredOutput.pattern', /a string, got undefined/],
  [{ type: 'regex', pattern: '' }, 'structuredOutput.pattern', /at least one character/],
  [{ type: 'choice', choices: [] }, 'structuredOutput.choices', /1 to 10000 strings/],
  [{ type: 'choice', choices: 'a' }, 'structuredOutput.choices', /an array/],
  [{ type: 'choice', choices: ['a', ''] }, 'structuredOutput.choices[1]', /at least one character/],
  [{ type: 'grammar', grammar: 'a ::= "b"' }, 'structuredOutput.grammar', /no rule root/],
])('refuses %j without submitting a request', async (structuredOutput, param, message) => {
  const expected = { code: 'invalid_argument', param, message: expect.stringMatching(message) as string };
  await expect(engine.compile(structuredOutput as never)).rejects.toMatchObject(expected);
  await expect(engine.generate('x', { structuredOutput: structuredOutput as never }).result()).rejects.toMatchObject(
    expected,
  );
  await expect(
    engine.chat([{ role: 'user', content: 'x' }], { structuredOutput: structuredOutput as never }).result(),
  ).rejects.toMatchObject(expected);
  expect(fake.requests).toHaveLength(0);
});
