/** Structured output of a real model: samples at a high temperature validate against the schema. */
import Ajv2020 from 'ajv/dist/2020';
import { loadAddon } from '../../ts/addon';
import type { NativeEngine, NativeGrammarSource } from '../../ts/addon-types';
import { Engine } from '../../ts/engine';
import { loadNative } from '../../ts/load';
import type { Model } from '../../ts/model/model';
import { resolveSampling } from '../../ts/sampling';
import { schemaToGrammar } from '../../ts/text/json-schema';
import { numCases } from '../fakes/sample';

const SAMPLES = 6;
let native: NativeEngine;
let model: Model;
let onFinish: () => void = () => undefined;
const replies = new Map<number, { text: string; reason?: string }>();

beforeAll(async () => {
  ({ native, model } = await loadNative(loadAddon, 'demo', {}, (events) => {
    for (const { id, textDelta, finish } of events) {
      const reply = replies.get(id) ?? { text: '' };
      reply.text += textDelta;
      if (finish !== null) reply.reason = finish.reason;
      replies.set(id, reply);
    }
    onFinish();
  }));
});

afterAll(() => native.close());

async function sample(source: NativeGrammarSource): Promise<{ text: string; reason?: string }[]> {
  const grammar = await native.compileGrammar(source);
  const promptTokenIds = await model.text.encode('The answer: ', { addSpecialTokens: true });
  const limits = {
    vocabSize: model.config.spec.vocabSize,
    maxModelLen: native.info.maxModelLen,
    numPromptTokens: promptTokenIds.length,
  };
  const ids = Array.from({ length: SAMPLES }, (_, seed) => {
    const { sampling } = resolveSampling({ temperature: 1.5, maxTokens: 200, seed }, {}, limits);
    return native.submit({
      promptTokenIds,
      numChoices: 1,
      sampling,
      cacheSalt: '',
      adapterId: 0,
      priority: 0,
      stripLeadingSpace: false,
      grammar,
    });
  });
  await new Promise<void>((resolve) => {
    onFinish = () => {
      if (ids.every((id) => replies.get(id)?.reason !== undefined)) resolve();
    };
    onFinish();
  });
  return ids.map((id) => replies.get(id) ?? { text: '' });
}

test.each([
  {
    type: 'object',
    properties: {
      city: { type: 'string', maxLength: 20 },
      temperature: { type: 'integer', minimum: -50, maximum: 50 },
      unit: { enum: ['C', 'F'] },
    },
    required: ['city', 'temperature', 'unit'],
  },
  { type: 'array', items: { type: 'number', minimum: 0, maximum: 1 }, minItems: 3, maxItems: 5 },
  { anyOf: [{ type: 'string', pattern: '^[a-z]{3,12}$' }, { type: 'boolean' }] },
])('samples of %j validate', async (schema) => {
  const validate = new Ajv2020().compile(schema);
  for (const { text, reason } of await sample({ kind: 'rules', ...schemaToGrammar(schema) })) {
    expect([text, reason]).toEqual([text, 'stop']);
    expect([text, validate(JSON.parse(text))]).toEqual([text, true]);
  }
});

test('samples match a regular expression and a GBNF grammar', async () => {
  for (const { text } of await sample({ kind: 'regex', pattern: '(\\d{3}-){2}\\d{4}' }))
    expect(text).toMatch(/^(\d{3}-){2}\d{4}$/);
  for (const { text } of await sample({ kind: 'gbnf', text: 'root ::= ("yes" | "no") "!"{1,3}' }))
    expect(text).toMatch(/^(yes|no)!{1,3}$/);
});

