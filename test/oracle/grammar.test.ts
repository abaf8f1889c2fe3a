/**
 * Compares our grammars with xgrammar: for schemas, where some differences are decided, and for grammar texts, which
 * must agree.
 */
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { loadAddon } from '../../ts/addon';
import { accepts, mutate, randomText } from '../native/grammar-texts';
import { grammarCases } from './grammar-cases';

interface Answer {
  verdicts?: boolean[];
  error?: string;
}

function askXgrammar(cases: unknown[]): Answer[] {
  const { stdout, status } = spawnSync(process.execPath, [path.join(__dirname, 'xgrammar.cjs')], {
    input: JSON.stringify(cases),
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  });
  expect(status).toBe(0);
  return JSON.parse(stdout) as Answer[];
}

/** Valid texts that we refuse and xgrammar accepts, with the reason for each decision. */
const DECIDED: { reason: string; applies: (schema: Record<string, unknown>, text: string) => boolean }[] = [
  {
    reason: 'formats cover the common part of their RFC',
    applies: (schema) => JSON.stringify(schema).includes('"format"'),
  },
  {
    reason: 'properties that the schema does not name need an explicit additionalProperties',
    applies: (schema, text) => {
      const names = namesIn(schema, 'properties');
      return (
        names.size > 0 &&
        namesIn(schema).has('additionalProperties') === false &&
        keysOf(text).some((key) => !names.has(key))
      );
    },
  },
  {
    reason: 'beside an open bound of 16 or more digits, numbers have no fraction',
    applies: ({ exclusiveMinimum: low = 0, exclusiveMaximum: high = 0 }, text) =>
      Math.max(Math.abs(low as number), Math.abs(high as number)) >= 1e15 && text.includes('.'),
  },
  {
    reason: 'multiples without close bounds have up to nine digits before the point',
    applies: ({ multipleOf }, text) => multipleOf !== undefined && /\d{10}/.test(text),
  },
  { reason: 'integers have no fraction and no exponent', applies: (_, text) => /\d[eE][-+]?\d/.test(text) },
  {
    reason: 'whitespace is at most one space, or one line break and its indentation',
    applies: (_, text) => /[ \n]\s|\t|\r/.test(text),
  },
  {
    reason: 'properties have the order of the schema',
    applies: (schema, text) => {
      const named = Object.keys(schema.properties ?? {});
      const order = Object.keys(JSON.parse(text) as object)
        .map((key) => named.indexOf(key))
        .filter((at) => at >= 0);
      return order.some((at, i) => i > 0 && at < order[i - 1]);
    },
  },
];

/** Returns the names of all members in a value. With `parent`, only of members of objects of that name. */
function namesIn(value: unknown, parent?: string, of?: string): Set<string> {
  if (typeof value !== 'object' || value === null) return new Set();
  const isList = Array.isArray(value);
  return new Set(
    Object.entries(value).flatMap(([name, child]) => [
      ...(!isList && (parent === undefined || parent === of) ? [name] : []),
      ...namesIn(child, parent, isList ? of : name),
    ]),
  );
}

const keysOf = (text: string): string[] => [...namesIn(JSON.parse(text))];

test('schemas: our texts are valid, and texts that only xgrammar accepts are invalid or decided', async () => {
  const cases = await grammarCases();
  const answers = askXgrammar(cases.map(({ schema, texts }) => ({ schema, texts })));
  const unexplained: string[] = [];
  const count = { agree: 0, onlyOurs: 0, onlyTheirsInvalid: 0, onlyTheirsDecided: 0 };
  cases.forEach(({ schema, texts }, i) =>
    texts.forEach(({ text, ours, isValid }, j) => {
      if (ours && !isValid) unexplained.push(`we accept an invalid text: ${JSON.stringify(schema)}: ${text}`);
      const theirs = answers[i].verdicts?.[j];
      if (theirs === undefined) return;
      if (theirs === ours) count.agree++;
      // NOTE: valid by the check above. xgrammar does not support some number bounds and patterns with quotes.
      else if (ours) count.onlyOurs++;
      else if (!isValid) count.onlyTheirsInvalid++;
      else if (DECIDED.some(({ applies }) => applies(schema as Record<string, unknown>, text)))
        count.onlyTheirsDecided++;
      else unexplained.push(`only xgrammar accepts ${text} for ${JSON.stringify(schema)}`);
    }),
  );
  expect(unexplained).toEqual([]);
  // xgrammar refuses, for example, false as an alternative and lookahead.
  expect(answers.filter(({ error }) => error !== undefined).length).toBeLessThanOrEqual(8);
  const numTexts = count.agree + count.onlyOurs + count.onlyTheirsInvalid + count.onlyTheirsDecided;
  expect(numTexts).toBeGreaterThan(1500);
  expect(count.agree / numTexts).toBeGreaterThan(0.85);
});

const GRAMMARS = [
  'root ::= "a" [b-d]* ("e" | "fg"){2,5} [^a-z\\n]?',
  'root ::= item ("," item)*\nitem ::= [0-9]+ | "[" root "]" | "(" item? ")"',
  'root ::= "{" pair{0,3} "}"\npair ::= key ":" value ";"\nkey ::= [a-z_] [a-z0-9_]{0,7}\nvalue ::= "true" | "false" | "\\"" [^"\\\\]* "\\"" | "{" pair* "}"',
  // No non-ASCII character classes: xgrammar 0.1.27 does not accept ì for [à-ü].
  'root ::= ("é" | "€" ("ì" | "ê")+ | "😀" [^b-z]){1,4} "."?',
  'root ::= (("a" | "ab" | "ba"){3,6} "!"?)+',
];

test('grammar texts: both accept the same texts', async () => {
  const cases = await Promise.all(
    GRAMMARS.map(async (ebnf) => {
      const grammar = await loadAddon().compileGrammar({ kind: 'gbnf', text: ebnf });
      const texts = new Set<string>(['']);
      for (let seed = 1; seed <= 60; seed++) {
        const text = randomText(grammar, seed, 30);
        for (const each of [text, mutate(text, seed), mutate(mutate(text, seed), seed + 1000)]) texts.add(each);
      }
      return { ebnf, texts: [...texts].map((text) => ({ text, ours: accepts(grammar, text) })) };
    }),
  );
  const answers = askXgrammar(cases);
  let numAccepted = 0;
  cases.forEach(({ ebnf, texts }, i) => {
    expect([ebnf, answers[i].error]).toEqual([ebnf, undefined]);
    texts.forEach(({ text, ours }, j) => {
      expect([ebnf, text, answers[i].verdicts?.[j]]).toEqual([ebnf, text, ours]);
      if (ours) numAccepted++;
    });
    expect(numAccepted).toBeGreaterThan(0);
    expect(texts.every(({ ours }) => ours)).toBe(false);
  });
});
