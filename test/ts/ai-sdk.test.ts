/** Models of the AI SDK, called as the SDK calls them. test/clients/providers.mjs runs the SDK itself. */
import type { LanguageModelV4CallOptions, LanguageModelV4StreamPart } from '@ai-sdk/provider' with {
  'resolution-mode': 'import',
};
import { Engine } from '../../ts';
import { embeddingModel, languageModel, rerankingModel } from '../../ts/ai-sdk';
import { fake } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;
const prompt: LanguageModelV4CallOptions['prompt'] = [{ role: 'user', content: [{ type: 'text', text: 'Hi' }] }];
const tools: LanguageModelV4CallOptions['tools'] = [
  { type: 'function', name: 'get_weather', inputSchema: { type: 'object', properties: { city: { type: 'string' } } } },
];
const CALL = 'Look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>';

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel(), { reasoningFormat: 'think' });
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

async function partsOf(options: LanguageModelV4CallOptions): Promise<LanguageModelV4StreamPart[]> {
  const parts: LanguageModelV4StreamPart[] = [];
  const { stream } = await languageModel(engine).doStream(options);
  for await (const part of stream) parts.push(part);
  return parts;
}

test('generates text, with usage and the raw finish reason', async () => {
  fake.answer = () => ({ text: 'Hello' });
  const result = await languageModel(engine).doGenerate({ prompt });
  expect(result).toMatchObject({
    content: [{ type: 'text', text: 'Hello' }],
    finishReason: { unified: 'stop', raw: 'stop' },
    warnings: [],
    response: { modelId: engine.info.modelName },
  });
  const { inputTokens, outputTokens } = result.usage;
  expect(inputTokens.total).toBe(inputTokens.noCache! + inputTokens.cacheRead!);
  expect(outputTokens).toMatchObject({ total: 5, text: 5 });
});

test('passes the settings of the call, of providerOptions and of the model', async () => {
  const model = languageModel(engine, { temperature: 0.5, topK: 3 });
  const options = { prompt, temperature: 0.25, maxOutputTokens: 7, seed: 1, stopSequences: ['x'] };
  await model.doGenerate({ ...options, providerOptions: { capstan: { minP: 0.5 } } });
  expect(fake.requests[0].sampling).toMatchObject({ temperature: 0.25, topK: 3, maxTokens: 7, minP: 0.5 });
  await expect(model.doGenerate({ prompt, providerOptions: { capstan: { minPee: 1 } } })).rejects.toThrow(/minPee/);
});

test('separates reasoning, text and calls', async () => {
  fake.answer = () => ({ text: `<think>hmm</think>${CALL}` });
  const { content, finishReason } = await languageModel(engine).doGenerate({ prompt, tools });
  expect(content).toEqual([
    { type: 'reasoning', text: 'hmm' },
    { type: 'text', text: expect.stringContaining('Look.') },
    { type: 'tool-call', toolCallId: expect.any(String), toolName: 'get_weather', input: '{"city": "Bern"}' },
  ]);
  expect(finishReason).toEqual({ unified: 'tool-calls', raw: 'tool_calls' });
});

test('streams blocks that start and end, in order', async () => {
  fake.answer = () => ({ text: `<think>hmm</think>${CALL}` });
  const parts = await partsOf({ prompt, tools });
  expect(parts.map(({ type }) => type).filter((type, i, all) => type !== all[i - 1])).toEqual([
    'stream-start',
    'response-metadata',
    'reasoning-start',
    'reasoning-delta',
    'reasoning-end',
    'text-start',
    'text-delta',
    'text-end',
    'tool-input-start',
    'tool-input-delta',
    'tool-input-end',
    'tool-call',
    'finish',
  ]);
  const input = parts.flatMap((part) => (part.type === 'tool-input-delta' ? [part.delta] : [])).join('');
  expect(parts.find(({ type }) => type === 'tool-call')).toMatchObject({ toolName: 'get_weather', input });
  expect(parts.at(-1)).toMatchObject({ type: 'finish', finishReason: { unified: 'tool-calls' } });
});

test('a forced call ends with tool-calls', async () => {
  fake.answer = () => ({ text: CALL.slice(CALL.indexOf('<')) });
  const toolChoice = { type: 'tool' as const, toolName: 'get_weather' };
  const { finishReason } = await languageModel(engine).doGenerate({ prompt, tools, toolChoice });
  expect(finishReason).toEqual({ unified: 'tool-calls', raw: 'stop' });
});

test('renders a conversation with calls and results', async () => {
  await languageModel(engine).doGenerate({
    prompt: [
      { role: 'system', content: 'Be brief.' },
      ...prompt,
      { role: 'assistant', content: [{ type: 'tool-call', toolCallId: '1', toolName: 'get', input: { a: 1 } }] },
      {
        role: 'tool',
        content: (
          [
            { type: 'json', value: { b: 2 } },
            { type: 'error-json', value: { c: 3 } },
            { type: 'error-text', value: 'no such file' },
          ] as const
        ).map((output) => ({ type: 'tool-result', toolCallId: '1', toolName: 'get', output })),
      },
    ],
  });
  const text = engine.detokenize(fake.requests[0].promptTokenIds, { skipSpecialTokens: false });
  expect(text).toMatch(
    /Be brief\.[^]*Hi[^]*"name": "get"[^]*<tool_response>\{"b":2\}<[^]*>Error: \{"c":3\}<[^]*>Error: no such file</,
  );
});

test('warns of tools of other providers, and refuses files', async () => {
  const own = { type: 'provider' as const, id: 'openai.web_search' as const, name: 'search', args: {} };
  const { warnings } = await languageModel(engine).doGenerate({ prompt, tools: [own] });
  expect(warnings).toEqual([{ type: 'unsupported', feature: "the provider's tool openai.web_search" }]);
  const file = { type: 'file' as const, mediaType: 'image/png', data: { type: 'data' as const, data: 'AAAA' } };
  await expect(languageModel(engine).doGenerate({ prompt: [{ role: 'user', content: [file] }] })).rejects.toThrow(
    /prompt\[0\]\.content\[0\]: expected text, got a file of type image\/png/,
  );
});

test('a call that fails before it starts rejects, and later ends the stream with an error', async () => {
  await expect(languageModel(engine).doStream({ prompt, temperature: -1 })).rejects.toMatchObject({
    code: 'invalid_argument',
  });
  fake.answer = () => ({ text: 'so', reason: 'error', errorCode: 'numeric_error' });
  expect((await partsOf({ prompt })).at(-1)).toMatchObject({ type: 'error', error: { code: 'numeric_error' } });
});

test('an aborted call fails with the reason of its signal', async () => {
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const abort = new AbortController();
  const { stream } = await languageModel(engine).doStream({ prompt, abortSignal: abort.signal });
  const reason = new Error('enough');
  abort.abort(reason);
  const parts: LanguageModelV4StreamPart[] = [];
  for await (const part of stream) parts.push(part);
  expect(parts.at(-1)).toEqual({ type: 'error', error: reason });
});

test.each([languageModel, embeddingModel, rerankingModel])('%p refuses what is no engine', (create) => {
  expect(() => create('demo' as never)).toThrow(/^engine: expected an engine, .* got "demo"$/);
});
