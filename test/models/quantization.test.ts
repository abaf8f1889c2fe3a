import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Engine, type EngineOptions, type TokenLogprob } from '../../ts/index';

interface HeldOut {
  messages: { role: 'system' | 'user' | 'assistant'; content: string }[];
  tools: unknown[];
  expected: string;
}

const CHATS = readFileSync(join(__dirname, '../../models/demo/heldout.jsonl'), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as HeldOut)
  .filter(({ tools, expected }) => tools.length === 0 && typeof expected === 'string')
  .slice(0, 120);

/** The 20 most likely tokens at every position of the chats with their expected answers, and the answers themselves. */
interface Reading {
  positions: TokenLogprob[];
  answers: string[];
  weightBytes: number;
}

async function read(options: EngineOptions): Promise<Reading> {
  const engine = await Engine.load('demo', { ...options, maxModelLen: 2048 });
  try {
    const scored = await Promise.all(
      CHATS.map(({ messages, expected }) =>
        engine
          .chat([...messages, { role: 'assistant', content: expected }], { maxTokens: 1, promptLogprobs: 20 })
          .result(),
      ),
    );
    const answered = await Promise.all(
      CHATS.map(({ messages }) => engine.chat(messages, { temperature: 0, maxTokens: 60 }).result()),
    );
    return {
      positions: scored.flatMap((result) => result.promptLogprobs!.slice(1) as TokenLogprob[]),
      answers: answered.map((result) => result.choices[0]!.text),
      weightBytes: engine.info.weightBytes,
    };
  } finally {
    await engine.close();
  }
}

/** Returns the Kullback-Leibler divergence from `exact`, in nats per token, over its 20 most likely tokens. */
function divergence(exact: Reading, other: Reading): number {
  let sum = 0;
  exact.positions.forEach(({ topLogprobs }, i) => {
    const found = new Map(other.positions[i]!.topLogprobs.map(({ tokenId, logprob }) => [tokenId, logprob]));
    for (const { tokenId, logprob } of topLogprobs)
      sum += found.has(tokenId) ? Math.exp(logprob) * (logprob - found.get(tokenId)!) : 0;
  });
  return sum / exact.positions.length;
}

const numEqual = (a: Reading, b: Reading) => a.answers.filter((answer, i) => answer === b.answers[i]).length;

test('quantized weights keep the answers of the embedded model', async () => {
  const exact = await read({});
  const int8 = await read({ quantization: 'int8' });
  const int4 = await read({ quantization: 'int4' });
  const report = [int8, int4].map((other) => ({
    divergence: divergence(exact, other),
    equalAnswers: numEqual(exact, other) / CHATS.length,
    size: other.weightBytes / exact.weightBytes,
  }));
  expect(report[0]!.divergence).toBeLessThan(0.002);
  expect(report[1]!.divergence).toBeLessThan(0.04);
  expect(report[0]!.equalAnswers).toBeGreaterThan(0.95);
  expect(report[1]!.equalAnswers).toBeGreaterThan(0.8);
  expect(report[0]!.size).toBeLessThan(0.52);
  expect(report[1]!.size).toBeLessThan(0.3);
});
