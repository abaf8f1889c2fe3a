/**
 * The source document's 401 and 403, over both transports and a real key database: whose key opens what, and how it has
 * to be written.
 */
import fs from 'node:fs';
import { connect } from 'node:net';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { Access } from '../../../server/access';
import { generateKey } from '../../../server/base/key-format';
import type { DatabaseLocation } from '../../../server/access/store/location';
import { App } from '../../../server/inference/app';
import { createTransport } from '../../../server/http/create-transport';
import type { HttpReply, Transport } from '../../../server/http/transport';
import { createLog } from '../../../server/base/log';
import { requestLogger } from '../../../server/http/request-log';
import type { RequestRecord } from '../../../server/http/routes';
import { Engine } from '../../../ts';
import { fake } from '../../fakes/fake-addon';
import { tinyModel } from '../../fakes/tiny-model';
import { ACCESS_DIR, ALICE, BOB, makeFolder, REGISTER, removeFolders } from './support';

const createThread = (location: DatabaseLocation) =>
  new Worker(
    `require(${JSON.stringify(REGISTER)}); require(${JSON.stringify(path.join(ACCESS_DIR, 'store', 'store-thread.ts'))});`,
    { eval: true, workerData: location },
  );

const FIXED = 'a-key-of-the-command-line';
const keys: Record<string, string> = { fixed: FIXED, unknown: generateKey().secret };
let access: Access;
let engine: Engine;
const records: RequestRecord[] = [];

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
  access = await Access.open({
    location: { kind: 'file', file: path.join(makeFolder(), 'keys.db') },
    deployment: 'chat',
    apiKeys: [FIXED],
    createThread,
  });
  for (const [name, owner] of [
    ['user', ALICE],
    ['deleted', ALICE],
    ['disabled', ALICE],
    ['stranger', BOB],
  ] as const)
    keys[name] = (await access.createKey({ name, type: 'user-level', owner })).secret;
  keys.expired = (
    await access.createKey({ name: 'expired', type: 'user-level', owner: ALICE, expiresAt: Date.now() + 60_000 })
  ).secret;
  await access.editKey('expired', { expiresAt: Date.now() + 1 }).catch(() => access.setKeyEnabled('expired', false));
  await access.openDeployment(ALICE, 'other');
  keys.bound = (
    await access.createKey({ name: 'bound', type: 'deployment-level', owner: ALICE, deployments: ['chat'] })
  ).secret;
  keys.elsewhere = (
    await access.createKey({ name: 'elsewhere', type: 'deployment-level', owner: ALICE, deployments: ['other'] })
  ).secret;
  keys.limited = (
    await access.createKey({ name: 'limited', type: 'user-level', owner: ALICE, limits: { rpm: 1 } })
  ).secret;
  await access.deleteKey('deleted');
  await access.setKeyEnabled('disabled', false);
});
afterAll(async () => {
  await access.close();
  await engine.close();
  removeFolders();
});

