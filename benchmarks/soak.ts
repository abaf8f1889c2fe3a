// Runs a server process under mixed load for a long time: chats, streams, completions, structured output, tools,
// clients that disconnect, slow readers, bad requests and hostile bodies. Meanwhile `capstan keys` creates, changes and
// deletes keys. At the end every request must be accounted for, all KV cache blocks must be free or cached, and memory
// and file descriptors must not have grown.
//   node -r ./test/oracle/register-ts.cjs benchmarks/soak.ts [--minutes 30] [--width 12] [--transport uws]
//     [--out benchmarks/results/soak.md] [--json FILE]
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { parseArgs, promisify } from 'node:util';
import { Random } from '../server/bench/random';
import { spreadOf } from '../server/bench/summary';
import { HOSTILE_BODIES } from '../test/fakes/hostile-bodies';
import { killAll, prepare, type Running, startServer } from '../test/fakes/server-process';
import { temporaryFolder } from '../test/fakes/temporary-folder';
import { probeHealth } from './health-probe';

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '30' },
    width: { type: 'string', default: '12' },
    seed: { type: 'string', default: '1' },
    transport: { type: 'string', default: 'auto' },
    out: { type: 'string' },
    json: { type: 'string' },
  },
});
/** Clients that read slower than the server writes. */
const NUM_SLOW_READERS = 2;
const root = join(__dirname, '..');
const keysDb = join(temporaryFolder('soak'), 'keys.db');
const run = promisify(execFile);

interface Sample {
  minute: number;
  residentMib: number;
  heapMib: number;
  numDescriptors: number;
  usedBlocks: number;
  openRequests: number;
  running: number;
  numResponses: number;
}

interface Key {
  id: string;
  secret: string;
}

/** The number of requests by status: `left` if the client disconnected, 499 if there was no response. */
const statuses: Record<string, number> = {};
const problems: string[] = [];
let numDisconnects = 0;
let numKeyChanges = 0;
let numStreamErrors = 0;
let numSlowStreams = 0;
let numSlowStreamsCut = 0;

async function keys(...args: string[]): Promise<Record<string, unknown>> {
  const { stdout } = await run(process.execPath, [
    join(root, 'dist/server/main.js'),
    'keys',
    args[0],
    '--keys-db',
    keysDb,
    '--json',
    ...args.slice(1),
  ]);
  return JSON.parse(stdout) as Record<string, unknown>;
}

async function createKey(name: string): Promise<Key> {
  const made = await keys('create', '--name', name);
  return { id: (made.id ?? (made.key as { id: string }).id) as string, secret: made.secret as string };
}

type TestRequest = { path: string; body: object | string; isStream: boolean; expected: readonly number[] };

const SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, age: { type: 'integer', minimum: 0, maximum: 150 } },
  required: ['name', 'age'],
  additionalProperties: false,
};
const TOOLS = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      parameters: { type: 'object', properties: { city: { type: 'string', maxLength: 20 } }, required: ['city'] },
    },
  },
];
const QUESTIONS = [
  'What is Capstan?',
  'Count from 1 to 20.',
  'Hello!',
  'What is 7 + 5?',
  'How do I start the server?',
  'What is the weather in Paris?',
];

const HOSTILE_REQUESTS: readonly TestRequest[] = HOSTILE_BODIES.map(({ path, body, status }) => ({
  path,
  body: JSON.stringify(body),
  isStream: false,
  expected: [status],
}));

