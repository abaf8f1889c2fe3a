/** Access keys in front of the whole application, with the fake engine and a database file. */
import fs from 'node:fs';
import path from 'node:path';
import { Engine } from '../../../ts';
import { Access, type Granted, type KeySpec } from '../../../server/access';
import { generateKey } from '../../../server/base/key-format';
import { App } from '../../../server/inference/app';
import { resolveServeOptions } from '../../../server/cli/flag-sources';
import { createLog } from '../../../server/base/log';
import { requestLogger } from '../../../server/http/request-log';
import { Metrics } from '../../../server/inference/metrics/metrics';
import { openAccess } from '../../../server/inference/serve-access';
import type { ServeOptions } from '../../../server/inference/serve-options';
import { fake } from '../../fakes/fake-addon';
import { exchange, type MemoryReply } from '../../fakes/memory-exchange';
import { tinyModel } from '../../fakes/tiny-model';
import { makeFolder, removeFolders } from './support';

const CHAT = '/v1/chat/completions';
const MESSAGES = [{ role: 'user', content: 'Hi' }];
const OWNER = { type: 'user', name: 'local' } as const;

let engine: Engine;
let access: Access;
let app: App;
let folder: string;
let logged: string;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(async () => {
  fake.reset();
  fake.answer = () => ({ text: 'Hello.' });
  folder = makeFolder();
  logged = '';
  jest.spyOn(fs, 'writeSync').mockImplementation((_fd: number, line: unknown) => {
    logged += String(line);
    return (line as Buffer).length;
  });
  const log = createLog('debug');
  const logRequest = requestLogger(log, { logsRequests: true, unloggedPaths: [] });
  const metrics = new Metrics({ compat: 'vllm' });
  access = await Access.open({ location: { kind: 'file', file: path.join(folder, 'keys.db') }, pollMs: 20, log });
  app = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log,
    routes: [metrics.route],
    access: metrics.counting(access),
    onEnd: (record) => {
      logRequest(record);
      metrics.onEnd(record);
    },
  });
  metrics.watch(app);
  app.serve(metrics.observing(engine, 'tiny'));
});
afterEach(async () => {
  await access.close();
  jest.restoreAllMocks();
});
afterAll(async () => {
  await engine.close();
  removeFolders();
});

async function makeKey(more: Partial<KeySpec> = {}): Promise<string> {
  return (await access.createKey({ name: 'k', type: 'user-level', owner: OWNER, ...more })).secret;
}

function ask(key: string, body: object = { messages: MESSAGES }): Promise<MemoryReply> {
  return exchange(app, CHAT, body, {
    headers: [
      ['content-type', 'application/json'],
      ['authorization', `Bearer ${key}`],
    ],
  });
}

