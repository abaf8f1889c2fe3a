// Measures what a running batch costs the other requests: the time to the first token of single streams, alone and
// while the lines of a batch run, in turn.
//   node -r ./test/oracle/register-ts.cjs benchmarks/batch.ts MODEL
//     [--lines 2000] [--prompt-tokens 256] [--samples 40] [--rounds 3] [--concurrency N] [--kills 0] [--out FILE.md]
// With --kills, one batch runs to its end while the server is killed with SIGKILL that many times. Each custom_id must
// have one result, the same as that of a request alone. --samples 0 leaves the times out.
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
    kills: { type: 'string', default: '0' },
    out: { type: 'string' },
  },
});
const model = positionals[0] ?? 'demo';
const numLines = Number(values.lines);
const numSamples = Number(values.samples);
const ENDPOINT = '/v1/completions';
const LINE_TOKENS = 64;
const LINE_PROMPT_TOKENS = 64;
const PAUSE_MS = 50;
const POLL_MS = 20;
/** Of the results, each such one is compared with the same request alone. */
const CHECK_EVERY = 50;
const RUNNING = ['validating', 'in_progress', 'finalizing', 'completed'];
const MACHINE = `${os.cpus()[0].model}, ${os.availableParallelism()} cores, Node.js ${process.version}.`;
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
  for (let i = 0; i < numSamples; i++) {
    times.push(await firstTokenMs(url));
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * Math.random()));
  }
  return times.sort((a, b) => a - b);
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

async function open(dataDir: string) {
  const concurrency = values.concurrency === undefined ? [] : ['--batch-concurrency', values.concurrency];
  const server = await startServer([model, '--data-dir', dataDir, '--max-model-len', '2048', ...concurrency], {});
  return { ...server, client: new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 }) };
}

const LINES = Array.from({ length: numLines }, (_, i) => ({
  custom_id: `${i}`,
  method: 'POST',
  url: ENDPOINT,
  body: { prompt: newPrompt(LINE_PROMPT_TOKENS), max_tokens: LINE_TOKENS, ignore_eos: true, temperature: 0 },
}));

async function upload(client: OpenAI): Promise<string> {
  const text = LINES.map((line) => JSON.stringify(line)).join('\n');
  return (await client.files.create({ file: await toFile(Buffer.from(text), 'f'), purpose: 'batch' })).id;
}

/** Takes samples until `isOver`. A stream that the end of the server cuts does not count. */
async function sampleUntil(url: string, isOver: () => boolean): Promise<number[]> {
  const times: number[] = [];
  while (numSamples > 0 && !isOver()) {
    const time = await firstTokenMs(url).catch(() => undefined);
    if (time !== undefined && !isOver()) times.push(time);
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * Math.random()));
  }
  return times;
}

interface ResultLine {
  custom_id: string;
  error: object | null;
  response: { status_code: number; body: { choices: { text: string }[] } };
}

/** Returns what is wrong with the results of the batch. */
async function problemsOf(client: OpenAI, outputId: string): Promise<string[]> {
  const text = await (await client.files.content(outputId)).text();
  const results = text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as ResultLine);
  const byId = new Map(results.map((result) => [result.custom_id, result]));
  const problems: string[] = [];
  if (results.length !== numLines) problems.push(`${results.length} results`);
  for (const { custom_id: id } of LINES) if (!byId.has(id)) problems.push(`line ${id} has no result`);
  for (const { custom_id: id, error, response } of results)
    if (error !== null || response.status_code !== 200) problems.push(`line ${id} failed`);
  for (const { custom_id: id, body } of LINES.filter((_, i) => i % CHECK_EVERY === 0)) {
    const alone = await client.completions.create({ model, ...body } as never);
    if (alone.choices[0].text !== byId.get(id)?.response.body.choices[0].text) problems.push(`line ${id} differs`);
  }
  return problems;
}

