/** The walk of a request in memory: what every answer carries, whatever its route. */
import { RevokedError } from '../../server/access/grants';
import { App, type AppOptions } from '../../server/app';
import { Cors, type CorsOptions, OPEN_CORS } from '../../server/cors';
import { LoadProgress } from '../../server/load-progress';
import type { RequestRecord } from '../../server/routes';
import { packageVersion } from '../../server/version';
import { Engine } from '../../ts';
import { fake } from '../fakes/fake-addon';
import { exchange } from '../fakes/memory-exchange';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;
const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
const MESSAGES = { messages: [{ role: 'user', content: 'Hi' }] };

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => {
  fake.reset();
  jest.clearAllMocks();
});
afterAll(() => engine.close());

function makeApp(options: Partial<AppOptions> = {}, isLoaded = true): App {
  const app = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    ...options,
  });
  if (isLoaded) app.serve(engine);
  return app;
}

const withHeaders = (...headers: [string, string][]) => ({ headers });

describe('the id of a request', () => {
  test("is the client's own if it is fit for a header, else a random one; on errors too", async () => {
    const app = makeApp();
    for (const path of ['/v1/models', '/health', '/no/such/path']) {
      expect(
        (await exchange(app, path, undefined, withHeaders(['x-request-id', 'abc-1']))).headers['X-Request-Id'],
      ).toBe('abc-1');
      for (const id of ['a b', 'ü', 'x'.repeat(129), ''])
        expect(
          (await exchange(app, path, undefined, withHeaders(['x-request-id', id]))).headers['X-Request-Id'],
        ).toMatch(/^[0-9a-f]{32}$/);
    }
  });

  test('that the body asks for is answered and logged', async () => {
    const records: RequestRecord[] = [];
    const reply = await exchange(makeApp({ onEnd: (record) => records.push(record) }), '/v1/chat/completions', {
      ...MESSAGES,
      request_id: 'own',
    });
    expect([reply.headers['X-Request-Id'], reply.json.id, records[0].requestId]).toEqual([
      'own',
      'chatcmpl-own',
      'own',
    ]);
  });
});

