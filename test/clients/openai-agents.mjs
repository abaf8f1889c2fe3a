// The Agents SDK of OpenAI, over both interfaces that it speaks. Run it in the folder where it is installed.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const { baseURL, keys, rejects, run: runChecks } = await import(pathToFileURL(process.env.CHECKS_MODULE).href);
const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { Agent, OpenAIProvider, run, Runner, setOpenAIAPI, setDefaultOpenAIClient, setTracingDisabled, tool } =
  await load('@openai/agents');
const { default: OpenAI } = await load('openai');
const { z } = await load('zod');
const { version } = JSON.parse(readFileSync('node_modules/@openai/agents/package.json', 'utf8'));

const make = (apiKey) => new OpenAI({ baseURL, apiKey, maxRetries: 0 });
setDefaultOpenAIClient(make(keys.good));
setTracingDisabled(true);

const agent = (options = {}) =>
  new Agent({
    name: 'Guide',
    model: 'demo',
    ...options,
    modelSettings: { temperature: 0, ...options.modelSettings },
  });
const weather = tool({
  name: 'get_weather',
  description: 'Get the current weather for a location.',
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => `It is sunny in ${city}.`,
});
const asksForWeather = () => agent({ tools: [weather], modelSettings: { toolChoice: 'required' } });
const question = 'What is the weather in Paris?';

for (const api of ['responses', 'chat_completions']) {
  setOpenAIAPI(api);
  await runChecks(`@openai/agents ${version}, ${api}`, {
    answer: async () => assert.match((await run(agent(), 'What is Capstan?')).finalOutput, /Capstan/),
    stream: async () => {
      const result = await run(agent(), 'Count from 1 to 5.', { stream: true });
      let text = '';
      for await (const piece of result.toTextStream()) text += piece;
      assert.equal(text, '1, 2, 3, 4, 5');
    },
    'tool loop': async () => {
      const { newItems, finalOutput } = await run(asksForWeather(), question);
      assert.deepEqual(
        newItems.map(({ type }) => type),
        ['tool_call_item', 'tool_call_output_item', 'message_output_item'],
      );
      assert.match(finalOutput, /./);
    },
    'tool loop, streamed': async () => {
      const result = await run(asksForWeather(), question, { stream: true });
      const names = [];
      for await (const event of result) if (event.type === 'run_item_stream_event') names.push(event.name);
      assert.deepEqual(names, ['tool_called', 'tool_output', 'message_output_created']);
    },
    'typed output': async () => {
      const outputType = z.object({ name: z.string().max(12), age: z.number().int() });
      const { finalOutput } = await run(agent({ outputType }), 'Extract as JSON: Anna is 31 years old.');
      assert.deepEqual(finalOutput, { name: 'Anna', age: 31 });
    },
    handoff: async () => {
      const first = agent({ handoffs: [agent({ name: 'Other' })], modelSettings: { toolChoice: 'required' } });
      assert.equal((await run(first, 'Hello!')).lastAgent.name, 'Other');
    },
    'two turns': async () => {
      const { history } = await run(agent(), 'What is Capstan?');
      const next = await run(agent(), [...history, { role: 'user', content: 'Count from 1 to 5.' }]);
      assert.equal(next.finalOutput, '1, 2, 3, 4, 5');
    },
    ...(api === 'responses' && {
      'previous response': async () => {
        const { lastResponseId: previousResponseId } = await run(agent(), 'What is Capstan?');
        const next = await run(agent(), 'Count from 1 to 5.', { previousResponseId });
        assert.equal(next.finalOutput, '1, 2, 3, 4, 5');
      },
    }),
    'error 401': async () => {
      const options = { openAIClient: make(keys.unknown), useResponses: api === 'responses' };
      const runner = new Runner({ modelProvider: new OpenAIProvider(options) });
      await rejects(runner.run(agent(), 'Hello!'), { status: 401 });
    },
  });
}
