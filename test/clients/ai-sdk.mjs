// The Vercel AI SDK with its providers for compatible servers, OpenAI, Anthropic and Cohere. Run it where all are installed.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const { baseURL, embedderURL, keys, rejects, run, weatherParameters } = await import(
  pathToFileURL(process.env.CHECKS_MODULE).href
);
const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { APICallError, embedMany, generateText, jsonSchema, Output, rerank, stepCountIs, streamText, tool } =
  await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const { createOpenAI } = await load('@ai-sdk/openai');
const { createAnthropic } = await load('@ai-sdk/anthropic');
const { createCohere } = await load('@ai-sdk/cohere');
const { z } = await load('zod');

const make = (apiKey, model = 'demo') =>
  createOpenAICompatible({
    name: 'capstan',
    baseURL,
    apiKey,
    supportsStructuredOutputs: true,
    includeUsage: true,
  }).chatModel(model);
const ask = (options = {}, model = make(keys.good)) =>
  generateText({ model, prompt: 'What is Capstan?', temperature: 0, maxRetries: 0, ...options });
const tools = {
  get_weather: tool({
    description: 'Get the current weather for a location.',
    inputSchema: jsonSchema(weatherParameters),
    execute: async () => ({ temperature: 21 }),
  }),
};
const isCallError = (statusCode) => ({ constructor: APICallError, statusCode });

await run(`ai ${require('ai/package.json').version}`, {
  chat: async () => {
    const { text, usage } = await ask();
    assert.match(text, /Capstan/);
    assert.ok(usage.outputTokens > 0);
  },
  stream: async () => {
    const result = streamText({ model: make(keys.good), prompt: 'Count from 1 to 5.', temperature: 0, maxRetries: 0 });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    assert.equal(text, '1, 2, 3, 4, 5');
    assert.ok((await result.usage).outputTokens > 0);
  },
  'tools, round trip': async () => {
    const { text, steps } = await ask({ prompt: 'What is the weather in Paris?', tools, stopWhen: stepCountIs(3) });
    assert.deepEqual(
      steps[0].toolCalls.map(({ toolName, input }) => [toolName, input]),
      [['get_weather', { city: 'Paris' }]],
    );
    assert.match(text, /21/);
  },
  'tools, streamed': async () => {
    const result = streamText({
      model: make(keys.good),
      prompt: 'What is the weather in Paris?',
      temperature: 0,
      tools,
      stopWhen: stepCountIs(3),
      maxRetries: 0,
    });
    assert.match(await result.text, /21/);
  },
  "tools, streamed to OpenAI's provider": async () => {
    const { steps } = streamText({
      model: createOpenAI({ baseURL, apiKey: keys.good }).chat('demo'),
      prompt: 'What is the weather in Paris?',
      temperature: 0,
      tools,
      stopWhen: stepCountIs(3),
      maxRetries: 0,
    });
    assert.deepEqual(
      (await steps).map(({ content }) => content.map(({ type }) => type)),
      [['tool-call', 'tool-result'], ['text']],
    );
  },
  'tools, required': async () => {
    const { toolCalls } = await ask({
      prompt: 'Hello!',
      tools: { get_weather: { ...tools.get_weather, execute: undefined } },
      toolChoice: 'required',
      temperature: 0,
      maxOutputTokens: 200,
    });
    assert.deepEqual(Object.keys(toolCalls[0].input), ['city']);
  },
  'structured output': async () => {
    const { output } = await ask({
      prompt: 'Extract as JSON: Anna is 31 years old.',
      output: Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) }),
    });
    assert.deepEqual(Object.keys(output), ['name', 'age']);
  },
  'structured output, streamed': async () => {
    const result = streamText({
      model: make(keys.good),
      prompt: 'Extract as JSON: Anna is 31 years old.',
      temperature: 0,
      maxRetries: 0,
      output: Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) }),
    });
    assert.deepEqual(Object.keys(await result.output), ['name', 'age']);
  },
  "tools and objects, through Anthropic's provider": async () => {
    const model = createAnthropic({ baseURL, apiKey: keys.good })('demo');
    const { text } = await ask({ prompt: 'What is the weather in Paris?', tools, stopWhen: stepCountIs(3) }, model);
    assert.match(text, /21/);
    const schema = z.object({ name: z.string(), age: z.number().int() });
    const { output } = await ask(
      { prompt: 'Extract as JSON: Anna is 31 years old.', output: Output.object({ schema }) },
      model,
    );
    assert.deepEqual(output, { name: 'Anna', age: 31 });
  },
  embeddings: async () => {
    const model = createOpenAI({ baseURL: embedderURL, apiKey: 'any' }).embeddingModel('embedder');
    const { embeddings } = await embedMany({ model, values: ['a', 'b'] });
    assert.deepEqual(
      embeddings.map(({ length }) => length),
      [64, 64],
    );
  },
  "reranking, through Cohere's provider": async () => {
    const provider = createCohere({ baseURL: embedderURL.replace('/v1', '/v2'), apiKey: 'any' });
    const documents = ['Größe 😀', 'What is Capstan?'];
    const { ranking } = await rerank({ model: provider.reranking('embedder'), query: documents[1], documents });
    assert.deepEqual(
      ranking.map(({ originalIndex }) => originalIndex),
      [1, 0],
    );
  },
  'error 400': () => rejects(ask({ temperature: 5 }), isCallError(400)),
  'error 401': () => rejects(ask({}, make(keys.unknown)), isCallError(401)),
  'error 403': () => rejects(ask({}, make(keys.foreign)), isCallError(403)),
  'error 404': () => rejects(ask({}, make(keys.good, 'other')), isCallError(404)),
  'error 429': () =>
    rejects(
      (async () => {
        for (let i = 0; i < 2; i++) await ask({ maxOutputTokens: 1 }, make(keys.spent));
      })(),
      isCallError(429),
    ),
});