describe('other origins', () => {
  const cors = (options: Partial<CorsOptions> = {}): App => makeApp({ cors: new Cors({ ...OPEN_CORS, ...options }) });
  const A = 'https://a.example';
  const corsHeaders = (headers: Readonly<Record<string, string>>): Record<string, string> =>
    Object.fromEntries(Object.entries(headers).filter(([name]) => /^(Access-Control|Vary)/.test(name)));
  const preflight = (app: App, ...headers: [string, string][]) =>
    exchange(app, '/v1/chat/completions', undefined, {
      method: 'OPTIONS',
      headers: [['origin', A], ['access-control-request-method', 'POST'], ...headers],
    });

  test('may call by default; answers and errors say so, and only to them', async () => {
    for (const path of ['/v1/models', '/no/such/path']) {
      expect(corsHeaders((await exchange(cors(), path, undefined, withHeaders(['origin', A]))).headers)).toEqual({
        'Access-Control-Allow-Origin': '*',
        'Access-Control-Expose-Headers': 'X-Request-Id, Retry-After',
      });
      expect(corsHeaders((await exchange(cors(), path)).headers)).toEqual({});
    }
  });

  test('a stream says so too', async () => {
    const reply = await exchange(
      cors(),
      '/v1/chat/completions',
      { ...MESSAGES, stream: true },
      {
        headers: [
          ['origin', A],
          ['content-type', 'application/json'],
        ],
      },
    );
    expect([reply.headers['Access-Control-Allow-Origin'], reply.events.at(-1)]).toEqual(['*', '[DONE]']);
  });

  test('a list lets in those that it names, exactly', async () => {
    const app = cors({ origins: [A] });
    const answer = (origin: string) => exchange(app, '/v1/models', undefined, withHeaders(['origin', origin]));
    expect(corsHeaders((await answer(A)).headers)).toMatchObject({ 'Access-Control-Allow-Origin': A, Vary: 'Origin' });
    for (const other of ['https://b.example', 'https://a.example.evil', 'http://a.example', 'null'])
      expect(corsHeaders((await answer(other)).headers)).toEqual({ Vary: 'Origin' });
    // A cache must not give the answer to one origin to another.
    expect(corsHeaders((await exchange(app, '/v1/models')).headers)).toEqual({ Vary: 'Origin' });
  });

  test('with credentials the origin is named', async () => {
    expect(corsHeaders((await preflight(cors({ credentials: true }))).headers)).toMatchObject({
      'Access-Control-Allow-Origin': A,
      'Access-Control-Allow-Credentials': 'true',
      Vary: 'Origin',
    });
  });

  test.each<[string, Partial<CorsOptions>, Record<string, string>]>([
    [
      'everything',
      {},
      {
        'Access-Control-Allow-Origin': '*',
        'Access-Control-Allow-Methods': 'GET, HEAD, POST, OPTIONS',
        'Access-Control-Allow-Headers': 'authorization, x-a',
        'Access-Control-Max-Age': '600',
      },
    ],
    [
      'lists',
      { origins: [A], methods: ['POST'], headers: ['Authorization'] },
      {
        'Access-Control-Allow-Origin': A,
        Vary: 'Origin',
        'Access-Control-Allow-Methods': 'POST',
        'Access-Control-Allow-Headers': 'Authorization',
        'Access-Control-Max-Age': '600',
      },
    ],
    [
      'an origin that is not allowed',
      { origins: ['https://b.example'] },
      {
        Vary: 'Origin',
        'Access-Control-Allow-Methods': 'GET, HEAD, POST, OPTIONS',
        'Access-Control-Allow-Headers': 'authorization, x-a',
        'Access-Control-Max-Age': '600',
      },
    ],
  ])('a preflight is answered by what is allowed: %s', async (_name, options, headers) => {
    const reply = await preflight(cors(options), ['access-control-request-headers', 'authorization, x-a']);
    expect([reply.status, reply.text]).toEqual([204, '']);
    expect(corsHeaders(reply.headers)).toEqual(headers);
  });

  test('an OPTIONS that is no preflight is a method like another', async () => {
    expect(
      (await exchange(cors(), '/v1/models', undefined, { method: 'OPTIONS', headers: [['origin', A]] })).status,
    ).toBe(405);
  });
});

describe('routes of the server itself', () => {
  test('/health, /ping and /version', async () => {
    const app = makeApp();
    for (const [path, method] of [
      ['/health', 'GET'],
      ['/ping', 'GET'],
      ['/ping', 'POST'],
      ['/health', 'HEAD'],
    ])
      expect(await exchange(app, path, undefined, { method })).toMatchObject({ status: 200, text: '' });
    expect((await exchange(app, '/version')).json).toEqual({ version: packageVersion() });
  });

  test('an engine that has work and makes no step is not healthy', async () => {
    const stalled = Object.create(engine, {
      info: { value: engine.info },
      stats: { value: () => ({ failure: null, numRunning: 1, numWaiting: 0, msSinceLastStep: 5000 }) },
    }) as Engine;
    const app = makeApp({}, false);
    app.serve(stalled);
    for (const path of ['/health', '/ping']) {
      const reply = await exchange(app, path);
      expect([reply.status, reply.json.error]).toEqual([
        503,
        {
          message: 'The engine has work and made no step for 5 s',
          type: 'server_error',
          param: null,
          code: 'engine_dead',
        },
      ]);
    }
  });

  test('while the model loads, only what needs none answers', async () => {
    const app = makeApp({}, false);
    for (const path of ['/health', '/v1/models'])
      expect(await exchange(app, path)).toMatchObject({
        status: 503,
        headers: { 'Retry-After': '2' },
        json: { error: { code: 'model_loading' } },
      });
    expect((await exchange(app, '/version')).status).toBe(200);
    expect((await exchange(app, '/no/such/path')).status).toBe(404);
  });

  test('the admin listener has the operational ones alone, and asks for no key', async () => {
    const metrics = {
      method: 'GET',
      path: '/metrics',
      isOperational: true,
      handle: (_context: unknown, _request: unknown, reply: { send: (...args: [number, object, string]) => void }) =>
        reply.send(200, {}, 'm 1'),
    } as const;
    const denied = { ok: false, status: 401, code: 'invalid_api_key', message: 'no', headers: {} } as const;
    const app = makeApp({ routes: [metrics as never], access: { check: () => denied } });
    const admin = { handle: app.handleAdmin.bind(app) };
    for (const path of ['/health', '/ping', '/metrics']) {
      expect((await exchange(admin, path)).status).toBe(200);
      expect((await exchange(app, path)).status).toBe(401);
    }
    for (const path of ['/v1/models', '/version', '/v1/chat/completions'])
      expect((await exchange(admin, path)).status).toBe(404);
  });
});