describe.each(['uws', 'node'] as const)('over %s', (name) => {
  let transport: Transport;
  let port: number;

  beforeAll(async () => {
    const app = new App({
      servedNames: ['tiny'],
      healthStallTimeoutMs: 1000,
      sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
      log: createLog('silent'),
      access,
      openPaths: ['/health'],
      onEnd: (record) => records.push(record),
    });
    app.serve(engine);
    transport = await createTransport(name, {
      handler: (request, reply) => app.handle(request, reply),
      maxBodyBytes: 1000,
      bodyTimeoutMs: 60_000,
    });
    port = await transport.listen('127.0.0.1', 0);
  });
  afterAll(() => transport.close());

  /** The answer to what is written, byte for byte. */
  function raw(
    lines: string,
    body = '',
  ): Promise<{ status: number; head: string; code: string | undefined; type: string | undefined }> {
    return new Promise((resolve, reject) => {
      const socket = connect(port, '127.0.0.1');
      let text = '';
      socket.on('error', reject);
      socket.on('data', (bytes) => {
        text += bytes.toString();
        const end = text.indexOf('\r\n\r\n');
        const length = lines.startsWith('HEAD ') ? 0 : Number(/content-length: (\d+)/i.exec(text)?.[1] ?? 0);
        if (end < 0 || Buffer.byteLength(text.slice(end + 4)) < length) return;
        socket.destroy();
        const error = text.slice(end + 4).startsWith('{"error"')
          ? (JSON.parse(text.slice(end + 4)) as { error: { code: string; type: string } }).error
          : undefined;
        resolve({ status: Number(text.slice(9, 12)), head: text.slice(0, end), code: error?.code, type: error?.type });
      });
      socket.write(`${lines}\r\n\r\n${body}`);
    });
  }

  function get(pathname: string, ...headers: string[]): ReturnType<typeof raw> {
    return raw([`GET ${pathname} HTTP/1.1`, 'Host: h', ...headers].join('\r\n'));
  }

  test.each([
    ['user', 200, undefined],
    ['bound', 200, undefined],
    ['fixed', 200, undefined],
    ['elsewhere', 403, 'permission_denied'],
    ['stranger', 403, 'permission_denied'],
    ['unknown', 401, 'invalid_api_key'],
    ['deleted', 401, 'invalid_api_key'],
    ['disabled', 401, 'invalid_api_key'],
    ['expired', 401, 'invalid_api_key'],
  ])('the key "%s" gets %i', async (key, status, code) => {
    const answer = await get('/v1/models', `Authorization: Bearer ${keys[key]}`);
    expect([answer.status, answer.code]).toEqual([status, code]);
    if (status === 401) expect(answer.head).toMatch(/\r\nWWW-Authenticate: Bearer(\r\n|$)/i);
    expect(answer.type).toBe({ 200: undefined, 401: 'authentication_error', 403: 'permission_error' }[status]);
  });

  test.each<[string, (key: string) => string[], number]>([
    ['one space', (key) => [`Authorization: Bearer ${key}`], 200],
    ['blanks around the value, which HTTP strips', (key) => [`Authorization:   Bearer ${key}  `], 200],
    ['a scheme in other letters', (key) => [`authorization: bEARER ${key}`], 200],
    ['no header', () => [], 401],
    ['two spaces', (key) => [`Authorization: Bearer  ${key}`], 401],
    ['a tab', (key) => [`Authorization: Bearer\t${key}`], 401],
    ['no space', (key) => [`Authorization: Bearer${key}`], 401],
    ['another scheme', (key) => [`Authorization: Basic ${key}`], 401],
    ['the key alone', (key) => [`Authorization: ${key}`], 401],
    ['a word after the key', (key) => [`Authorization: Bearer ${key} x`], 401],
    ['the scheme alone', () => ['Authorization: Bearer'], 401],
    ['two headers', (key) => [`Authorization: Bearer ${key}`, `Authorization: Bearer ${key}`], 401],
    ['another header', (key) => [`X-Api-Key: ${key}`], 401],
    ['a changed letter', (key) => [`Authorization: Bearer ${key.slice(0, -1)}${key.endsWith('0') ? '1' : '0'}`], 401],
  ])('%s', async (_name, headers, status) => {
    expect((await get('/v1/models', ...headers(keys.user))).status).toBe(status);
  });

  test.each([
    ['GET', '/health?x'],
    ['GET', '/v1/models'],
    ['GET', '/ping'],
    ['GET', '/version'],
    ['GET', '/metrics'],
    ['GET', '/no/such/path'],
    ['GET', '//health'],
    ['GET', '/health/'],
    ['GET', '/HEALTH'],
    ['GET', '/%68ealth'],
    ['GET', '/v1/models/../../health'],
    ['DELETE', '/v1/models'],
    ['OPTIONS', '/v1/models'],
    ['HEAD', '/v1/models'],
    ['POST', '/v1/chat/completions'],
  ])('%s %s needs a key, whether or not the route exists', async (method, pathname) => {
    const { status, code } = await raw(`${method} ${pathname} HTTP/1.1\r\nHost: h`);
    // A query does not close a public path.
    if (pathname === '/health?x') return expect(status).toBe(200);
    expect(status).toBe(401);
    if (method !== 'HEAD') expect(code).toBe('invalid_api_key');
  });

  test('a CORS preflight needs no key, another OPTIONS request does', async () => {
    const preflight = await raw(
      'OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: POST',
    );
    expect([preflight.status, /access-control-allow-origin: \*/i.test(preflight.head)]).toEqual([204, true]);
    expect((await raw('OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example')).status).toBe(401);
    expect((await get('/v1/models', 'Origin: https://a.example', 'Access-Control-Request-Method: GET')).status).toBe(
      401,
    );
  });

  test('checks the key before size, content type and syntax of the body', async () => {
    const tooLarge = `POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 5000`;
    expect((await raw(tooLarge)).status).toBe(401);
    expect((await raw(`${tooLarge}\r\nAuthorization: Bearer ${keys.elsewhere}`)).status).toBe(403);
    expect(
      (await raw(`${tooLarge.replace('text/plain', 'application/json')}\r\nAuthorization: Bearer ${keys.user}`)).status,
    ).toBe(413);
  });

  test('a denial has CORS headers too', async () => {
    const { head } = await get('/v1/models', 'Origin: https://a.example');
    expect(head).toMatch(/^HTTP\/1\.1 401[^]*access-control-allow-origin: \*/i);
    expect(head).toMatch(/\r\nX-Request-Id: [0-9a-f]{32}/i);
  });

  test('owners do not share the prefix cache; usage is counted for the key and logged', async () => {
    fake.reset();
    records.length = 0;
    const body = JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], max_tokens: 3, cache_salt: 'own' });
    await raw(
      `POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\nAuthorization: Bearer ${keys.user}`,
      body,
    );
    const { keyId, ownerId } = (await access.check({
      headers: [['authorization', `Bearer ${keys.user}`]],
      remoteAddress: '',
    })) as { keyId: string; ownerId: string };
    expect(fake.requests[0].cacheSalt).toBe(`${ownerId}/own`);
    expect(records).toMatchObject([{ method: 'POST', route: '/v1/chat/completions', status: 200, keyId, tokens: 24 }]);
  });
});

