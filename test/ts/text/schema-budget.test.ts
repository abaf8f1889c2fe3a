import { schemaToGrammar } from '../../../ts/text/json-schema';
import { TOOL_CALL_FORMATS, toolCallGrammar } from '../../../ts/text/tool-calls';

const names = (num: number): string[] => Array.from({ length: num }, (_, i) => `p${i}`);
const objectOf = (num: number): Record<string, unknown> => ({
  type: 'object',
  properties: Object.fromEntries(names(num).map((name) => [name, { type: 'string' }])),
});
const refuses = (schema: unknown, message: string | RegExp): void =>
  expect(() => schemaToGrammar(schema)).toThrow(message);

test('refuses schemas that would block the thread', () => {
  refuses(objectOf(10_001), '#: more than 10000 properties');
  refuses({ type: 'object', required: names(300_000) }, '#/required: more than 10000 properties');
  const big = objectOf(9000);
  const ref = { $ref: '#/$defs/big' };
  refuses(
    { $defs: { big }, allOf: names(4000).map(() => ref) },
    /^JSON schema: #: combines schemas of more than 300000 values$/,
  );
  refuses({ $defs: { big }, ...big, anyOf: names(4000).map(() => ref) }, 'more than 10000 schemas');
  refuses(
    {
      oneOf: names(100).map((_, i) => ({
        ...objectOf(200),
        required: names(200),
        properties: { ...(objectOf(200).properties as object), p199: { const: i } },
      })),
    },
    '#/oneOf: combines schemas',
  );
  refuses(
    { $defs: { list: { enum: names(50_000) } }, allOf: names(1000).map(() => ({ $ref: '#/$defs/list' })) },
    'combines schemas',
  );
  const bounded = (i: number) => ({ type: 'number', minimum: -123456.789012345 - i, maximum: 98765.4321 + i });
  refuses(
    { properties: Object.fromEntries(names(3000).map((name, i) => [name, bounded(i)])) },
    'more than 100000 rules and constants',
  );
});

test('accepts large and simple schemas', () => {
  const percent = { type: 'number', minimum: 0, maximum: 100 };
  expect(() =>
    schemaToGrammar({ properties: Object.fromEntries(names(4000).map((name) => [name, percent])) }),
  ).not.toThrow();
  expect(() => schemaToGrammar(objectOf(4000))).not.toThrow();
  expect(() =>
    schemaToGrammar({
      $defs: { base: objectOf(50) },
      properties: Object.fromEntries(
        names(100).map((name) => [name, { allOf: [{ $ref: '#/$defs/base' }, { required: ['p1'] }] }]),
      ),
    }),
  ).not.toThrow();
  expect(() =>
    schemaToGrammar({
      oneOf: names(50).map((name) => ({ ...objectOf(20), properties: { kind: { const: name } }, required: ['kind'] })),
    }),
  ).not.toThrow();
});

test('all tools share one budget', () => {
  const tools = names(300).map((name) => ({
    type: 'function' as const,
    function: { name, parameters: objectOf(100) },
  }));
  for (const format of TOOL_CALL_FORMATS) {
    expect(() => toolCallGrammar(format, tools, { mode: 'required', parallel: true })).toThrow(
      expect.objectContaining({
        code: 'invalid_argument',
        message: expect.stringContaining('more than 10000 schemas') as string,
      }) as Error,
    );
    expect(() => toolCallGrammar(format, tools.slice(0, 40), { mode: 'required', parallel: true })).not.toThrow();
  }
});
