// LangChain for JavaScript with its provider of OpenAI, over both interfaces. Run it in the folder where it is installed.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const { baseURL, keys, rejects, run } = await import(pathToFileURL(process.env.CHECKS_MODULE).href);
const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { ChatOpenAI } = await load('@langchain/openai');
const { createAgent, tool } = await load('langchain');
const { z } = await load('zod');

const weather = tool(({ city }) => `It is sunny in ${city}.`, {
  name: 'get_weather',
  description: 'Get the current weather for a location.',
  schema: z.object({ city: z.string() }),
});
const person = z.object({ name: z.string().max(12), age: z.number().int() });

for (const useResponsesApi of [false, true]) {
  const make = (apiKey = keys.good) =>
    new ChatOpenAI({
      model: 'demo',
      temperature: 0,
      maxRetries: 0,
      apiKey,
      useResponsesApi,
      configuration: { baseURL },
    });
  const interfaceName = useResponsesApi ? 'responses' : 'chat completions';
  await run(`@langchain/openai ${require('@langchain/openai/package.json').version}, ${interfaceName}`, {
    invoke: async () => assert.match((await make().invoke('What is Capstan?')).text, /Capstan/),
    stream: async () => {
      let text = '';
      for await (const chunk of await make().stream('Count from 1 to 5.')) text += chunk.text;
      assert.equal(text, '1, 2, 3, 4, 5');
    },
    'tools, named': async () => {
      const model = make().bindTools([weather], { tool_choice: 'get_weather' });
      const { tool_calls: calls } = await model.invoke('What is the weather in Paris?');
      assert.deepEqual(
        calls.map(({ name, args }) => [name, args]),
        [['get_weather', { city: 'Paris' }]],
      );
    },
    'structured output': async () => {
      const answer = await make().withStructuredOutput(person).invoke('Extract as JSON: Anna is 31 years old.');
      assert.deepEqual(answer, { name: 'Anna', age: 31 });
    },
    agent: async () => {
      const agent = createAgent({ model: make(), tools: [weather] });
      const { messages } = await agent.invoke({
        messages: [{ role: 'user', content: 'What is the weather in Paris?' }],
      });
      assert.deepEqual(
        messages.map(({ type }) => type),
        ['human', 'ai', 'tool', 'ai'],
      );
    },
    'error 401': () => rejects(make(keys.unknown).invoke('Hello!'), { status: 401 }),
  });
}
