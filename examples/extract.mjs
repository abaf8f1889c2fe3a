// Turns text into a typed object: npm install zod
//
//     node examples/extract.mjs 'Anna is 31 years old.'
import { Engine, generateObject } from 'capstan';
import { z } from 'zod';

const person = z.object({ name: z.string(), age: z.number().int() });

const [text = 'Anna is 31 years old.'] = process.argv.slice(2);
const engine = await Engine.load(process.env.MODEL ?? 'demo');
const { object, usage } = await generateObject(engine, `Extract as JSON: ${text}`, { schema: person, temperature: 0 });
console.log(object, `${usage.completionTokens} tokens`);
await engine.close();