/** Runs one batch through kills of the server. Returns the page. */
async function surviveKills(numKills: number): Promise<string> {
  const dataDir = mkdtempSync(join(os.tmpdir(), 'capstan-batch-kills-'));
  let server = await open(dataDir);
  await sample(server.url);
  const alone = await sample(server.url);
  const input = await upload(server.client);
  const { id } = await server.client.batches.create({
    input_file_id: input,
    endpoint: ENDPOINT,
    completion_window: '24h',
  });
  const beside: number[] = [];
  const rows: string[] = [];
  let begun = 0;
  for (let kill = 1; kill <= numKills + 1; kill++) {
    const wanted = kill > numKills ? numLines : Math.floor((numLines * kill) / (numKills + 1));
    let isOver = false;
    const sampling = sampleUntil(server.url, () => isOver);
    let batch = await server.client.batches.retrieve(id);
    for (; batch.request_counts!.completed < wanted || (kill > numKills && batch.status !== 'completed');) {
      if (batch.request_counts!.failed > 0 || !RUNNING.includes(batch.status))
        throw new Error(`the batch is ${batch.status}: ${JSON.stringify(batch)}`);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      batch = await server.client.batches.retrieve(id);
    }
    isOver = true;
    if (kill <= numKills) server.process.kill('SIGKILL');
    beside.push(...(await sampling));
    rows.push(`| ${kill} | ${begun} | ${batch.request_counts!.completed} |`);
    process.stdout.write(`${rows.at(-1)}\n`);
    if (kill > numKills) {
      const problems = await problemsOf(server.client, batch.output_file_id!);
      if (problems.length > 0) throw new Error(problems.slice(0, 20).join('; '));
      break;
    }
    await server.exited;
    server = await open(dataDir);
    const before = batch.request_counts!.completed;
    // The counts are right once the batch is open again.
    do begun = (await server.client.batches.retrieve(id)).request_counts!.completed;
    while (begun === 0);
    if (begun < before) throw new Error(`${before} results before the kill, ${begun} after it`);
  }
  return `# A batch through kill -9

\`node -r ./test/oracle/register-ts.cjs benchmarks/batch.ts ${process.argv.slice(2).join(' ')}\`, ${new Date().toISOString().slice(0, 10)}: a batch of ${numLines} lines (prompts of ${LINE_PROMPT_TOKENS} tokens, ${LINE_TOKENS} tokens each). The server is killed with SIGKILL ${numKills} times and starts again on its data directory.

Each of the ${numLines} values of \`custom_id\` has exactly one result, none is an error, and each ${CHECK_EVERY}th has the tokens of the same request alone.

| run | results at its begin | results before its end |
|---|---|---|
${rows.join('\n')}
${numSamples === 0 ? '' : `\nThe time to the first token of streams with prompts of ${values['prompt-tokens']} tokens, one after the other: median, alone → beside the batch ${pair(alone, beside, 0.5)}; 90 % ${pair(alone, beside, 0.9)}.\n`}
${MACHINE}
`;
}

function pair(alone: readonly number[], beside: readonly number[], share: number): string {
  const [a, b] = [alone, beside].map((times) =>
    quantile(
      [...times].sort((x, y) => x - y),
      share,
    ),
  );
  return `${a.toFixed(1)} → ${b.toFixed(1)} ms (${(b / a).toFixed(2)}×)`;
}

async function main(): Promise<void> {
  const numKills = Number(values.kills);
  const page = numKills > 0 ? await surviveKills(numKills) : await measureBeside();
  if (values.out !== undefined) writeFileSync(values.out, page);
}

async function measureBeside(): Promise<string> {
  const server = await open(mkdtempSync(join(os.tmpdir(), 'capstan-batch-')));
  const { client } = server;
  const input = await upload(client);
  const startBatch = () =>
    client.batches.create({ input_file_id: input, endpoint: ENDPOINT, completion_window: '24h' });
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
    rows.push(`| ${round} | ${pair(alone, beside, 0.5)} | ${pair(alone, beside, 0.9)} | ${perSecond.toFixed(1)} |`);
    process.stdout.write(`${rows.at(-1)}\n`);
  }
  return `# A batch and other requests

\`node -r ./test/oracle/register-ts.cjs benchmarks/batch.ts ${process.argv.slice(2).join(' ')}\`: the time to the first token of streams with prompts of ${values['prompt-tokens']} tokens, one after the other, alone and while a batch of ${numLines} lines runs (prompts of ${LINE_PROMPT_TOKENS} tokens, ${LINE_TOKENS} tokens each).

| round | median, alone → beside a batch | 90 % | lines per second meanwhile |
|---|---|---|---|
${rows.join('\n')}

${MACHINE}
`;
}

main()
  .catch((error: unknown) => {
    console.error(error);
    process.exitCode = 1;
  })
  .finally(killAll);
