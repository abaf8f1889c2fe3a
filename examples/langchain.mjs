// LangChain with a model in this process: npm install @langchain/core zod
//
//     node examples/langchain.mjs
import { StringOutputParser } from '@langchain/core/output_parsers';
import { ChatPromptTemplate } from '@langchain/core/prompts';
import { Engine } from 'capstan';
import { ChatCapstan } from 'capstan/langchain';
import { z } from 'zod';

const engine = await Engine.load(process.env.MODEL ?? 'demo');
const model = new ChatCapstan({ engine, temperature: 0 });

const chain = ChatPromptTemplate.fromTemplate('What is {name}?').pipe(model).pipe(new StringOutputParser());
for await (const text of await chain.stream({ name: 'Capstan' })) process.stdout.write(text);
console.log();

const person = z.object({ name: z.string(), age: z.number().int() });
console.log(await model.withStructuredOutput(person).invoke('Extract as JSON: Anna is 31 years old.'));
await engine.close();
