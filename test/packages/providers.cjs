// Models of the AI SDK and of LangChain by `require`.
const { AIMessage } = require('@langchain/core/messages');
const { Engine } = require('capstan');
const { languageModel } = require('capstan/ai-sdk');
const { ChatCapstan } = require('capstan/langchain');

async function main() {
  const engine = await Engine.load('demo');
  const prompt = [{ role: 'user', content: [{ type: 'text', text: 'What is Capstan?' }] }];
  const { content } = await languageModel(engine, { temperature: 0 }).doGenerate({ prompt });
  const answer = await new ChatCapstan({ engine, temperature: 0 }).invoke('What is Capstan?');
  await engine.close();
  console.log(answer.content);
  if (!(answer instanceof AIMessage) || answer.content !== content[0].text) process.exitCode = 1;
}

main();
