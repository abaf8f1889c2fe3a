// Measures the server: the overhead of HTTP over the engine, latency, launch time and memory.
//   node -r ./test/oracle/register-ts.cjs benchmarks/server.ts MODEL_DIR
//     [--only stream,http,latency,launch] [--out FILE.md]
// MODEL_DIR is the 0.5 B model of benchmarks/peers/make_model.py, or demo. Nothing else should run on the machine;
// the load is printed.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { readServeBenchFlags, type ServeBenchFlags } from '../server/cli/bench/serve-flags';
import { runServeBench } from '../server/bench/run';
import { spreadOf, summarize } from '../server/bench/summary';
import { ttftOf } from '../server/bench/outcome';
import { Engine } from '../ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    only: { type: 'string', default: 'stream,latency,launch,http' },
    out: { type: 'string' },
    rounds: { type: 'string', default: '3' },
  },
});
const model = positionals[0] ?? 'demo';
const rounds = Number(values.rounds);
const root = join(__dirname, '..');
/** Resolution of the server's event-loop histogram. Its values include it. */
const LAG_RESOLUTION_MS = 20;
const lines: string[] = [];
const median = (numbers: number[]) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

function row(measure: string, measured: string, target: string): void {
  lines.push(`| ${measure} | ${measured} | ${target} |`);
  process.stdout.write(`${measure}: ${measured} (target ${target})\n`);
}

const DEFAULTS: ServeBenchFlags = {
  backend: 'openai',
  host: '127.0.0.1',
  port: '8080',
  datasetName: 'random',
  randomInputLen: '128',
  randomOutputLen: '64',
  randomRangeRatio: '0',
  randomPrefixLen: '0',
  prefixRepetitionPrefixLen: '4',
  prefixRepetitionSuffixLen: '2',
  prefixRepetitionNumPrefixes: '2',
  prefixRepetitionOutputLen: '1',
  numPrompts: '8',
  numWarmups: '0',
  requestRate: 'inf',
  burstiness: '1',
  seed: '0',
  timeout: '600',
  readyCheckTimeoutSec: '60',
  metricPercentiles: '50,99',
  percentileMetrics: 'ttft',
  resultDir: '.',
};

async function bench(url: string, flags: Partial<ServeBenchFlags>) {
  const options = readServeBenchFlags({ ...DEFAULTS, baseUrl: url, ...flags }, {});
  const run = await runServeBench(options, { signal: new AbortController().signal, onProgress: () => {} });
  const summary = summarize(run, options);
  if (summary.failed > 0) throw new Error(`${summary.failed} requests failed: ${JSON.stringify(summary.errors)}`);
  return { run, summary };
}

/** Starts a server with a text source instead of the engine. */
async function startSource(transport: string, numTokens: number) {
  const child = spawn(
    process.execPath,
    ['-r', join(root, 'test/oracle/register-ts.cjs'), join(__dirname, 'server-side.ts'), transport, String(numTokens)],
    { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const [port] = (await once(child.stdout, 'data')) as [Buffer];
  const url = `http://127.0.0.1:${port.toString().trim()}`;
  const cpuMs = async () => ((await (await fetch(`${url}/cpu`)).json()) as { ms: number }).ms;
  return { url, cpuMs, stop: () => child.kill() };
}

/** Measures events per second of the server's CPU time, which excludes the client and other processes. */
async function measureStreams(): Promise<void> {
  const numTokens = 2000;
  for (const transport of ['uws', 'node']) {
    const source = await startSource(transport, numTokens);
    const flags = {
      backend: 'openai-chat',
      inputLen: '8',
      randomInputLen: '8',
      randomOutputLen: '4000',
      numPrompts: '64',
    };
    await bench(source.url, flags);
    const perCoreSecond: number[] = [];
    for (let round = 0; round < rounds; round++) {
      const before = await source.cpuMs();
      const { summary } = await bench(source.url, flags);
      perCoreSecond.push(((summary.completed + 1) * numTokens) / (((await source.cpuMs()) - before) / 1000));
    }
    row(
      `SSE chunks per second of one core, ${transport}, 64 streams, with a text source instead of the engine`,
      Math.round(median(perCoreSecond)).toLocaleString('en-US'),
      '≥ 80,000',
    );
    source.stop();
  }
}

/** Measures the time to first token with a text source that responds at once: the latency of server and client. */
async function measureLatency(): Promise<void> {
  for (const transport of ['uws', 'node']) {
    const source = await startSource(transport, 4);
    const ttfts: number[] = [];
    for (let round = 0; round < rounds; round++) {
      const { run } = await bench(source.url, {
        backend: 'openai-chat',
        randomInputLen: '64',
        randomOutputLen: '4',
        numPrompts: '300',
        requestRate: '100',
        numWarmups: '100',
        seed: String(round),
      });
      ttfts.push(...run.outcomes.map(ttftOf));
    }
    const {
      percentiles: [p50, p99],
    } = spreadOf(ttfts, [50, 99]);
    row(
      `added latency of the first token, ${transport}, 100 requests/s, including the client`,
      `${p50.toFixed(2)} ms at p50, ${p99.toFixed(2)} ms at p99`,
      '≤ 2 ms at p50, ≤ 5 ms at p99',
    );
    source.stop();
  }
}

/** A running server process. */
interface LaunchedServer {
  url: string;
  pid: number;
  launchMs: number;
  stop: () => Promise<unknown>;
}

async function launch(...args: string[]): Promise<LaunchedServer> {
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const begin = performance.now();
  const child = spawn(
    process.execPath,
    [
      join(root, 'dist/server/main.js'),
      'serve',
      model,
      '--port',
      String(port),
      '--served-model-name',
      'm',
      '--max-model-len',
      '2048',
      '--kv-cache-memory',
      '512M',
      '--log-level',
      'warn',
      ...args,
    ],
    { stdio: 'ignore' },
  );
  const url = `http://127.0.0.1:${port}`;
  for (;;) {
    const isUp = await fetch(`${url}/health`).then(
      ({ status }) => status === 200,
      () => false,
    );
    if (isUp) break;
    if (child.exitCode !== null) throw new Error('the server did not start');
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return {
    url,
    pid: child.pid!,
    launchMs: performance.now() - begin,
    stop: () => {
      child.kill();
      return once(child, 'exit');
    },
  };
}

function residentMib(pid: number): number {
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]) / 1024;
}

async function measureLaunch(): Promise<void> {
  const times: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const server = await launch();
    times.push(server.launchMs);
    await server.stop();
  }
  row('launch to listening, with the file in the page cache', `${(median(times) / 1000).toFixed(2)} s`, '≤ 1.5 s');
}