function pickRequest(random: Random): TestRequest {
  const pick = <T>(choices: readonly T[]): T => choices[random.integer(0, choices.length - 1)];
  if (random.next() < 0.01) return pick(HOSTILE_REQUESTS);
  const isStream = random.next() < 0.6;
  const messages = [
    ...(random.next() < 0.3 ? [{ role: 'system', content: 'word '.repeat(random.integer(1, 300)) }] : []),
    { role: 'user', content: pick(QUESTIONS) + ' '.repeat(random.integer(0, 3)) },
  ];
  const chat = { messages, max_tokens: random.integer(1, 120), temperature: pick([0, 0.7, 1.5]), stream: isStream };
  const roll = random.next();
  if (roll < 0.5) return { path: '/v1/chat/completions', body: chat, isStream, expected: [200] };
  if (roll < 0.62)
    return {
      path: '/v1/completions',
      body: {
        prompt: Array.from({ length: random.integer(1, 400) }, () => random.integer(10, 1500)),
        max_tokens: random.integer(1, 60),
        stream: isStream,
        ignore_eos: true,
      },
      isStream,
      expected: [200],
    };
  if (roll < 0.72)
    return {
      path: '/v1/chat/completions',
      body: { ...chat, response_format: { type: 'json_schema', json_schema: { name: 's', schema: SCHEMA } } },
      isStream,
      expected: [200],
    };
  if (roll < 0.8)
    return {
      path: '/v1/chat/completions',
      body: { ...chat, tools: TOOLS, tool_choice: pick(['auto', 'required']) },
      isStream,
      expected: [200],
    };
  if (roll < 0.86)
    return {
      path: '/v1/chat/completions',
      body: { ...chat, n: random.integer(2, 4), temperature: 1, logprobs: true, top_logprobs: 2 },
      isStream,
      expected: [200],
    };
  const bad: TestRequest[] = [
    { path: '/v1/chat/completions', body: { ...chat, temperature: 9 }, isStream: false, expected: [400] },
    { path: '/v1/chat/completions', body: '{"messages": [', isStream: false, expected: [400] },
    { path: '/v1/chat/completions', body: { ...chat, model: 'nothing' }, isStream: false, expected: [404] },
    {
      path: '/v1/chat/completions',
      body: { ...chat, messages: [{ role: 'user', content: 'word '.repeat(50_000) }] },
      isStream: false,
      expected: [400],
    },
    {
      path: '/v1/chat/completions',
      body: { ...chat, response_format: { type: 'json_schema', json_schema: { name: 's', schema: { type: 'zzz' } } } },
      isStream: false,
      expected: [400],
    },
    { path: '/v1/nothing', body: {}, isStream: false, expected: [404] },
  ];
  return pick(bad);
}

