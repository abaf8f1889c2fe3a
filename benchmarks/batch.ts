// Measures what a running batch costs the other requests: the time to the first token of single streams, alone and
// while the lines of a batch run, in turn.
//   node -r ./test/oracle/register-ts.cjs benchmarks/batch.ts MODEL
//     [--lines 2000] [--prompt-tokens 256] [--samples 40] [--rounds 3] [--concurrency N] [--out FILE.md]
import { mkdtempSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import OpenAI, { toFile } from 'openai';
import { killAll, startServer } from '../test/fakes/server-process';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    lines: { type: 'string', default: '2000' },
    'prompt-tokens': { type: 'string', default: '256' },
    samples: { type: 'string', default: '40' },
    rounds: { type: 'string', default: '3' },
    concurrency: { type: 'string' },
    out: { type: 'string' },
  },
});
const model = positionals[0] ?? 'demo';
const numLines = Number(values.lines);
const LINE_TOKENS = 64;
const LINE_PROMPT_TOKENS = 64;
const PAUSE_MS = 50;
let seed = 0;

/** Token ids that no earlier prompt begins with. */
function newPrompt(count: number): number[] {
  seed++;
  return Array.from({ length: count }, (_, i) => 10 + ((i * 131 + seed * 977 + (i === 0 ? seed : 0)) % 1400));
}

async function firstTokenMs(url: string): Promise<number> {
  const body = { prompt: newPrompt(Number(values['prompt-tokens'])), max_tokens: 2, ignore_eos: true, stream: true };
  const start = performance.now();
  const response = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ temperature: 0, ...body }),
  });
  const reader = response.body!.getReader();
  await reader.read();
  const elapsed = performance.now() - start;
  while (!(await reader.read()).done);
  return elapsed;
}

async function sample(url: string): Promise<number[]> {
  const times: number[] = [];
  for (let i = 0; i < Number(values.samples); i++) {
    times.push(await firstTokenMs(url));
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * Math.random()));
  }
  return times.sort((a, b) => a - b);
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

async function main(): Promise<void> {
  const dataDir = mkdtempSync(join(os.tmpdir(), 'capstan-batch-'));
  const concurrency = values.concurrency === undefined ? [] : ['--batch-concurrency', values.concurrency];
  const server = await startServer([model, '--data-dir', dataDir, '--max-model-len', '2048', ...concurrency], {});
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any' });
  const endpoint = '/v1/completions';
  const lines = Array.from({ length: numLines }, (_, i) =>
    JSON.stringify({
      custom_id: `${i}`,
      method: 'POST',
      url: endpoint,
      body: { prompt: newPrompt(LINE_PROMPT_TOKENS), max_tokens: LINE_TOKENS, ignore_eos: true, temperature: 0 },
    }),
  );
  const file = await client.files.create({ file: await toFile(Buffer.from(lines.join('\n')), 'f'), purpose: 'batch' });
  const startBatch = () => client.batches.create({ input_file_id: file.id, endpoint, completion_window: '24h' });
  const rows: string[] = [];
  await sample(server.url);
  for (let round = 1; round <= Number(values.rounds); round++) {
    const alone = await sample(server.url);
    const { id } = await startBatch();
    const count = async () => (await client.batches.retrieve(id)).request_counts!.completed;
    while ((await count()) === 0);
    const before = await count();
    const start = performance.now();
    const beside = await sample(server.url);
    const numDone = (await count()) - before;
    const perSecond = numDone / ((performance.now() - start) / 1000);
    const { status } = await client.batches.retrieve(id);
    if (status !== 'in_progress') throw new Error(`the batch is ${status} before the end: use more lines`);
    await client.batches.cancel(id);
    while ((await client.batches.retrieve(id)).status !== 'cancelled');
    const pair = (share: number) => {
      const [a, b] = [quantile(alone, share), quantile(beside, share)];
      return `${a.toFixed(1)} → ${b.toFixed(1)} ms (${(b / a).toFixed(2)}×)`;
    };
    rows.push(`| ${round} | ${pair(0.5)} | ${pair(0.9)} | ${perSecond.toFixed(1)} |`);
    process.stdout.write(`${rows.at(-1)}\n`);
  }
  if (values.out === undefined) return;
  const page = `# A batch and other requests

\`node -r ./test/oracle/register-ts.cjs benchmarks/batch.ts ${process.argv.slice(2).join(' ')}\`: the time to the first token of streams with prompts of ${values['prompt-tokens']} tokens, one after the other, alone and while a batch of ${numLines} lines runs (prompts of ${LINE_PROMPT_TOKENS} tokens, ${LINE_TOKENS} tokens each).

| round | median, alone → beside a batch | 90 % | lines per second meanwhile |
|---|---|---|---|
${rows.join('\n')}

${os.cpus()[0].model}, ${os.availableParallelism()} cores, Node.js ${process.version}.
`;
  writeFileSync(values.out, page);
}

main()
  .catch((error: unknown) => {
    console.error(error);
    process.exitCode = 1;
  })
  .finally(killAll);