/** Measures tokens per second with 1, 8 and 64 streams, alternating between the library and HTTP. */
async function measureHttp(): Promise<void> {
  for (const streams of [1, 8, 64]) {
    const flags = {
      randomInputLen: '32',
      randomOutputLen: '128',
      numPrompts: String(streams),
      ignoreEos: true,
      vocabSize: '1500',
      temperature: '0',
    };
    const alone: number[] = [];
    const overHttp: number[] = [];
    let lagMs = NaN;
    let resident = NaN;
    let weights = NaN;
    for (let round = 0; round < rounds; round++) {
      const engine = await Engine.load(model, { maxModelLen: 2048, kvCacheBytes: 512 * 2 ** 20 });
      alone.push(await tokensPerSecond(engine, streams));
      weights = engine.info.weightBytes / 2 ** 20;
      await engine.close();
      const server = await launch('--http-transport', 'node');
      await bench(server.url, { ...flags, numPrompts: '1' });
      const { run } = await bench(server.url, flags);
      overHttp.push(
        decodeRate(
          run.outcomes.map(({ chunkTimes, endedAt, completionTokens }) => ({
            first: chunkTimes[0],
            end: endedAt,
            tokens: completionTokens,
          })),
        ),
      );
      resident = residentMib(server.pid);
      const metrics = await (await fetch(`${server.url}/metrics`)).text();
      lagMs = Number(/^\w*event_?loop_lag_p99_seconds (\S+)/m.exec(metrics)?.[1]) * 1000 - LAG_RESOLUTION_MS;
      await server.stop();
    }
    const shares = overHttp.map((value, i) => value / alone[i]);
    row(
      `tokens/s through HTTP (node:http) against the engine alone, ${streams} streams`,
      `${median(overHttp).toFixed(1)} of ${median(alone).toFixed(1)}: ${(median(shares) * 100).toFixed(1)} %`,
      streams === 64 ? '≥ 95 %' : '≥ 97 %',
    );
    if (streams === 64) {
      row('event-loop lag under 64 streams, p99', `${lagMs.toFixed(1)} ms`, '≤ 5 ms');
      row(
        'resident memory without the weights after 64 streams, including used KV cache',
        `${(resident - weights).toFixed(0)} MiB`,
        '≤ 150 MB plus the KV cache',
      );
    }
  }
}

/** Returns tokens per second while all streams decode: from the last first token to the first end of a stream. */
function decodeRate(streams: readonly { first: number; end: number; tokens: number }[]): number {
  const begin = Math.max(...streams.map(({ first }) => first));
  const end = Math.min(...streams.map((stream) => stream.end));
  return (
    streams.reduce((sum, { first, end: last, tokens }) => sum + ((tokens - 1) * (end - begin)) / (last - first), 0) /
    ((end - begin) / 1000)
  );
}

async function tokensPerSecond(engine: Engine, streams: number): Promise<number> {
  const sampling = { maxTokens: 128, temperature: 0, ignoreEos: true };
  await engine.generate([11, 12, 13], { ...sampling, maxTokens: 8 }).result();
  const runs = await Promise.all(
    Array.from({ length: streams }, async (_, i) => {
      let first = 0;
      let tokens = 0;
      for await (const event of engine.generate(
        Array.from({ length: 32 }, (__, k) => 10 + ((i * 131 + k * 17) % 1400)),
        sampling,
      )) {
        if (event.type !== 'delta') continue;
        first ||= performance.now();
        tokens += event.tokenIds.length;
      }
      return { first, end: performance.now(), tokens };
    }),
  );
  return decodeRate(runs);
}

void (async () => {
  const parts: Record<string, () => Promise<void>> = {
    stream: measureStreams,
    latency: measureLatency,
    launch: measureLaunch,
    http: measureHttp,
  };
  const loadBefore = os.loadavg()[0];
  for (const name of values.only.split(',')) await parts[name]();
  const text = `| measure | measured | target |\n|---|---|---|\n${lines.join('\n')}\n\n${os.cpus()[0].model}, ${os.availableParallelism()} cores, node ${process.version}; model ${model}; load before ${loadBefore.toFixed(1)}, after ${os.loadavg()[0].toFixed(1)} (including this benchmark); medians of ${rounds} rounds.\n`;
  process.stdout.write(`\n${text}`);
  if (values.out !== undefined) writeFileSync(values.out, text);
})();
