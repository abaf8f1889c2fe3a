/** A replica behind the gateway: its secret, salts, load and usage. */
import { createHash } from 'node:crypto';
import { App } from '../../../server/inference/app';
import {
  ALLOWANCE_HEADER,
  ENDED_USAGE_PATH,
  formatAllowance,
  formatLoad,
  formatUsage,
  LOAD_HEADER,
  LOAD_PATH,
  parseLoad,
  parseUsage,
  SALT_HEADER,
  SECRET_HEADER,
  USAGE_COMMENT,
  USAGE_HEADER,
} from '../../../server/http/replica-headers';
import { fromEnvironment } from '../../../server/cli/environment';
import { resolveServeOptions } from '../../../server/cli/flag-sources';
import { Engine } from '../../../ts';
import { fake } from '../../fakes/fake-addon';
import { exchange } from '../../fakes/memory-exchange';
import { tinyModel } from '../../fakes/tiny-model';

const SECRET = createHash('sha256').update('a secret').digest('hex');
const BODY = { messages: [{ role: 'user', content: 'Hi' }] };
const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
let engine: Engine;
let app: App;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => {
  fake.reset();
  app = makeApp(SECRET);
});
afterAll(() => engine.close());

function makeApp(replicaSecret?: string): App {
  const made = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    ...(replicaSecret === undefined ? {} : { replicaSecret }),
  });
  made.serve(engine);
  return made;
}

type Sent = [name: string, value: string][];
const lower = (...headers: Sent): Sent => headers.map(([name, value]) => [name.toLowerCase(), value]);
const asGateway = (...more: Sent): { headers: Sent } => ({
  headers: [['content-type', 'application/json'], ...lower([SECRET_HEADER, SECRET], ...more)],
});

test('requires its secret on all paths except /health', async () => {
  const statuses = async (headers: Sent) =>
    Promise.all(
      ['/v1/models', '/health', LOAD_PATH, '/nowhere'].map(
        async (path) => (await exchange(app, path, undefined, { headers })).status,
      ),
    );
  expect(await statuses(lower([SECRET_HEADER, SECRET]))).toEqual([200, 200, 204, 404]);
  for (const headers of [
    [],
    lower([SECRET_HEADER, '']),
    lower([SECRET_HEADER, `${SECRET}x`]),
    lower(['Authorization', `Bearer ${SECRET}`]),
  ] as Sent[])
    expect(await statuses(headers)).toEqual([401, 200, 401, 401]);
  const refused = await exchange(app, '/v1/models');
  expect([refused.json.error.code, refused.headers[LOAD_HEADER]]).toEqual(['invalid_api_key', undefined]);
});

test('a server without a secret is open and reports neither load nor usage', async () => {
  const open = makeApp();
  expect((await exchange(open, LOAD_PATH)).status).toBe(404);
  const reply = await exchange(open, '/v1/chat/completions', BODY, asGateway([SALT_HEADER, 'salt']));
  expect([reply.status, reply.headers[LOAD_HEADER], reply.headers[USAGE_HEADER]]).toEqual([200, undefined, undefined]);
  expect((await exchange(open, '/v1/chat/completions', { ...BODY, stream: true }, asGateway())).text).not.toContain(
    USAGE_COMMENT,
  );
  expect(requestedSalts()).toEqual(['', '']);
});

test("combines the gateway's salt with the client's own", async () => {
  await exchange(app, '/v1/chat/completions', BODY, asGateway([SALT_HEADER, 'a-scope']));
  await exchange(app, '/v1/chat/completions', { ...BODY, cache_salt: 'own' }, asGateway([SALT_HEADER, 'a-scope']));
  await exchange(app, '/v1/completions', { prompt: 'Hi' }, asGateway());
  expect(requestedSalts()).toEqual(['a-scope/', 'a-scope/own', '']);
});

