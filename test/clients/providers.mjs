// The AI SDK and LangChain over models in this process. Argument: the folder where the AI SDK is installed.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { AIMessageChunk, HumanMessage } from '@langchain/core/messages';
import { tool as langchainTool } from '@langchain/core/tools';
import { Engine } from 'capstan';
import { embeddingModel, languageModel, rerankingModel } from 'capstan/ai-sdk';
import { CapstanEmbeddings, ChatCapstan } from 'capstan/langchain';
import { z } from 'zod';
import { run } from './checks.mjs';

const require = createRequire(import.meta.url);
const { randomEmbedder, randomReranker } = require('../fakes/random-models.ts');
const inSdk = createRequire(`${process.argv[2]}/`);
const { embed, embedMany, generateObject, generateText, Output, rerank, stepCountIs, streamText, tool } = await import(
  pathToFileURL(inSdk.resolve('ai')).href
);

const demo = await Engine.load('demo');
const embedder = await Engine.load(randomEmbedder());
const reranker = await Engine.load(randomReranker());

const model = languageModel(demo, { temperature: 0 });
const weather = z.object({ city: z.string().describe('City name') });
const person = z.object({ name: z.string(), age: z.number().int() });
const extract = 'Extract as JSON: Anna is 31 years old.';
const tools = {
  get_weather: tool({
    description: 'Get the current weather for a location.',
    inputSchema: weather,
    execute: async () => ({ temperature: 21 }),
  }),
};
const node = `Node ${process.versions.node}`;

await run(`ai ${inSdk('ai/package.json').version}, in the process, ${node}`, {
  generateText: async () => {
    const { text, usage, finishReason, warnings } = await generateText({ model, prompt: 'What is Capstan?' });
    assert.match(text, /Capstan/);
    assert.equal(usage.inputTokens + usage.outputTokens, usage.totalTokens);
    assert.deepEqual([finishReason, warnings], ['stop', []]);
  },
  streamText: async () => {
    const result = streamText({ model, prompt: 'Count from 1 to 5.' });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    assert.equal(text, '1, 2, 3, 4, 5');
    assert.ok((await result.usage).outputTokens > 0);
  },
  'tools, round trip': async () => {
    const { text, steps } = await generateText({
      model,
      prompt: 'What is the weather in Paris?',
      tools,
      stopWhen: stepCountIs(3),
    });
    assert.deepEqual(
      steps[0].toolCalls.map(({ toolName, input }) => [toolName, input]),
      [['get_weather', { city: 'Paris' }]],
    );
    assert.match(text, /21/);
  },
  'tools, streamed': async () => {
    const result = streamText({ model, prompt: 'What is the weather in Paris?', tools, stopWhen: stepCountIs(3) });
    assert.match(await result.text, /21/);
  },
  'tools, required': async () => {
    const { toolCalls, finishReason } = await generateText({
      model,
      prompt: 'Hello!',
      tools: { get_weather: { ...tools.get_weather, execute: undefined } },
      toolChoice: { type: 'tool', toolName: 'get_weather' },
      maxOutputTokens: 200,
    });
    assert.deepEqual(Object.keys(toolCalls[0].input), ['city']);
    assert.equal(finishReason, 'tool-calls');
  },
  generateObject: async () => {
    const { object } = await generateObject({ model, schema: person, prompt: extract });
    assert.deepEqual(Object.keys(object), ['name', 'age']);
  },
  'Output.object, streamed': async () => {
    const result = streamText({ model, prompt: extract, output: Output.object({ schema: person }) });
    assert.deepEqual(Object.keys(await result.output), ['name', 'age']);
  },
  abortSignal: async () => {
    const signal = AbortSignal.abort(new DOMException('enough', 'AbortError'));
    await assert.rejects(generateText({ model, prompt: 'Hi', abortSignal: signal }), { name: 'AbortError' });
  },
  'an error of an argument': async () => {
    const call = generateText({ model, prompt: 'Hi', providerOptions: { capstan: { minP: 5 } } });
    await assert.rejects(call, { code: 'invalid_argument', message: /minP/ });
  },
  embed: async () => {
    const { embedding, usage } = await embed({ model: embeddingModel(embedder), value: 'A plum is a fruit.' });
    assert.equal(embedding.length, embedder.info.embeddingSize);
    assert.ok(usage.tokens > 0);
  },
  embedMany: async () => {
    const values = Array.from({ length: 50 }, (_, i) => `text ${i}`);
    const { embeddings } = await embedMany({ model: embeddingModel(embedder), values });
    assert.equal(embeddings.length, 50);
  },
  rerank: async () => {
    const documents = ['A plum is a fruit.', 'Capstan runs models.', 'It rains.'];
    const { ranking } = await rerank({ model: rerankingModel(reranker), query: 'fruit', documents, topN: 2 });
    assert.equal(ranking.length, 2);
    assert.ok(ranking[0].score >= ranking[1].score);
  },
});

const chat = new ChatCapstan({ engine: demo, temperature: 0 });
const getWeather = langchainTool(() => '{"temperature": 21}', {
  name: 'get_weather',
  description: 'Get the current weather for a location.',
  schema: weather,
});

await run(`@langchain/core ${require('@langchain/core/package.json').version}, in the process, ${node}`, {
  invoke: async () => {
    const { content, usage_metadata: usage } = await chat.invoke('What is Capstan?');
    assert.match(content, /Capstan/);
    assert.ok(usage.output_tokens > 0);
  },
  stream: async () => {
    let text = '';
    for await (const chunk of await chat.stream('Count from 1 to 5.')) {
      assert.ok(chunk instanceof AIMessageChunk);
      text += chunk.content;
    }
    assert.equal(text, '1, 2, 3, 4, 5');
  },
  'bindTools, round trip': async () => {
    const bound = chat.bindTools([getWeather]);
    const question = new HumanMessage('What is the weather in Paris?');
    const answer = await bound.invoke([question]);
    assert.deepEqual(
      answer.tool_calls.map(({ name, args }) => [name, args]),
      [['get_weather', { city: 'Paris' }]],
    );
    const result = await getWeather.invoke(answer.tool_calls[0]);
    assert.match((await bound.invoke([question, answer, result])).content, /21/);
  },
  withStructuredOutput: async () => {
    assert.deepEqual(Object.keys(await chat.withStructuredOutput(person).invoke(extract)), ['name', 'age']);
    const asCall = chat.withStructuredOutput(person, { method: 'functionCalling', includeRaw: true });
    assert.deepEqual(Object.keys((await asCall.invoke(extract)).parsed), ['name', 'age']);
  },
  batch: async () => {
    const answers = await chat.batch(['What is Capstan?', 'Count from 1 to 5.']);
    assert.equal(answers[1].content, '1, 2, 3, 4, 5');
  },
  embeddings: async () => {
    const embeddings = new CapstanEmbeddings({ engine: embedder });
    const documents = await embeddings.embedDocuments(['A plum is a fruit.', 'It rains.']);
    assert.deepEqual(
      documents.map(({ length }) => length),
      Array(2).fill(embedder.info.embeddingSize),
    );
    const query = await embedder.embed('fruit', { promptName: 'query' });
    assert.deepEqual(await embeddings.embedQuery('fruit'), Array.from(query.embeddings[0]));
  },
});

await Promise.all([demo, embedder, reranker].map((engine) => engine.close()));
