/** Models of LangChain, with its runnables. */
import type { ToolMessage } from '@langchain/core/messages';
import { HumanMessage, SystemMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { z } from 'zod';
import { Engine } from '../../ts';
import { CapstanEmbeddings, ChatCapstan } from '../../ts/langchain';
import { fake } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;
let model: ChatCapstan;
const getWeather = tool(({ city }: { city: string }) => `21 degrees in ${city}`, {
  name: 'get_weather',
  description: 'Get the weather.',
  schema: z.object({ city: z.string() }),
});
const CALL = 'Look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>';

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
  model = new ChatCapstan({ engine, topK: 3 });
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

test('invoke answers, with usage and metadata', async () => {
  fake.answer = () => ({ text: 'Hello' });
  const answer = await model.invoke([new SystemMessage('Be brief.'), new HumanMessage('Hi')]);
  expect(answer.content).toBe('Hello');
  expect(answer.usage_metadata).toMatchObject({ output_tokens: 5 });
  expect(answer.response_metadata).toMatchObject({ model_name: engine.info.modelName, finish_reason: 'stop' });
  expect(fake.requests[0].sampling).toMatchObject({ topK: 3 });
});

test('options of a call override those of the model', async () => {
  await model.invoke('Hi', { topK: 5, maxTokens: 2, stop: ['x'] });
  expect(fake.requests[0].sampling).toMatchObject({ topK: 5, maxTokens: 2 });
  const wrong = new ChatCapstan({ engine, topKay: 5 } as never);
  await expect(wrong.invoke('Hi')).rejects.toThrow(/topKay/);
});

test('a call ignores the options of a framework, such as those of LangGraph', async () => {
  const config = { store: {}, writer: () => {}, context: {}, interrupt: () => {}, streamMode: ['values'] };
  const answer = await model.invoke('Hi', { ...config, topK: 5 } as never);
  expect(answer.text).toContain('Hello');
  expect(fake.requests[0].sampling).toMatchObject({ topK: 5 });
});

test('stream has the pieces, and the usage last', async () => {
  fake.answer = () => ({ text: 'Größe 😀', stepMs: 1 });
  let all: Awaited<ReturnType<typeof model.invoke>> | undefined;
  let numChunks = 0;
  for await (const chunk of await model.stream('Hi')) {
    all = all === undefined ? chunk : all.concat(chunk);
    numChunks++;
  }
  expect(numChunks).toBeGreaterThan(2);
  expect(all!.content).toBe('Größe 😀');
  expect(all!.usage_metadata).toMatchObject({ output_tokens: 12 });
});

test('bindTools: calls of an answer, streamed as well, and their results in the next prompt', async () => {
  fake.answer = (prompt) => ({ text: prompt.includes('<tool_response>') ? '21' : CALL });
  const bound = model.bindTools!([getWeather]);
  const question = new HumanMessage('Weather in Bern?');
  const answer = await bound.invoke([question]);
  expect(answer.tool_calls).toMatchObject([{ name: 'get_weather', args: { city: 'Bern' }, type: 'tool_call' }]);
  let all: typeof answer | undefined;
  for await (const chunk of await bound.stream([question])) all = all === undefined ? chunk : all.concat(chunk);
  expect(all!.tool_calls).toMatchObject([{ name: 'get_weather', args: { city: 'Bern' } }]);
  const result: ToolMessage = await getWeather.invoke(answer.tool_calls![0]);
  const last = await bound.invoke([question, answer, result]);
  expect(last.content).toBe('21');
  const text = engine.detokenize(fake.requests.at(-1)!.promptTokenIds, { skipSpecialTokens: false });
  expect(text).toContain('<tool_response>21 degrees in Bern');
});

test.each(['any', 'get_weather'])('tool_choice %s forces a call', async (toolChoice) => {
  fake.answer = () => ({ text: CALL.slice(CALL.indexOf('<')) });
  const answer = await model.bindTools!([getWeather], { tool_choice: toolChoice }).invoke('Hi');
  expect(answer.tool_calls).toHaveLength(1);
  expect(fake.requests[0].grammar).not.toBeNull();
});

test('withStructuredOutput constrains and parses, as text or as a call', async () => {
  const schema = z.object({ name: z.string(), age: z.number() });
  fake.answer = () => ({ text: '{"name": "Anna", "age": 31}' });
  const structured = model.withStructuredOutput(schema);
  await expect(structured.invoke('Anna is 31.')).resolves.toEqual({ name: 'Anna', age: 31 });
  expect(fake.requests[0].grammar).not.toBeNull();
  const json = model.withStructuredOutput<{ age: number }>(z.toJSONSchema(schema), { includeRaw: true });
  await expect(json.invoke('Anna is 31.')).resolves.toMatchObject({ parsed: { name: 'Anna', age: 31 } });
  fake.answer = () => ({
    text: '<tool_call>\n{"name": "extract", "arguments": {"name": "Anna", "age": 31}}\n</tool_call>',
  });
  const called = model.withStructuredOutput(schema, { method: 'functionCalling' });
  await expect(called.invoke('Anna is 31.')).resolves.toEqual({ name: 'Anna', age: 31 });
});

test('a call whose arguments were cut off is an invalid call', async () => {
  fake.answer = () => ({ text: CALL });
  const bound = model.bindTools!([getWeather]);
  // Each character is a token, except that the marker of a call is one.
  const maxTokens = CALL.indexOf('Bern') - '<tool_call>'.length;
  const answer = await bound.invoke('Hi', { maxTokens });
  expect(answer.tool_calls).toEqual([]);
  expect(answer.invalid_tool_calls).toMatchObject([{ name: 'get_weather' }]);
});

test('a signal ends the call, and content that is not text is refused', async () => {
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const abort = new AbortController();
  const stream = await model.stream('Hi', { signal: abort.signal });
  const read = async () => {
    for await (const _ of stream) abort.abort();
  };
  await expect(read()).rejects.toThrow(/abort/i);
  const image = new HumanMessage({ content: [{ type: 'image_url', image_url: { url: 'data:' } }] });
  await expect(model.invoke([image])).rejects.toThrow(/messages\[0\]\.content\[0\]\.type: expected text/);
});

test('embeddings of a model that does not embed fail without a retry', async () => {
  await expect(new CapstanEmbeddings({ engine }).embedQuery('x')).rejects.toMatchObject({ code: 'unsupported_task' });
});

test.each([ChatCapstan, CapstanEmbeddings])('%p refuses what is no engine', (Model) => {
  expect(() => new Model({ engine: Promise.resolve(engine) } as never)).toThrow(/^engine: expected an engine, /);
});
