import { literal } from '../../../ts/text/grammar';
import { buildGrammarSource } from '../../../ts/text/grammar-source';

const YES = { kind: 'choice', choices: ['yes'] } as const;

test('reasoning becomes another rule, or a field beside a GBNF text', () => {
  const source = buildGrammarSource({ kind: 'reasoned', format: 'think', thinking: 'inside', then: YES });
  expect(source).toMatchObject({
    kind: 'rules',
    root: 'prefix root',
    rules: [
      { name: 'root', expr: literal('yes') },
      { name: 'prefix root', expr: { kind: 'sequence' } },
    ],
  });
  const gbnf = buildGrammarSource({
    kind: 'reasoned',
    format: 'think',
    thinking: 'inside',
    then: { kind: 'gbnf', text: 'g' },
  });
  expect(gbnf).toMatchObject({ kind: 'gbnf', text: 'g', prefix: { kind: 'sequence' } });
  expect(buildGrammarSource({ kind: 'reasoned', format: 'think', thinking: 'after', then: YES })).toEqual(
    buildGrammarSource(YES),
  );
});

test('GBNF beside tools that may be called is refused', () => {
  expect(() =>
    buildGrammarSource({ kind: 'either', first: YES, second: { kind: 'gbnf', text: 'g' }, param: 'structuredOutput' }),
  ).toThrow(expect.objectContaining({ code: 'invalid_argument', param: 'structuredOutput' }) as Error);
});
