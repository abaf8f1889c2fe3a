// Measures what gateways add to the same requests: Capstan's service, LiteLLM and Portkey's gateway, each on core 0,
// with the load and the upstream on core 1.
//   npm run build
//   node -r ./test/oracle/register-ts.cjs benchmarks/gateway-peers.ts --litellm VENV --portkey FOLDER
//     [--row 1,100,1000,streams,memory] [--seconds 60] [--results FILE.json] [--out FILE.md]
// VENV has litellm[proxy], FOLDER has @portkey-ai/gateway (see the page of results). Without one of them
// that gateway is left out. A later run with the same --results measures other rows and keeps the earlier ones.
import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { atRate, Client, type Rated, type Route, streamBytes } from './gateway/load';
import { pageOf, type Results } from './gateway/page';
import {
  cpuMs,
  directRoute,
  MODEL,
  type Peer,
  residentMiB,
  setRunning,
  startCapstan,
  startLiteLlm,
  startPortkey,
} from './gateway/peers';

const { values } = parseArgs({
  options: {
    litellm: { type: 'string' },
    portkey: { type: 'string' },
    row: { type: 'string', default: '1,100,1000,streams,memory' },
    seconds: { type: 'string', default: '60' },
    results: { type: 'string', default: join(os.tmpdir(), 'capstan-gateway-peers.json') },
    out: { type: 'string' },
  },
});
const NUM_KEYS = 100_000;
const NUM_STREAMS = 64;
const TOKENS_PER_STREAM = 500;
/** Enough for each gateway to run compiled code. */
const NUM_WARM_UP = 3000;
const NUM_ROUNDS = 3;
/** More open requests than this are not sent at a fixed rate. */
const MAX_OPEN = 256;

const body = (numTokens: number) => ({
  model: MODEL,
  messages: [{ role: 'user', content: 'Say hello, and describe the weather forecast for tomorrow.' }],
  max_tokens: numTokens,
  stream: true,
});

interface Target {
  name: string;
  route: Route;
  peer?: Peer;
}

async function startUpstream(): Promise<{ port: number; stop: () => void }> {
  const child = fork(join(__dirname, 'gateway/upstream.ts'), [], {
    execArgv: ['-r', join(__dirname, '../test/oracle/register-ts.cjs')],
  });
  const [port] = (await once(child, 'message')) as [number];
  return { port, stop: () => child.disconnect() };
}

async function startPeers(upstreamPort: number, peers: Peer[]): Promise<void> {
  for (const transport of ['node', 'uws'] as const) peers.push(await startCapstan(upstreamPort, NUM_KEYS, transport));
  if (values.litellm !== undefined) peers.push(await startLiteLlm(upstreamPort, values.litellm));
  if (values.portkey !== undefined) peers.push(await startPortkey(upstreamPort, values.portkey));
}

async function warmUp({ route }: Target): Promise<void> {
  const client = new Client(route, body(1));
  for (let i = 0; i < NUM_WARM_UP / 10; i++) await Promise.all(Array.from({ length: 10 }, () => client.send()));
  client.close();
}

/** Time that a gateway has for its timers after it was stopped. */
const CONTINUE_MS = 1000;

/** Calls `measure` for each target in turn. The gateways of the others are stopped meanwhile. */
async function inTurn(targets: readonly Target[], measure: (i: number) => Promise<void>): Promise<void> {
  const peers = targets.flatMap(({ peer }) => peer ?? []);
  try {
    for (let round = 0; round < NUM_ROUNDS; round++)
      for (const [i, { peer }] of targets.entries()) {
        for (const other of peers) setRunning(other, other === peer);
        await new Promise((resolve) => setTimeout(resolve, CONTINUE_MS));
        await measure(i);
      }
  } finally {
    for (const peer of peers) setRunning(peer, true);
  }
}

