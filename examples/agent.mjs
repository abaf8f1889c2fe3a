// A model that calls functions until it has the answer: npm install zod
//
//     node examples/agent.mjs 'What is the weather in Paris?'
import { defineTool, Engine, runTools } from 'capstan';
import { z } from 'zod';

const tools = {
  get_weather: defineTool({
    description: 'Get the current weather for a location.',
    input: z.object({ city: z.string().describe('City name') }),
    execute: async () => ({ temperature: 21 }), // a real one would ask a weather service
  }),
};

const [question = 'What is the weather in Paris?'] = process.argv.slice(2);
const engine = await Engine.load(process.env.MODEL ?? 'demo');
for await (const event of runTools(engine, question, { tools, maxSteps: 5, temperature: 0 })) {
  if (event.type === 'delta') process.stdout.write(event.textDelta);
  if (event.type === 'toolResult') console.log(`${event.name}(${JSON.stringify(event.input)}) = ${event.content}`);
}
console.log();
await engine.close();
