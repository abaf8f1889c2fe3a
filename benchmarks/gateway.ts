// Measures the overhead of the gateway: the same requests to a replica directly and through the gateway, which has
// 100,000 keys and 1,000 deployments in its tables.
//   node -r ./test/oracle/register-ts.cjs benchmarks/gateway.ts [--out benchmarks/results/gateway.md]
//     [--seconds 60] [--profile DIR]
// It runs three processes. Nothing else should run on the machine; the load is printed.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    out: { type: 'string' },
    seconds: { type: 'string', default: '60' },
    keys: { type: 'string', default: '100000' },
    deployments: { type: 'string', default: '1000' },
    profile: { type: 'string' },
  },
});
const NUM_STREAMS = 64;
const bodyFor = (model: string): Buffer =>
  Buffer.from(
    JSON.stringify({
      // As official clients order it.
      messages: [{ role: 'user', content: 'Say hello, and describe the weather forecast for tomorrow.' }],
      model,
    }),
  );
const agent = new Agent({ keepAlive: true, maxSockets: 256 });

interface Side {
  child: ChildProcess;
  port: number;
  key: string;
}

async function start(...args: string[]): Promise<Side> {
  const child = fork(join(__dirname, 'gateway-side.ts'), args, {
    execArgv: [
      '-r',
      join(__dirname, '../test/oracle/register-ts.cjs'),
      ...(values.profile === undefined ? [] : ['--cpu-prof', '--cpu-prof-dir', join(values.profile, args[0])]),
    ],
  });
  const [{ port, key }] = (await once(child, 'message')) as [{ port: number; key: string }];
  return { child, port, key };
}

async function cpuMs({ child }: Side): Promise<number> {
  child.send('cpu');
  const [{ userMs, systemMs }] = (await once(child, 'message')) as [{ userMs: number; systemMs: number }];
  return userMs + systemMs;
}

/** A path to the replica: direct or through the gateway. */
interface Route {
  port: number;
  prefix: string;
  key: string;
  body: Buffer;
}

/** The measurements of one request. */
interface Measurement {
  firstByteMs: number;
  totalMs: number;
  numBytes: number;
}

/** Sends one request. The time to first byte is that of the body, which a client waits for. */
function send({ port, prefix, key, body }: Route, query: string): Promise<Measurement> {
  return new Promise((resolve, reject) => {
    const startedMs = performance.now();
    const sent = request(
      {
        agent,
        port,
        host: '127.0.0.1',
        method: 'POST',
        path: `${prefix}/v1/chat/completions${query}`,
        headers: {
          'Content-Type': 'application/json',
          'Content-Length': body.length,
          ...(key === '' ? {} : { Authorization: `Bearer ${key}` }),
        },
      },
      (response) => {
        let firstByteMs = 0;
        let numBytes = 0;
        response.on('data', (chunk: Buffer) => {
          if (numBytes === 0) firstByteMs = performance.now() - startedMs;
          numBytes += chunk.length;
        });
        response.on('end', () =>
          response.statusCode === 200
            ? resolve({ firstByteMs, totalMs: performance.now() - startedMs, numBytes })
            : reject(new Error(`expected status 200, got ${response.statusCode}`)),
        );
        response.on('error', reject);
      },
    );
    sent.on('error', reject);
    sent.end(body);
  });
}

const quantile = (numbers: readonly number[], q: number): number =>
  [...numbers].sort((a, b) => a - b)[Math.min(numbers.length - 1, Math.floor(numbers.length * q))];

/** Measures the times to first byte. Alternates between the routes, so that noise affects both equally. */
async function firstBytes(direct: Route, through: Route, query: string, ms: number): Promise<[number[], number[]]> {
  const times: [number[], number[]] = [[], []];
  for (let i = 0; i < 200; i++) for (const route of [direct, through]) await send(route, query);
  const endMs = performance.now() + ms;
  while (performance.now() < endMs) {
    for (let i = 0; i < 20; i++) {
      times[0].push((await send(direct, query)).firstByteMs);
      times[1].push((await send(through, query)).firstByteMs);
    }
  }
  return times;
}