test('a limit answers 429 with Retry-After', async () => {
  const app = new App({
    servedNames: [],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 1, slowClientTimeoutMs: 1 },
    log: createLog('silent'),
    access,
  });
  app.serve(engine);
  const answers: { status: number; headers: Parameters<HttpReply['send']>[1]; body: string | Uint8Array | null }[] = [];
  for (let i = 0; i < 2; i++) {
    await app.handle(
      {
        method: 'GET',
        path: '/v1/models',
        query: '',
        headers: [['authorization', `Bearer ${keys.limited}`]],
        remoteAddress: '127.0.0.1',
        signal: new AbortController().signal,
        readBody: () => Promise.reject(new Error('not read')),
      },
      {
        hasStarted: false,
        send: (status, headers, body) => {
          answers.push({ status, headers, body });
        },
        stream: () => {
          throw new Error('no stream');
        },
      },
    );
  }
  expect(answers.map(({ status }) => status)).toEqual([200, 429]);
  expect(Number(answers[1].headers['Retry-After'])).toBeGreaterThan(0);
  expect(answers[1].body as string).toContain('"code":"rate_limit_exceeded"');
});

test('no log line contains a key', () => {
  const written: string[] = [];
  const write = jest.spyOn(fs, 'writeSync').mockImplementation((_fd: number, text: unknown) => {
    written.push(String(text));
    return (text as Buffer).length;
  });
  try {
    const log = createLog('debug', [FIXED]);
    const record = {
      method: 'GET',
      route: undefined,
      status: 404,
      durationMs: 1,
      tokens: 0,
      keyId: undefined,
      isStream: false,
      requestBytes: 0,
      responseBytes: 0,
      hasClientLeft: false,
    };
    const logRequest = requestLogger(log, { logsRequests: true, unloggedPaths: ['/quiet'] });
    logRequest({ ...record, path: `/${keys.user}`, requestId: FIXED });
    logRequest({ ...record, path: '/quiet', requestId: 'r' });
    log.error({ err: new Error(`bad key ${keys.user} or ${FIXED}`) }, keys.user);
  } finally {
    write.mockRestore();
  }
  expect(written).toHaveLength(2);
  for (const line of written) for (const key of [keys.user, FIXED]) expect(line).not.toContain(key);
  expect(JSON.parse(written[0])).toMatchObject({
    method: 'GET',
    path: expect.stringMatching(/^\/sk-cap1_\w{12}_….{4}$/) as string,
    status: 404,
    msg: 'request',
  });
});