async function sendOne(
  url: string,
  random: Random,
  getKey: () => { secret: string; mayBeRefused: boolean },
): Promise<void> {
  const { path, body, expected, isStream } = pickRequest(random);
  const { secret, mayBeRefused } = getKey();
  const controller = new AbortController();
  const disconnectAfterMs = random.next() < 0.15 ? random.integer(0, 400) : undefined;
  const timer = disconnectAfterMs === undefined ? undefined : setTimeout(() => controller.abort(), disconnectAfterMs);
  let status = 499;
  try {
    const response = await fetch(url + path, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${secret}` },
      body: typeof body === 'string' ? body : JSON.stringify(body),
      signal: controller.signal,
    });
    status = response.status;
    const text = await response.text();
    if (status === 200 && isStream && !text.endsWith('data: [DONE]\n\n'))
      problems.push(`a stream without [DONE]: ${JSON.stringify(text.slice(-100))}`);
    if (text.includes('"error":{')) {
      if (status === 200) numStreamErrors++;
    } else if (status !== 200) problems.push(`status ${status} without an error envelope`);
    if (!expected.includes(status) && !(mayBeRefused && status === 401))
      problems.push(`${path}: expected status ${expected.join(' or ')}, got ${status}: ${text.slice(0, 200)}`);
  } catch (error) {
    if (!controller.signal.aborted)
      problems.push(
        `${path}: ${(error as Error).message} ${((error as Error).cause as Error | undefined)?.message ?? ''}`,
      );
    numDisconnects++;
  } finally {
    clearTimeout(timer);
    // A client that disconnects does not know which status the server counted.
    const counted = controller.signal.aborted ? 'left' : String(status);
    statuses[counted] = (statuses[counted] ?? 0) + 1;
  }
}

/**
 * Reads a stream at 64 bytes every 100 ms, from a socket. The server must slow down, or cut the
 * connection after its limit for clients that read nothing.
 */
async function readSlowly(url: string, secret: string, isOver: () => boolean): Promise<void> {
  const { hostname, port } = new URL(url);
  const body = JSON.stringify({
    prompt: [11, 12, 13],
    max_tokens: 1500,
    stream: true,
    ignore_eos: true,
    temperature: 1,
    logprobs: 20,
  });
  const head = [
    'POST /v1/completions HTTP/1.1',
    `Host: ${hostname}`,
    `Authorization: Bearer ${secret}`,
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
  ];
  const socket = connect({ host: hostname, port: Number(port) });
  let text = '';
  let hasFailed = false;
  socket.on('error', () => (hasFailed = true));
  socket.write(`${head.join('\r\n')}\r\n\r\n${body}`);
  while (!socket.closed && !isOver()) {
    text += String(socket.read(64) ?? '');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const isCut = hasFailed || (socket.closed && !text.includes('data: [DONE]'));
  socket.destroy();
  const status = /^HTTP\/1\.1 (\d+)/.exec(text)?.[1];
  // The server counts this request, whatever became of it.
  statuses.left = (statuses.left ?? 0) + 1;
  if (status === undefined || status === '401') return;
  if (status !== '200') problems.push(`a slow reader got status ${status}`);
  numSlowStreams++;
  if (isCut) numSlowStreamsCut++;
}

async function readMetrics(url: string, secret: string): Promise<Map<string, number>> {
  const text = await (await fetch(`${url}/metrics`, { headers: { Authorization: `Bearer ${secret}` } })).text();
  return new Map(
    text
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
      .map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ') + 1))]),
  );
}

function sumOf(metrics: Map<string, number>, prefix: string, filter: (name: string) => boolean = () => true): number {
  return [...metrics]
    .filter(([name]) => name.startsWith(prefix) && filter(name))
    .reduce((sum, [, value]) => sum + value, 0);
}

function sampleOf(metrics: Map<string, number>, pid: number, startedAt: number): Sample {
  const resident = Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]) / 1024;
  return {
    minute: (Date.now() - startedAt) / 60_000,
    residentMib: resident,
    heapMib:
      (metrics.get('nodejs_heap_size_used_bytes') ?? sumOf(metrics, 'capstan_nodejs_heap_size_used_bytes')) / 2 ** 20,
    numDescriptors: readdirSync(`/proc/${pid}/fd`).length,
    usedBlocks: metrics.get('capstan_kv_cache_blocks{state="used"}') ?? NaN,
    openRequests: metrics.get('capstan_http_requests_open') ?? NaN,
    running: metrics.get('capstan_sequences_running') ?? NaN,
    numResponses: sumOf(metrics, 'capstan_http_requests_total{'),
  };
}

/** Returns the slope of a least-squares fit, in MiB per hour. */
function slopePerHour(samples: readonly Sample[], read: (sample: Sample) => number): number {
  const meanX = samples.reduce((sum, { minute }) => sum + minute, 0) / samples.length;
  const meanY = samples.reduce((sum, sample) => sum + read(sample), 0) / samples.length;
  const covariance = samples.reduce((sum, sample) => sum + (sample.minute - meanX) * (read(sample) - meanY), 0);
  return (covariance / samples.reduce((sum, { minute }) => sum + (minute - meanX) ** 2, 0)) * 60;
}

/** Creates, changes and deletes keys until the end. Some keys are valid at all times. */
async function changeKeys(valid: Key[], revoked: Set<string>, random: Random, isOver: () => boolean): Promise<void> {
  for (let i = 0; !isOver(); i++) {
    await new Promise((resolve) => setTimeout(resolve, 5000));
    const key = valid[0];
    const roll = random.integer(0, 3);
    if (roll === 0) await keys('edit', key.id, '--name', `changed ${i}`);
    else {
      const created = await createKey(`created ${i}`);
      // The server accepts the old key until it has applied the change.
      revoked.add(key.secret);
      valid.push(created);
      valid.shift();
      if (roll === 1) await keys('disable', key.id);
      else if (roll === 2) await keys('delete', key.id, '--yes');
      else await keys('rotate', key.id);
    }
    numKeyChanges++;
  }
}

/** Compares the server's metrics at the end with the counts of the clients. */
async function checkMetrics(url: string, secret: string, blocks: number): Promise<void> {
  let metrics = await readMetrics(url, secret);
  for (
    let waited = 0;
    waited < 30_000 &&
    (metrics.get('capstan_sequences_running') !== 0 || metrics.get('capstan_http_requests_open') !== 1);
    waited += 200
  ) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    metrics = await readMetrics(url, secret);
  }
  const expect = (name: string, actual: number | undefined, expected: number) => {
    if (actual !== expected) problems.push(`${name}: expected ${expected}, got ${actual}`);
  };
  expect('used blocks when idle', metrics.get('capstan_kv_cache_blocks{state="used"}'), 0);
  expect(
    'free and cached blocks',
    (metrics.get('capstan_kv_cache_blocks{state="free"}') ?? NaN) +
      (metrics.get('capstan_kv_cache_blocks{state="cached"}') ?? NaN),
    blocks,
  );
  expect('sequences waiting', metrics.get('capstan_sequences_waiting'), 0);
  expect('open streams', metrics.get('capstan_http_streams_open'), 0);
  const ofStatus = (status: string) =>
    sumOf(
      metrics,
      'capstan_http_requests_total{',
      (name) => name.includes('method="POST"') && name.includes(`status="${status}"`),
    );
  const all = sumOf(metrics, 'capstan_http_requests_total{', (name) => name.includes('method="POST"'));
  const sent = Object.values(statuses).reduce((sum, count) => sum + count, 0);
  const left = statuses.left ?? 0;
  // The request of a client that disconnected may not have reached the server, or may have status 200.
  if (all > sent || all < sent - left)
    problems.push(`the server counts ${all} requests, and the clients ${sent}, including ${left} that they aborted`);
  for (const status of ['400', '401', '404', '429', '500', '503']) {
    const surplus = ofStatus(status) - (statuses[status] ?? 0);
    if (surplus < 0 || surplus > left)
      problems.push(`status ${status}: the server counts ${ofStatus(status)}, the clients ${statuses[status] ?? 0}`);
  }
}

void (async () => {
  prepare();
  const admin = await createKey('admin');
  const valid = [await createKey('a'), await createKey('b'), await createKey('c')];
  const server: Running & { url: string } = await startServer(
    [
      'demo',
      '--http-transport',
      values.transport,
      '--access-control',
      '--keys-db',
      keysDb,
      '--log-level',
      'error',
      '--kv-cache-memory',
      '64M',
    ],
    {},
  );
  const pid = server.process.pid!;
  const startedAt = Date.now();
  const endAt = startedAt + Number(values.minutes) * 60_000;
  const isOver = () => Date.now() >= endAt || server.process.exitCode !== null;
  const revoked = new Set<string>();
  const samples: Sample[] = [];
  const first = await readMetrics(server.url, admin.secret);
  const blocks = sumOf(first, 'capstan_kv_cache_blocks{');
  const worker = async (index: number) => {
    const random = new Random(Number(values.seed) * 1000 + index);
    while (!isOver()) {
      await sendOne(server.url, random, () => {
        if (random.next() < 0.03) return { secret: 'csk_unknown', mayBeRefused: true };
        const old = random.next() < 0.03 ? [...revoked].at(-1) : undefined;
        const { secret } = valid[random.integer(1, valid.length - 1)];
        return { secret: old ?? secret, mayBeRefused: true };
      });
    }
  };
  const slowReader = async (index: number) => {
    const random = new Random(Number(values.seed) * 1000 + 500 + index);
    while (!isOver()) await readSlowly(server.url, valid[random.integer(1, valid.length - 1)].secret, isOver);
  };
  const probe = probeHealth(server.url, { intervalMs: 100, secret: admin.secret });
  const takeSamples = async () => {
    while (!isOver()) {
      samples.push(sampleOf(await readMetrics(server.url, admin.secret), pid, startedAt));
      await new Promise((resolve) => setTimeout(resolve, Math.min(10_000, Math.max(0, endAt - Date.now()))));
    }
  };
  await Promise.all([
    takeSamples(),
    changeKeys(valid, revoked, new Random(5), isOver),
    ...Array.from({ length: Number(values.width) }, (_, index) => worker(index)),
    ...Array.from({ length: NUM_SLOW_READERS }, (_, index) => slowReader(index)),
  ]);
  const {
    percentiles: [healthP50, healthP99],
  } = spreadOf(await probe.stop(), [50, 99]);
  if (server.process.exitCode !== null) problems.push(`the server exited: ${server.output().stderr.slice(-500)}`);
  else await checkMetrics(server.url, admin.secret, blocks);
  // Caches and heap reach their final size during the first 30 %.
  const settled = samples.filter(({ minute }) => minute > Number(values.minutes) * 0.3);
  const slope = {
    resident: slopePerHour(settled, ({ residentMib }) => residentMib),
    heap: slopePerHour(settled, ({ heapMib }) => heapMib),
  };
  const middle = Math.floor(settled.length / 2);
  const mean = (part: readonly Sample[], read: (sample: Sample) => number) =>
    part.reduce((sum, sample) => sum + read(sample), 0) / part.length;
  const growthOf = (read: (sample: Sample) => number) =>
    mean(settled.slice(middle), read) - mean(settled.slice(0, middle), read);
  const growthMib = growthOf(({ residentMib }) => residentMib);
  const descriptorGrowth = growthOf(({ numDescriptors }) => numDescriptors);
  if (descriptorGrowth > 8)
    problems.push(`open file descriptors grew by ${descriptorGrowth.toFixed(1)} from the first half to the second`);
  if (growthMib > 24)
    problems.push(`resident memory grew by ${growthMib.toFixed(1)} MiB from the first half to the second`);
  server.process.kill('SIGTERM');
  const [exitCode] = await server.exited;
  if (exitCode !== 0) problems.push(`the server exited with ${exitCode}`);
  const logged = server.output().stderr;
  if (logged !== '') problems.push(`the server logged: ${logged.slice(0, 500)}`);
  const result = {
    minutes: Number(values.minutes),
    width: Number(values.width),
    statuses,
    numDisconnects,
    numKeyChanges,
    numStreamErrors,
    blocks,
    slope,
    growthMib,
    descriptorGrowth,
    healthMs: { p50: healthP50, p99: healthP99 },
    problems: problems.slice(0, 50),
    samples,
  };
  const text = render(result);
  process.stdout.write(text);
  if (values.out !== undefined) writeFileSync(values.out, text);
  if (values.json !== undefined) writeFileSync(values.json, JSON.stringify(result));
  process.exitCode = problems.length === 0 ? 0 : 1;
})().finally(killAll);

function render(result: {
  minutes: number;
  width: number;
  blocks: number;
  slope: { resident: number; heap: number };
  growthMib: number;
  descriptorGrowth: number;
  healthMs: { p50: number; p99: number };
  samples: Sample[];
}): string {
  const rows = Array.from(
    { length: 11 },
    (_, i) => result.samples[Math.min(result.samples.length - 1, Math.round((i * (result.samples.length - 1)) / 10))],
  );
  const sent = Object.values(statuses).reduce((sum, count) => sum + count, 0);
  return `# Soak

\`benchmarks/soak.ts --minutes ${result.minutes} --width ${result.width} --transport ${values.transport}\` ran on ${new Date().toISOString().slice(0, 10)}. It runs \`capstan serve demo --access-control\` under ${result.width} clients. They send chats, streams, completions, JSON schemas and tools,
disconnect early (15 %), send bad requests (14 %) and hostile bodies (1 %), and use unknown keys. ${NUM_SLOW_READERS} more clients read their streams at 640 bytes/s. Meanwhile \`capstan keys\` creates, changes, rotates, disables and deletes keys in the same database.

${sent.toLocaleString('en-US')} requests: ${Object.entries(statuses)
    .map(
      ([status, count]) =>
        `${count.toLocaleString('en-US')} ${status === 'left' ? 'aborted by the client' : `with status ${status}`}`,
    )
    .join(', ')}.
${numKeyChanges} key changes. ${numStreamErrors} streams ended with an error event: deleting or disabling a key ends its running requests. An internal error would be logged.
${problems.length === 0 ? `The server's metrics account for every request. At the end all ${result.blocks} blocks are free or cached. The server logged no error and exited with 0.` : `**Problems**: ${problems.slice(0, 10).join('; ')}`}
${numSlowStreams} slow streams. The server cut ${numSlowStreamsCut}. GET /health took ${result.healthMs.p50.toFixed(1)} ms at p50 and ${result.healthMs.p99.toFixed(1)} ms at p99.

After the first 30 %, mean resident memory changed by ${result.growthMib.toFixed(1)} MiB from the first half of the remaining time to the second (slopes: resident ${result.slope.resident.toFixed(1)}, heap ${result.slope.heap.toFixed(1)} MiB per hour). Open file descriptors changed by ${result.descriptorGrowth.toFixed(1)}.

| minute | resident, MiB | heap used, MiB | file descriptors | blocks in use | sequences running | requests open | responses so far |
|---|---|---|---|---|---|---|---|
${rows.map((row) => `| ${row.minute.toFixed(1)} | ${row.residentMib.toFixed(0)} | ${row.heapMib.toFixed(0)} | ${row.numDescriptors} | ${row.usedBlocks} | ${row.running} | ${row.openRequests} | ${row.numResponses} |`).join('\n')}
`;
}
