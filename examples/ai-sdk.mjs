// The AI SDK with a model in this process, on Node 22 or newer: npm install ai@7 zod
//
//     node examples/ai-sdk.mjs
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { Engine } from 'capstan';
import { languageModel } from 'capstan/ai-sdk';
import { z } from 'zod';

const engine = await Engine.load(process.env.MODEL ?? 'demo');
const model = languageModel(engine, { temperature: 0 });

for await (const text of streamText({ model, prompt: 'What is Capstan?' }).textStream) process.stdout.write(text);
console.log();

const get_weather = tool({
  description: 'Get the current weather for a location.',
  inputSchema: z.object({ city: z.string().describe('City name') }),
  execute: async () => ({ temperature: 21 }),
});
const { text } = await generateText({
  model,
  prompt: 'What is the weather in Paris?',
  tools: { get_weather },
  stopWhen: stepCountIs(3),
});
console.log(text);
await engine.close();
