// Models of the AI SDK and of LangChain by `import`.
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessage } from '@langchain/core/messages';
import { Engine } from 'capstan';
import { languageModel } from 'capstan/ai-sdk';
import { ChatCapstan } from 'capstan/langchain';

const engine = await Engine.load('demo');
const prompt = [{ role: 'user', content: [{ type: 'text', text: 'What is Capstan?' }] }];
const { content } = await languageModel(engine, { temperature: 0 }).doGenerate({ prompt });
const model = new ChatCapstan({ engine, temperature: 0 });
const answer = await model.invoke('What is Capstan?');
await engine.close();
console.log(answer.content);
const isOfThisCopy = model instanceof BaseChatModel && answer instanceof AIMessage;
if (!isOfThisCopy || answer.content !== content[0].text) process.exitCode = 1;