/** Returns the bytes per second over 64 concurrent streams. */
async function measureStreams(route: Route, query: string): Promise<number> {
  const startedMs = performance.now();
  const all = await Promise.all(Array.from({ length: NUM_STREAMS }, () => send(route, query)));
  return (all.reduce((sum, { numBytes }) => sum + numBytes, 0) / (performance.now() - startedMs)) * 1000;
}

const lines: string[] = [];
function row(...cells: string[]): void {
  lines.push(`| ${cells.join(' | ')} |`);
  process.stdout.write(`${lines.at(-1)}\n`);
}

void (async () => {
  const replica = await start('replica');
  const gateway = await start('gateway', String(replica.port), values.keys, values.deployments);
  const direct: Route = { port: replica.port, prefix: '', key: '', body: bodyFor('demo') };
  const number = Number(values.deployments) >> 1;
  const through: Route = { ...direct, port: gateway.port, prefix: `/d/d${number}`, key: gateway.key };
  const byModel: Route = { ...through, prefix: '', body: bodyFor(`model-${number}`) };
  const budgetMs = Number(values.seconds) * 1000;
  row('measure', 'direct', 'through the gateway', 'difference', 'target');
  row('---', '---', '---', '---', '---');
  for (const [name, query, route] of [
    ['first byte of a complete response', '', through],
    ['first byte of a stream', '?chunks=1&step=0', through],
    ['first byte of a complete response, deployment found by model', '', byModel],
  ] as const) {
    const [without, within] = await firstBytes(direct, route, query, budgetMs * 0.13);
    const ms = (numbers: readonly number[]) =>
      `p50 ${quantile(numbers, 0.5).toFixed(3)} ms, p99 ${quantile(numbers, 0.99).toFixed(3)} ms`;
    row(
      `${name}, one request after another (${without.length} each)`,
      ms(without),
      ms(within),
      `p50 +${(quantile(within, 0.5) - quantile(without, 0.5)).toFixed(3)} ms`,
      '≤ 1 ms at p50',
    );
  }
  for (const [name, stepMs, numChunks] of [
    ['40 tokens/s each', 25, 160],
    ['100 tokens/s each', 10, 400],
    ['at full speed', 0, 2_000],
  ] as const) {
    const query = `?chunks=${numChunks}&step=${stepMs}`;
    const rates: [number[], number[]] = [[], []];
    let gatewayMs = 0;
    let numTokens = 0;
    const endMs = performance.now() + budgetMs * 0.2;
    while (performance.now() < endMs || rates[0].length < 2) {
      rates[0].push(await measureStreams(direct, query));
      const before = await cpuMs(gateway);
      const rate = await measureStreams(through, query);
      gatewayMs += (await cpuMs(gateway)) - before;
      rates[1].push(rate);
      numTokens += NUM_STREAMS * numChunks;
    }
    const [without, within] = rates.map((all) => quantile(all, 0.5));
    const mb = (rate: number) => `${(rate / 1e6).toFixed(2)} MB/s`;
    row(
      `${NUM_STREAMS} streams, ${name} (median of ${rates[0].length})`,
      mb(without),
      mb(within),
      `${((within / without) * 100).toFixed(1)} %; ${((gatewayMs / numTokens) * 1000).toFixed(1)} µs of gateway CPU time per token: ${(numTokens / gatewayMs).toFixed(0)} k tokens/s per core`,
      '≥ 90 %',
    );
  }
  const [load] = os.loadavg();
  const head = [
    '# Overhead of the gateway',
    '',
    `\`node -r ./test/oracle/register-ts.cjs benchmarks/gateway.ts\` on ${os.cpus().length} cores (${os.cpus()[0].model.trim()}), Node ${process.version}, load ${load.toFixed(1)} at the end. Client, gateway and replica are three`,
    `processes that share these cores, so at full speed the two routes do not have the same CPU time available. The deployment is one of ${values.deployments} and requires a key; its key is one of ${values.keys}.`,
    'A token is an event of about 200 bytes. The gateway removes the usage comment, counts usage, and checks the key of every request.',
    '',
  ];
  if (values.out !== undefined) writeFileSync(values.out, `${[...head, ...lines].join('\n')}\n`);
  for (const { child } of [gateway, replica]) child.disconnect();
  agent.destroy();
})();