test('reports its load with every response to the gateway', async () => {
  const load = parseLoad((await exchange(app, LOAD_PATH, undefined, asGateway())).headers[LOAD_HEADER]);
  const { queuedPromptTokens, numFreeBlocks, numCachedBlocks, numBlocks } = engine.stats();
  expect(load).toEqual({ open: 1, queuedPromptTokens, freeBlocks: numFreeBlocks + numCachedBlocks, numBlocks });
  expect(parseLoad((await exchange(app, '/nowhere', undefined, asGateway())).headers[LOAD_HEADER])).toMatchObject({
    open: 1,
  });
});

test.each([
  ['/v1/chat/completions', BODY],
  ['/v1/completions', { prompt: ['Hi', 'Ho'] }],
])('%s reports its usage in a header, or in the last comment of a stream', async (path, body) => {
  const whole = await exchange(app, path, body, asGateway());
  const { usage } = whole.json;
  const usageSent = {
    promptTokens: usage.prompt_tokens,
    completionTokens: usage.completion_tokens,
    cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
  expect(usageSent.promptTokens).toBeGreaterThan(0);
  expect(parseUsage(whole.headers[USAGE_HEADER])).toEqual(usageSent);
  const stream = await exchange(app, path, { ...body, stream: true }, asGateway());
  expect(stream.text.endsWith(`data: [DONE]\n\n${USAGE_COMMENT}${formatUsage(usageSent)}\n\n`)).toBe(true);
  // A usage chunk is sent only if requested.
  expect(stream.events.some((event) => event.usage !== undefined)).toBe(false);
});

test('reads the secret from the environment', () => {
  expect(resolveServeOptions([fromEnvironment({ CAPSTAN_REPLICA_SECRET: SECRET })], {}).replicaSecret).toBe(SECRET);
});

test('parses formatted load and usage, and returns undefined for other text', () => {
  const load = { open: 3, queuedPromptTokens: 120, freeBlocks: 7, numBlocks: 128 };
  expect(parseLoad(formatLoad(load))).toEqual(load);
  for (const text of [
    '',
    'open=1',
    'prompt=1;completion=x;cached=0',
    'prompt=1;completion=-1;cached=0',
    'prompt;completion;cached',
  ])
    expect([parseLoad(text), parseUsage(text)]).toEqual([undefined, undefined]);
});

test('the usage of a request that is open or was cut is kept, however many others end', async () => {
  let numSteps = 0;
  const isOver = () => ++numSteps < 0;
  fake.answer = () => ({ text: 'and on '.repeat(10_000), stepMs: 1, isOver });
  const idOf = (i: number) => String(i).padStart(32, '0');
  const withAllowance = (i: number) =>
    asGateway([ALLOWANCE_HEADER, formatAllowance({ id: idOf(i), total: 10n ** 12n, prompt: 1n, completion: 1n })]);
  const refuseMany = async (from: number) => {
    for (let i = from; i < from + 1_100; i++)
      await exchange(app, '/v1/chat/completions', { messages: 'none' }, withAllowance(i));
  };
  const controller = new AbortController();
  const open = exchange(
    app,
    '/v1/chat/completions',
    { ...BODY, stream: true },
    { ...withAllowance(0), signal: controller.signal },
  );
  while (numSteps < 5) await new Promise(setImmediate);
  await refuseMany(1);
  controller.abort();
  await open;
  await refuseMany(2_000);
  const usageOf = async (i: number) => {
    const { headers } = await exchange(app, ENDED_USAGE_PATH + idOf(i), undefined, asGateway());
    return parseUsage(headers[USAGE_HEADER] ?? '');
  };
  expect((await usageOf(0))!.completionTokens).toBeGreaterThan(0);
  // Each can be taken once, and those of complete responses are dropped first.
  expect([await usageOf(0), await usageOf(1)]).toEqual([undefined, undefined]);
  expect(await usageOf(3_099)).toMatchObject({ completionTokens: 0 });
});

function requestedSalts(): unknown[] {
  return fake.requests.map((request: { cacheSalt?: string }) => request.cacheSalt ?? '');
}