/** At one request a second the gateways are idle, so that all are measured at once. Else they take turns. */
async function rateRow(
  targets: readonly Target[],
  perSecond: number,
  seconds: number,
): Promise<Results['rates'][string]> {
  const isTogether = perSecond === 1;
  const slice = isTogether ? seconds : seconds / NUM_ROUNDS / targets.length;
  const all: Rated[][] = targets.map(() => []);
  const measure = async (i: number) => {
    const client = new Client(targets[i].route, body(1));
    if (isTogether) await new Promise((resolve) => setTimeout(resolve, (1000 / targets.length) * i));
    // Connects before it measures.
    else await Promise.all(Array.from({ length: 8 }, () => client.send()));
    all[i].push(await atRate(client, perSecond, slice, MAX_OPEN));
    client.close();
  };
  if (isTogether) await Promise.all(targets.map((_, i) => measure(i)));
  else await inTurn(targets, measure);
  return targets.map(({ name }, i) => ({
    name,
    firstByteMs: all[i].flatMap(({ firstByteMs }) => firstByteMs),
    reached: all[i].reduce((sum, { reached }) => sum + reached, 0) / all[i].length,
    numRefused: all[i].reduce((sum, { numRefused }) => sum + numRefused, 0),
  }));
}

async function streamsRow(targets: readonly Target[], seconds: number): Promise<Results['streams']> {
  const rates: number[][] = targets.map(() => []);
  const cpu = targets.map(() => ({ ms: 0, numTokens: 0 }));
  const slice = seconds / NUM_ROUNDS / targets.length;
  await inTurn(targets, async (i) => {
    const { route, peer } = targets[i];
    const client = new Client(route, body(TOKENS_PER_STREAM));
    // Gateways write events anew, so a token has another length behind each.
    const bytesPerToken = (await client.send()).numBytes / TOKENS_PER_STREAM;
    const before = peer === undefined ? 0 : cpuMs(peer);
    const startMs = performance.now();
    const perSecond = (await streamBytes(client, NUM_STREAMS, slice)) / bytesPerToken;
    rates[i].push(perSecond);
    // The streams that were open at the end of the slice ended later.
    const seconds = (performance.now() - startMs) / 1000;
    cpu[i].ms += peer === undefined ? 0 : cpuMs(peer) - before;
    cpu[i].numTokens += perSecond * seconds;
    client.close();
  });
  return targets.map(({ name }, i) => ({
    name,
    tokensPerSecond: rates[i],
    cpuUsPerToken: (cpu[i].ms * 1000) / cpu[i].numTokens,
  }));
}

async function memoryRow(upstreamPort: number): Promise<Results['memory']> {
  const starts: [keys: string, start: () => Promise<Peer>][] = [
    ['1', () => startCapstan(upstreamPort, 1, 'node')],
    ['100,000', () => startCapstan(upstreamPort, NUM_KEYS, 'node')],
    ['1 (no database)', () => startLiteLlm(upstreamPort, values.litellm!)],
    ['0 (has no keys)', () => startPortkey(upstreamPort, values.portkey!)],
  ];
  const rows: Results['memory'] = [];
  for (const [i, [keys, start]] of starts.entries()) {
    if ((i === 2 && values.litellm === undefined) || (i === 3 && values.portkey === undefined)) continue;
    const peer = await start();
    const idle = residentMiB(peer);
    for (let n = 0; n < 5; n++) await warmUp(peer);
    rows.push({ name: peer.name, keys, startMiB: idle, loadedMiB: residentMiB(peer) });
    await peer.stop();
  }
  return rows;
}

void (async () => {
  execFileSync('taskset', ['-a', '-c', '-p', '1', String(process.pid)]);
  const seconds = Number(values.seconds);
  const results: Results = existsSync(values.results)
    ? (JSON.parse(readFileSync(values.results, 'utf8')) as Results)
    : { rates: {}, streams: [], memory: [] };
  const rows = values.row.split(',');
  const upstream = await startUpstream();
  const peers: Peer[] = [];
  try {
    if (rows.some((row) => row !== 'memory')) await startPeers(upstream.port, peers);
    const targets: Target[] = [
      { name: 'direct', route: directRoute(upstream.port) },
      ...peers.map((peer) => ({ name: peer.name, route: peer.route, peer })),
    ];
    for (const target of targets) await warmUp(target);
    for (const row of rows) {
      if (row === 'streams') results.streams = await streamsRow(targets, seconds);
      else if (row === 'memory') results.memory = await memoryRow(upstream.port);
      else results.rates[row] = await rateRow(targets, Number(row), seconds);
      writeFileSync(values.results, JSON.stringify(results));
    }
  } finally {
    await Promise.all(peers.map((peer) => peer.stop()));
    upstream.stop();
  }
  const page = pageOf(results);
  if (values.out !== undefined) writeFileSync(values.out, page);
  process.stdout.write(page);
})().catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
