// Measures what one client costs the others:
//   gaps    the longest time between two tokens of a stream while prompts of 3,000 tokens arrive
//   health  the latency of /health while clients send hostile bodies
//   node -r ./test/oracle/register-ts.cjs benchmarks/responsiveness.ts MODEL_DIR
//     [--only gaps,health] [--seconds 20] [--rounds 3] [--out FILE.md]
// MODEL_DIR is the 0.5 B model of benchmarks/peers/make_model.py, or demo. `health` always serves demo.
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { parseArgs } from 'node:util';
import { spreadOf } from '../server/bench/summary';
import { HOSTILE_BODIES } from '../test/fakes/hostile-bodies';
import { killAll, prepare, startServer } from '../test/fakes/server-process';
import { probeHealth } from './health-probe';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    only: { type: 'string', default: 'gaps,health' },
    seconds: { type: 'string', default: '20' },
    rounds: { type: 'string', default: '3' },
    out: { type: 'string' },
  },
});
const model = positionals[0] ?? 'demo';
const LONG_PROMPT = 3000;
const STREAM_TOKENS = 400;
/** Tokens of the stream before the long prompt arrives. */
const TOKENS_BEFORE = 40;
const lines: string[] = [];
const median = (numbers: readonly number[]) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

function row(measure: string, measured: string, target: string): void {
  lines.push(`| ${measure} | ${measured} | ${target} |`);
  process.stdout.write(`${measure}: ${measured} (target ${target})\n`);
}

const tokenIds = (count: number, seed: number) =>
  Array.from({ length: count }, (_, i) => 10 + ((i * 131 + seed) % 1400));

function complete(url: string, body: object): Promise<Response> {
  return fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ temperature: 0, ignore_eos: true, ...body }),
  });
}

/** Streams tokens, and a long prompt arrives in the middle. Returns the gaps between tokens before and after that. */
async function measureGaps(url: string, seed: number): Promise<{ quiet: number[]; busy: number[]; ttftMs: number }> {
  const times: number[] = [];
  const response = await complete(url, { prompt: tokenIds(16, seed), max_tokens: STREAM_TOKENS, stream: true });
  const reader = response.body!.pipeThrough(new TextDecoderStream());
  let long: Promise<number> | undefined;
  let arrivedAt = Infinity;
  for await (const text of reader) {
    for (let i = text.split('data: {').length - 1; i > 0; i--) times.push(performance.now());
    if (times.length < TOKENS_BEFORE || long !== undefined) continue;
    arrivedAt = performance.now();
    long = complete(url, { prompt: tokenIds(LONG_PROMPT, seed + 7), max_tokens: 1 })
      .then((answer) => answer.arrayBuffer())
      .then(() => performance.now() - arrivedAt);
  }
  const ttftMs = await long!;
  const gaps = times.slice(1).map((time, i) => ({ time, gap: time - times[i] }));
  const gapsWhere = (test: (time: number) => boolean) => gaps.filter(({ time }) => test(time)).map(({ gap }) => gap);
  return {
    quiet: gapsWhere((time) => time < arrivedAt),
    busy: gapsWhere((time) => time >= arrivedAt && time <= arrivedAt + ttftMs),
    ttftMs,
  };
}

async function gaps(): Promise<void> {
  for (const [name, flags] of [
    ['without a limit (--max-step-ms 0)', ['--max-step-ms', '0']],
    ['default (--max-step-ms 100)', []],
  ] as const) {
    const server = await startServer(
      [model, '--max-model-len', '8192', '--kv-cache-memory', '512M', '--no-enable-prefix-caching', ...flags],
      {},
    );
    // The engine estimates the time of a step from earlier steps.
    await measureGaps(server.url, 0);
    const runs = [];
    for (let round = 1; round <= Number(values.rounds); round++) runs.push(await measureGaps(server.url, round * 31));
    const longest = runs.map(({ busy }) => Math.max(...busy));
    const decodeMs = median(runs.flatMap(({ quiet }) => quiet));
    row(
      `longest gap of a stream while ${LONG_PROMPT.toLocaleString('en-US')} tokens arrive, ${name}`,
      `${longest.map((gap) => gap.toFixed(0)).join(', ')} ms (median gap before: ${decodeMs.toFixed(0)} ms; time to first token of the prompt: ${median(runs.map(({ ttftMs }) => ttftMs)).toFixed(0)} ms)`,
      flags.length > 0 ? 'none' : '≤ 100 ms and one decode step',
    );
    server.process.kill();
    await server.exited;
  }
}

async function health(): Promise<void> {
  const bodies = HOSTILE_BODIES.map(({ path, body }) => ({ path, text: JSON.stringify(body) }));
  for (const transport of ['node', 'uws']) {
    const server = await startServer(['demo', '--http-transport', transport, '--log-level', 'error'], {});
    const endAt = performance.now() + Number(values.seconds) * 1000;
    let numSent = 0;
    const attack = async () => {
      while (performance.now() < endAt) {
        const { path, text } = bodies[numSent++ % bodies.length];
        const response = await fetch(server.url + path, {
          method: 'POST',
          headers: { 'Content-Type': 'application/json' },
          body: text,
        });
        await response.arrayBuffer();
      }
    };
    const probe = probeHealth(server.url);
    await Promise.all([attack(), attack()]);
    const latencies = await probe.stop();
    const {
      percentiles: [p50, p99],
    } = spreadOf(latencies, [50, 99]);
    row(
      `latency of /health under attack, ${transport}, ${numSent} hostile bodies in ${values.seconds} s`,
      `${p50.toFixed(1)} ms at p50, ${p99.toFixed(1)} ms at p99, at most ${Math.max(...latencies).toFixed(0)} ms`,
      'p99 ≤ 150 ms, aim 20 ms',
    );
    if (p99 > 150) process.exitCode = 1;
    server.process.kill();
    await server.exited;
  }
}

void (async () => {
  prepare();
  const parts: Record<string, () => Promise<void>> = { gaps, health };
  const loadBefore = os.loadavg()[0];
  for (const name of values.only.split(',')) await parts[name]();
  const text = `| measure | measured | target |\n|---|---|---|\n${lines.join('\n')}\n\n${os.cpus()[0].model}, ${os.availableParallelism()} cores, Node.js ${process.version}, model ${model}, load before ${loadBefore.toFixed(1)}.\n`;
  process.stdout.write(`\n${text}`);
  if (values.out !== undefined) writeFileSync(values.out, text);
})().finally(killAll);
