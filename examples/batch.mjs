// Answers each line of a file, many at a time, and writes JSON lines in the order of the file.
//
//     node examples/batch.mjs questions.txt > answers.jsonl
import { open } from 'node:fs/promises';
import { Engine } from 'capstan';

const NUM_PARALLEL = 32; // the engine runs up to maxNumSeqs (64) at the same time
const [file] = process.argv.slice(2);
if (file === undefined)
  throw new Error('expected a file with a question in each line: node examples/batch.mjs questions.txt');
const engine = await Engine.load(process.env.MODEL ?? 'demo');

async function answer(question) {
  const messages = [{ role: 'user', content: question }];
  try {
    const text = await engine.chat(messages, { temperature: 0, maxTokens: 200 }).text();
    return { question, text };
  } catch (error) {
    return { question, error: { code: error.code, message: error.message } };
  }
}

const running = [];
const writeOldest = async () => console.log(JSON.stringify(await running.shift()));
const input = await open(file);
for await (const line of input.readLines()) {
  if (line.trim() === '') continue;
  running.push(answer(line));
  if (running.length >= NUM_PARALLEL) await writeOldest();
}
while (running.length > 0) await writeOldest();
await engine.close();
