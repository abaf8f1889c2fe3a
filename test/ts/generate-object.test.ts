/** generateObject: schemas, validation and errors. */
import { z } from 'zod';
import { Engine, generateObject } from '../../ts';
import { fake } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

test('constrains the text to a Zod schema, and parses it', async () => {
  fake.answer = () => ({ text: '{"name": "Anna", "born": "1990-05-01"}' });
  const schema = z.object({ name: z.string(), born: z.iso.date().transform((text) => new Date(text)) });
  const { object, usage } = await generateObject(engine, 'Anna was born in May 1990.', { schema });
  expect(object).toEqual({ name: 'Anna', born: new Date('1990-05-01') });
  expect(usage.completionTokens).toBeGreaterThan(0);
  expect(fake.grammars).toHaveLength(1);
});

test('takes a JSON Schema and a conversation', async () => {
  fake.answer = () => ({ text: '[1, 2]' });
  const schema = { type: 'array', items: { type: 'integer' } };
  const { object } = await generateObject(engine, [{ role: 'user', content: 'Count' }], { schema });
  expect(object).toEqual([1, 2]);
});

test('a rule that the grammar cannot express fails with its path', async () => {
  fake.answer = () => ({ text: '{"age": 31}' });
  const schema = z.object({ age: z.number().refine((age) => age % 2 === 0, 'must be even') });
  await expect(generateObject(engine, 'x', { schema })).rejects.toMatchObject({
    code: 'invalid_output',
    message: 'age: must be even (zod refuses {"age": 31})',
  });
});

test('a value that was cut off says what to do', async () => {
  fake.answer = () => ({ text: '{"age": 31}' });
  const schema = z.object({ age: z.number() });
  await expect(generateObject(engine, 'x', { schema, maxTokens: 3 })).rejects.toMatchObject({
    code: 'invalid_output',
    message: expect.stringContaining('ended after 3 tokens. Raise maxTokens'),
  });
});

test('a schema without a JSON Schema is refused', async () => {
  const schema = { '~standard': { version: 1 as const, vendor: 'mine', validate: (value: unknown) => ({ value }) } };
  await expect(generateObject(engine, 'x', { schema })).rejects.toThrow(
    /schema: expected a schema with a JSON Schema \(Zod 4\.2.*got a schema of mine without one/,
  );
  await expect(generateObject(engine, 'x', { schema: z.object({ at: z.date() }) })).rejects.toThrow(
    /schema: expected a schema with a JSON Schema, got one that zod cannot convert: .*Use types that JSON has/,
  );
  await expect(generateObject(engine, 'x', undefined as never)).rejects.toThrow(
    'options: expected an object, got undefined',
  );
});

test('a call in the form of the AI SDK is refused and names the engine', async () => {
  const schema = z.object({ age: z.number() });
  const call = generateObject as unknown as (options: object) => Promise<unknown>;
  await expect(call({ model: engine, schema, prompt: 'x' })).rejects.toThrow(
    'engine: expected an engine, as await Engine.load(model) returns it, got an object',
  );
});