async function whileRunning(key: string, body: object, change: () => Promise<unknown>): Promise<MemoryReply> {
  fake.answer = () => ({ text: 'a'.repeat(1000), stepMs: 20 });
  const running = ask(key, body);
  while (fake.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  await change();
  return running;
}

describe('a key that loses access', () => {
  test('ends its streams with an error event and the terminator, and frees the engine', async () => {
    const key = await makeKey({ type: 'deployment-level', deployments: ['default'] });
    const reply = await whileRunning(key, { messages: MESSAGES, stream: true }, () =>
      access.editKey('k', { deployments: ['other'] }),
    );
    expect([reply.status, reply.state]).toEqual([200, 'ended']);
    expect(reply.events.at(-2)).toEqual({
      error: {
        message: 'The API key lost access while the request was running',
        type: 'permission_error',
        param: null,
        code: 'permission_denied',
      },
    });
    expect(reply.events.at(-1)).toBe('[DONE]');
    expect(fake.aborted).toHaveLength(1);
    expect(logged).not.toContain('"level":50');
  });

  test('gets the denial as the response to a request without a stream', async () => {
    const key = await makeKey();
    const reply = await whileRunning(key, { messages: MESSAGES }, () => access.deleteKey('k'));
    expect([reply.status, reply.json.error.code, reply.headers['WWW-Authenticate']]).toEqual([
      401,
      'invalid_api_key',
      'Bearer',
    ]);
    expect(fake.aborted).toHaveLength(1);
    // A new request gets the usual denial.
    expect((await ask(key)).status).toBe(401);
  });

  test('leaves the requests of other keys alone', async () => {
    const key = await makeKey();
    await makeKey({ name: 'other' });
    fake.answer = () => ({ text: 'a'.repeat(30), stepMs: 2 });
    const running = ask(key, { messages: MESSAGES, stream: true });
    await access.deleteKey('other');
    expect((await running).text).toContain('"finish_reason":"stop"');
  });
});

test("the server's flags configure the check", async () => {
  const options = resolveServeOptions([], {});
  const open = (more: Partial<ServeOptions>) =>
    openAccess({ ...options, apiKeys: ['secret'], ...more }, createLog('silent')) as Promise<Access>;
  await expect(open({ trustedProxies: ['10.0.0.1/8'] })).rejects.toMatchObject({
    code: 'invalid_argument',
    message: expect.stringMatching(/^--trusted-proxy: 10\.0\.0\.1\/8 has bits/) as string,
  });
  const keysDb = path.join(folder, 'other.db');
  const finishing = await open({ keysDb, onRevoke: 'finish', trustedProxies: ['127.0.0.1'] });
  const { secret } = await finishing.createKey({
    name: 'k',
    type: 'user-level',
    owner: OWNER,
    allowedCidrs: ['192.0.2.1'],
  });
  const headers: [string, string][] = [
    ['authorization', `Bearer ${secret}`],
    ['x-forwarded-for', '192.0.2.1'],
  ];
  const granted = (await finishing.check({ headers, remoteAddress: '127.0.0.1' })) as Granted;
  expect(granted).toMatchObject({ ok: true });
  expect(granted.signal).toBeUndefined();
  await finishing.close();
});

test('budgets, limits and networks answer with their documented codes', async () => {
  const spent = await makeKey({ name: 'spent', budget: { tokens: 5, period: 'month' } });
  expect((await ask(spent)).json.usage.total_tokens).toBeGreaterThan(5);
  const exceeded = await ask(spent);
  expect([exceeded.status, exceeded.json.error.type, exceeded.json.error.code]).toEqual([
    429,
    'rate_limit_error',
    'budget_exceeded',
  ]);
  expect(Number(exceeded.headers['Retry-After'])).toBeGreaterThan(0);
  const slow = await makeKey({ name: 'slow', limits: { rpm: 1 } });
  expect((await ask(slow)).status).toBe(200);
  const limited = await ask(slow);
  expect([
    limited.status,
    limited.json.error.code,
    limited.headers['X-RateLimit-Limit-requests'],
    limited.headers['X-RateLimit-Remaining-requests'],
  ]).toEqual([429, 'rate_limit_exceeded', '1', '0']);
  const elsewhere = await ask(await makeKey({ name: 'elsewhere', allowedCidrs: ['192.0.2.0/24'] }));
  expect([elsewhere.status, elsewhere.json.error.type, elsewhere.json.error.code]).toEqual([
    403,
    'permission_error',
    'ip_not_allowed',
  ]);
  const [{ tokens, requests }] = await access.close().then(async () => {
    access = await Access.open({ location: { kind: 'file', file: path.join(folder, 'keys.db') } });
    return access.store.readUsage('spent', 0);
  });
  expect([requests, tokens]).toEqual([1, expect.any(Number) as number]);
  expect(tokens).toBeGreaterThan(5);
});

test('no log, response, metric or file contains a secret, however it was sent', async () => {
  const first = await makeKey({ name: 'k' });
  const { secret: second } = await access.rotateKey('k', 60_000);
  const stranger = generateKey().secret;
  const answers: string[] = [];
  for (const secret of [first, second, stranger]) {
    const headers = (...values: string[]): [string, string][] => [
      ['content-type', 'application/json'],
      ...values.map((value): [string, string] => ['authorization', value]),
    ];
    const ways = [
      headers(`Bearer ${secret}`),
      headers(`bearer ${secret}`),
      headers(`Bearer  ${secret}`),
      headers(`Bearer\t${secret}`),
      headers(secret),
      headers(`Basic ${secret}`),
      headers(`Bearer ${secret}x`),
      headers(`Bearer ${secret.slice(0, -1)}`),
      headers(`Bearer ${secret} ${secret}`),
      headers(`Bearer ${secret}`, `Bearer ${secret}`),
      headers(`Bearer ${secret.toLowerCase()}`),
      headers(`Bearer ${secret}\0`),
      [...headers(), ['x-api-key', secret] as [string, string]],
      [...headers(), ['cookie', `key=${secret}`] as [string, string]],
    ];
    for (const way of ways) answers.push((await exchange(app, CHAT, { messages: MESSAGES }, { headers: way })).text);
    answers.push(
      (await exchange(app, `/v1/models/${secret}`, undefined, { headers: headers(`Bearer ${secret}`) })).headers[
        'X-Request-Id'
      ] ?? '',
    );
    answers.push(
      (await exchange(app, `/${secret}`, undefined, { headers: headers(`Bearer ${secret}`), query: `key=${secret}` }))
        .text,
    );
    // A path long enough that truncation would cut the secret in half.
    await exchange(app, `/${'x'.repeat(160)}${secret}`, undefined, { headers: headers(`Bearer ${secret}`) });
    answers.push((await ask(secret, { messages: 'none' })).text);
    fake.failure = null;
    await access
      .editKey(secret, { name: 'x' })
      .catch((error: Error) => answers.push(`${error.message} ${error.stack}`));
  }
  await whileRunning(second, { messages: MESSAGES, stream: true }, () => access.setKeyEnabled('k', false)).then(
    ({ text }) => answers.push(text),
  );
  await access.setKeyEnabled('k', true);
  const metrics = await exchange(app, '/metrics', undefined, { headers: [['authorization', `Bearer ${second}`]] });
  expect(metrics.status).toBe(200);
  answers.push(
    metrics.text,
    JSON.stringify(await access.store.readAudit({})),
    JSON.stringify(await access.store.readEvents(0)),
  );
  const names = fs.readdirSync(folder);
  expect(names).toEqual(expect.arrayContaining(['keys.db', 'keys.db-wal']));
  const files = names.map((name) => fs.readFileSync(path.join(folder, name), 'latin1'));
  expect(logged.split('\n').length).toBeGreaterThan(40);
  for (const secret of [first, second, stranger]) {
    // The random part, and each half of it.
    for (const part of [secret.slice(21, 37), secret.slice(37, 53)]) {
      expect(answers.filter((text) => text.includes(part))).toEqual([]);
      expect(files.some((text) => text.includes(part))).toBe(false);
      expect(logged.split('\n').filter((line) => line.includes(part))).toEqual([]);
    }
  }
});