test('a GBNF grammar allows a prefix, and a grammar reports its size', async () => {
  const prefix = { kind: 'until', text: '</think>' } as const;
  const grammar = await loadAddon().compileGrammar({ kind: 'gbnf', text: 'root ::= "yes"', prefix });
  const takes = (text: string): boolean => {
    const matcher = grammar.matcher();
    return matcher.accept(Buffer.from(text)) && matcher.canEnd();
  };
  expect(['Hm.</think>yes', '</think>yes', 'yes', 'Hm.</think>', '</think>yes</think>yes'].map(takes)).toEqual([
    true,
    true,
    false,
    false,
    false,
  ]);
  const large = await loadAddon().compileGrammar({
    kind: 'regex',
    pattern: Array.from({ length: 200 }, (_, i) => String((i + 2) ** 5)).join('|'),
  });
  expect(grammar.sizeBytes).toBeGreaterThan(100);
  expect(large.sizeBytes).toBeGreaterThan(grammar.sizeBytes);
  await expect(
    (async () => loadAddon().compileGrammar({ kind: 'gbnf', text: 'root ::= "a"', prefix: 5 as never }))(),
  ).rejects.toMatchObject({ code: 'invalid_argument' });
});

test('refuses a grammar of another engine and values that are not grammars', async () => {
  const { sampling } = resolveSampling({ maxTokens: 1 }, {}, { vocabSize: 100, maxModelLen: 100, numPromptTokens: 1 });
  const submit = (grammar: unknown) =>
    native.submit({
      promptTokenIds: Int32Array.of(1),
      numChoices: 1,
      sampling,
      cacheSalt: '',
      adapterId: 0,
      priority: 0,
      stripLeadingSpace: false,
      grammar: grammar as never,
    });
  const other = await loadAddon().compileGrammar({ kind: 'regex', pattern: 'a' });
  for (const grammar of [1, 'a', {}, { matcher: () => null }, other])
    expect(() => submit(grammar)).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
});

/** With all of them, two engines work for 10 s. */
const NUM_SCHEMAS = numCases(500, 120);

test('many schemas stay within the memory of the cache, and their texts do not depend on it', async () => {
  const grammarCacheBytes = 128 << 10;
  const [roomy, scarce] = await Promise.all([
    Engine.load('demo', { grammarCacheBytes: 2 ** 30 }),
    Engine.load('demo', { grammarCacheBytes }),
  ]);
  const schemaOf = (i: number) => ({
    type: 'object',
    properties: {
      id: { const: `item ${i}` },
      size: { type: 'integer', minimum: i, maximum: 3 * i },
      tag: { type: 'string', pattern: `^[a-z]{${(i % 7) + 1},${(i % 7) + 5}}$` },
    },
    required: ['id', 'size', 'tag'],
    additionalProperties: false,
  });
  const textOf = async (engine: Engine, i: number): Promise<string> => {
    const options = {
      structuredOutput: { type: 'json', schema: schemaOf(i) },
      temperature: 1.5,
      seed: i,
    } as const;
    const { choices } = await engine.generate('The answer: ', { ...options, maxTokens: 200 }).result();
    return choices[0].text;
  };
  let mostBytes = 0;
  for (let i = 0; i < NUM_SCHEMAS; i += 4) {
    const numbers = [i, i + 1, i + 2, i + 3, Math.floor(i / 2)];
    const [texts, roomyTexts] = await Promise.all([
      Promise.all(numbers.map((number) => textOf(scarce, number))),
      Promise.all([numbers[0], numbers[4]].map((number) => textOf(roomy, number))),
    ]);
    mostBytes = Math.max(mostBytes, scarce.stats().grammarCacheBytes);
    expect([texts[0], texts[4]]).toEqual(roomyTexts);
    for (const [at, text] of texts.entries()) expect(JSON.parse(text)).toMatchObject({ id: `item ${numbers[at]}` });
  }
  expect(mostBytes).toBeLessThanOrEqual(grammarCacheBytes);
  expect(mostBytes).toBeGreaterThan(grammarCacheBytes / 4);
  expect(roomy.stats().grammarCacheBytes).toBeGreaterThan((NUM_SCHEMAS / 50) * grammarCacheBytes);
  await Promise.all([roomy.close(), scarce.close()]);
}, 300_000);

test('a freed grammar is refused, and one in use says so', async () => {
  const grammar = await loadAddon().compileGrammar({ kind: 'regex', pattern: 'a' });
  expect(grammar.isInUse()).toBe(false);
  const matcher = grammar.matcher();
  expect(grammar.isInUse()).toBe(true);
  grammar.free();
  grammar.free();
  expect(() => grammar.matcher()).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
  expect(matcher.accept(Buffer.from('a'))).toBe(true);
});