test('the root path may be stripped by the proxy or not', async () => {
  const app = makeApp({ rootPath: '/llm' });
  for (const path of ['/v1/models', '/llm/v1/models', '/llm/v1/models/tiny'])
    expect((await exchange(app, path)).status).toBe(200);
  for (const path of ['/llmv1/models', '/llm', '/llm/llm/v1/models'])
    expect((await exchange(app, path)).status).toBe(404);
});

test('a request that a client leaves is recorded as that', async () => {
  const records: RequestRecord[] = [];
  const controller = new AbortController();
  fake.answer = () => {
    setTimeout(() => controller.abort(), 30);
    return { text: 'and on '.repeat(1000), stepMs: 5 };
  };
  await exchange(makeApp({ onEnd: (record) => records.push(record) }), '/v1/chat/completions', MESSAGES, {
    signal: controller.signal,
  });
  expect(records).toMatchObject([{ status: 499, hasClientLeft: true, route: '/v1/chat/completions' }]);
});

test('a key that is revoked ends its stream with an error event and the terminator', async () => {
  const denial = { ok: false, status: 401, code: 'invalid_api_key', message: 'gone', headers: {} } as const;
  const controller = new AbortController();
  fake.answer = () => {
    setTimeout(() => controller.abort(new RevokedError(denial)), 60);
    return { text: 'and on '.repeat(1000), stepMs: 5 };
  };
  const app = makeApp({
    access: {
      check: () => ({ ok: true, keyId: 'key_1', ownerId: 'own_1', signal: controller.signal, done: () => {} }),
    },
  });
  const reply = await exchange(app, '/v1/chat/completions', { ...MESSAGES, stream: true });
  expect(reply.status).toBe(200);
  expect(reply.events.slice(-2)).toEqual([
    { error: expect.objectContaining({ code: 'invalid_api_key', type: 'authentication_error' }) as unknown },
    '[DONE]',
  ]);
  expect(reply.state).toBe('ended');
});

describe('the progress of a load', () => {
  const done = (percent: number) => ({ doneBytes: percent, totalBytes: 100 });

  test('is percent in place on a terminal', () => {
    let text = '';
    const progress = new LoadProgress(log as never, {
      isTty: true,
      write: (piece) => {
        text += piece;
      },
      now: () => 0,
    });
    for (const percent of [0, 0, 42.5, 100]) progress.update(done(percent));
    progress.end();
    expect(text).toBe(
      '\r\x1b[KLoading the model: 0 %\r\x1b[KLoading the model: 42 %\r\x1b[KLoading the model: 100 %\r\x1b[K',
    );
    expect(log.info).not.toHaveBeenCalled();
  });

  test('is a line each ten seconds elsewhere, and nothing for a quick one', () => {
    let nowMs = 0;
    const progress = new LoadProgress(log as never, {
      isTty: false,
      write: () => {
        throw new Error('no terminal');
      },
      now: () => nowMs,
    });
    for (nowMs = 0; nowMs <= 25_000; nowMs += 1000) progress.update(done(nowMs / 1000));
    progress.end();
    expect(log.info.mock.calls.map(([fields]: [{ percent: number }]) => fields.percent)).toEqual([10, 20]);
  });
});
