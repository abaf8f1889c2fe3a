// A child process of benchmarks/gateway.ts, either `replica` or `gateway PORT KEYS DEPLOYMENTS`.
// The replica sends a chunk to every open stream at each step, as an engine does.
// The process sends its port and a key to its parent. It replies to every message with its user and system CPU time.
import { KeyCheck } from '../server/access/check/check';
import { BudgetMeter } from '../server/access/check/budget';
import { generateKey } from '../server/base/key-format';
import { KeyUses } from '../server/access/check/uses';
import { KeyLimiter } from '../server/access/check/limiter';
import { KeyTable } from '../server/access/check/table';
import { Verifier } from '../server/access/check/verifier';
import { Gateway } from '../server/platform/gateway/gateway';
import { UsageMeter } from '../server/platform/usage/rollups';
import { Targets } from '../server/platform/gateway/targets';
import { createTransport } from '../server/http/create-transport';
import type { ReplyStream, StreamHandler } from '../server/http/transport';
import { createLog } from '../server/base/log';

const monotonicMs = () => performance.now();
const CHUNK = `data: ${JSON.stringify({ id: 'chatcmpl-0123456789', object: 'chat.completion.chunk', created: 1_800_000_000, model: 'demo', choices: [{ index: 0, delta: { content: ' word' }, finish_reason: null }] })}\n\n`;
const RESPONSE = JSON.stringify({
  id: 'chatcmpl-0123456789',
  object: 'chat.completion',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello there.' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 9, completion_tokens: 3, total_tokens: 12 },
});

/** The open streams by step duration in milliseconds. */
const groups = new Map<number, Set<() => void>>();

function everyStep(stepMs: number, send: () => void): () => void {
  let group = groups.get(stepMs);
  if (group === undefined) {
    const created = (group = new Set<() => void>());
    groups.set(stepMs, created);
    setInterval(() => created.forEach((step) => step()), stepMs);
  }
  group.add(send);
  return () => group.delete(send);
}

async function sendChunks(stream: ReplyStream, numChunks: number): Promise<void> {
  for (let i = 0; i < numChunks; i++) {
    if (!stream.write(CHUNK)) await stream.drained();
    if (i % 8 === 7) await new Promise((resolve) => setImmediate(resolve));
  }
}

const replica: StreamHandler = async (request, reply) => {
  await request.readBody();
  const query = new URLSearchParams(request.query);
  if (!query.has('chunks')) return reply.send(200, { 'Content-Type': 'application/json' }, RESPONSE);
  const [numChunks, stepMs] = [Number(query.get('chunks')), Number(query.get('step'))];
  const stream = reply.stream(200, { 'Content-Type': 'text/event-stream' });
  if (stepMs === 0) {
    await sendChunks(stream, numChunks);
  } else {
    await new Promise<void>((resolve) => {
      let numSent = 0;
      const stop = everyStep(stepMs, () => {
        stream.write(CHUNK);
        if (++numSent < numChunks && !request.signal.aborted) return;
        stop();
        resolve();
      });
    });
  }
  stream.write('data: [DONE]\n\n: capstan-usage prompt=9;completion=3;cached=0\n\n');
  stream.end();
};

function gatewayHandler(
  port: number,
  numKeys: number,
  numDeployments: number,
): { handler: StreamHandler; key: string } {
  const owner = 'usr_00000000000000000000000000';
  const table = new KeyTable();
  const check = new KeyCheck({
    table,
    uses: new KeyUses(),
    budgets: new BudgetMeter(() => 0),
    isCutting: true,
    limiter: new KeyLimiter(monotonicMs),
    now: Date.now,
    isFresh: () => true,
    verifier: new Verifier({ maxRunning: 2, maxWaiting: 32, maxFailuresPerMinute: 20, monotonicMs }),
  });
  const dep = (i: number) => `dep_${String(i).padStart(26, '0')}`;
  let key = '';
  for (let i = 0; i < numKeys; i++) {
    const { publicId, secret } = generateKey();
    table.apply({
      id: `key_${String(i).padStart(26, '0')}`,
      publicId,
      ownerId: owner,
      isEnabled: true,
      expiresAt: null,
      limits: null,
      allowedCidrs: null,
      budget: null,
      budgetUse: null,
      deployments: i % 2 === 0 ? null : [dep(i % numDeployments)],
      secrets: [
        {
          version: 1,
          hash: `$argon2id$v=19$m=19456,t=2,p=1$${secret.slice(21, 43)}$${secret.slice(15, 58)}`,
          validUntil: null,
        },
      ],
      rev: i + 1,
    });
    if (i !== numKeys >> 1) continue;
    check.rememberSecret(publicId, 1, secret);
    key = secret;
  }
  const targets = new Targets();
  for (let i = 0; i < numDeployments; i++) {
    targets.set({
      deploymentId: dep(i),
      slug: `d${i}`,
      name: `model-${i}`,
      aliases: [],
      fallbacks: [],
      fallbackAfterMs: null,
      createdMs: 0,
      ownerId: owner,
      accessControl: true,
      state: 'running',
      coldStartWaitMs: 1,
      cacheScope: 'key',
      replicas: [
        { id: `rep_${i}`, address: { type: 'tcp', host: '127.0.0.1', port }, secret: 'secret', isBuiltin: true },
      ],
    });
  }
  const meter = new UsageMeter();
  const access = {
    check: (request: Parameters<KeyCheck['check']>[0], target: Parameters<KeyCheck['check']>[1]) =>
      check.check(request, target),
    identify: (request: Parameters<KeyCheck['identify']>[0]) => check.identify(request),
  };
  const gateway = new Gateway({
    targets,
    control: { wake: () => {}, onOpenRequests: () => {} },
    access: access as never,
    log: createLog('error'),
    onEnd: (record) => meter.record(record),
  });
  return { handler: gateway.handle, key };
}

void (async () => {
  const [role, ...numbers] = process.argv.slice(2);
  const [port, numKeys, numDeployments] = numbers.map(Number);
  const { handler, key } =
    role === 'replica' ? { handler: replica, key: '' } : gatewayHandler(port, numKeys, numDeployments);
  const transport = await createTransport('uws', {
    handler,
    maxBodyBytes: 1 << 24,
    bodyTimeoutMs: 60_000,
    streamsBodies: true,
  });
  process.on('message', () => {
    const { user, system } = process.cpuUsage();
    process.send?.({ userMs: user / 1000, systemMs: system / 1000 });
  });
  process.on('disconnect', () => process.exit());
  process.send?.({ port: await transport.listen('127.0.0.1', 0), key });
})();
