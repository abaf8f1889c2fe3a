/** Requests to the app in memory: behaviour that all routes share. */
import { RevokedError } from '../../../server/access/check/grants';
import { App, type AppOptions } from '../../../server/inference/app';
import { Cors, type CorsOptions, OPEN_CORS } from '../../../server/http/cors';
import type { RequestRecord } from '../../../server/http/routes';
import { packageVersion } from '../../../server/base/version';
import { Engine } from '../../../ts';
import { fake } from '../../fakes/fake-addon';
import { exchange } from '../../fakes/memory-exchange';
import { tinyModel } from '../../fakes/tiny-model';

let engine: Engine;
const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
const MESSAGES = { messages: [{ role: 'user', content: 'Hi' }] };

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
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
  test('is the X-Request-Id of the client if it is valid, else a random one, also for errors', async () => {
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

  test('in the body is returned and logged', async () => {
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

describe('CORS', () => {
  const cors = (options: Partial<CorsOptions> = {}): App => makeApp({ cors: new Cors({ ...OPEN_CORS, ...options }) });
  const A = 'https://a.example';
  const corsHeaders = (headers: Readonly<Record<string, string>>): Record<string, string> =>
    Object.fromEntries(Object.entries(headers).filter(([name]) => /^(Access-Control|Vary)/.test(name)));
  const preflight = (app: App, ...headers: [string, string][]) =>
    exchange(app, '/v1/chat/completions', undefined, {
      method: 'OPTIONS',
      headers: [['origin', A], ['access-control-request-method', 'POST'], ...headers],
    });

  test('allows all origins by default, for responses and errors', async () => {
    for (const path of ['/v1/models', '/no/such/path']) {
      expect(corsHeaders((await exchange(cors(), path, undefined, withHeaders(['origin', A]))).headers)).toEqual({
        'Access-Control-Allow-Origin': '*',
        'Access-Control-Expose-Headers': 'X-Request-Id, X-Should-Retry, Retry-After',
      });
      expect(corsHeaders((await exchange(cors(), path)).headers)).toEqual({});
    }
  });

  test('applies to streams', async () => {
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

  test('a list allows exactly its origins', async () => {
    const app = cors({ origins: [A] });
    const answer = (origin: string) => exchange(app, '/v1/models', undefined, withHeaders(['origin', origin]));
    expect(corsHeaders((await answer(A)).headers)).toMatchObject({ 'Access-Control-Allow-Origin': A, Vary: 'Origin' });
    for (const other of ['https://b.example', 'https://a.example.evil', 'http://a.example', 'null'])
      expect(corsHeaders((await answer(other)).headers)).toEqual({ Vary: 'Origin' });
    // Vary keeps caches from serving the response to another origin.
    expect(corsHeaders((await exchange(app, '/v1/models')).headers)).toEqual({ Vary: 'Origin' });
  });

  test('names the origin if credentials are allowed', async () => {
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
        'Access-Control-Allow-Methods': 'GET, HEAD, POST, DELETE, OPTIONS',
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
        'Access-Control-Allow-Methods': 'GET, HEAD, POST, DELETE, OPTIONS',
        'Access-Control-Allow-Headers': 'authorization, x-a',
        'Access-Control-Max-Age': '600',
      },
    ],
  ])('answers a preflight with the allowed methods and headers: %s', async (_name, options, headers) => {
    const reply = await preflight(cors(options), ['access-control-request-headers', 'authorization, x-a']);
    expect([reply.status, reply.text]).toEqual([204, '']);
    expect(corsHeaders(reply.headers)).toEqual(headers);
  });

  test('treats OPTIONS without preflight headers as an ordinary method', async () => {
    expect(
      (await exchange(cors(), '/v1/models', undefined, { method: 'OPTIONS', headers: [['origin', A]] })).status,
    ).toBe(405);
  });
});

describe('operational routes', () => {
  test('/health, /ping and /version respond', async () => {
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

  test('/health reports engine_dead if the engine has work but makes no steps', async () => {
    const stalled = Object.create(engine, {
      info: { value: engine.info },
      adapters: { value: engine.adapters },
      stats: { value: () => ({ failure: null, numRunning: 1, numWaiting: 0, msSinceLastStep: 5000 }) },
    }) as Engine;
    const app = makeApp({}, false);
    app.serve(stalled);
    for (const path of ['/health', '/ping']) {
      const reply = await exchange(app, path);
      expect([reply.status, reply.json.error]).toEqual([
        503,
        {
          message: 'The engine has work but has made no step for 5 s',
          type: 'server_error',
          param: null,
          code: 'engine_dead',
        },
      ]);
    }
  });

  test('only routes without a model work while it is loading', async () => {
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

  test('the admin listener serves only operational routes and needs no key', async () => {
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

test('accepts paths with and without the root path', async () => {
  const app = makeApp({ rootPath: '/llm' });
  for (const path of ['/v1/models', '/llm/v1/models', '/llm/v1/models/tiny'])
    expect((await exchange(app, path)).status).toBe(200);
  for (const path of ['/llmv1/models', '/llm', '/llm/llm/v1/models'])
    expect((await exchange(app, path)).status).toBe(404);
});

/** Makes the fake answer at length, and calls `onStep` once, at that step. */
function answerUntilStep(step: number, onStep: () => void): void {
  let numSteps = 0;
  const isOver = (): boolean => {
    if (++numSteps === step) onStep();
    return false;
  };
  fake.answer = () => ({ text: 'and on '.repeat(1000), stepMs: 5, isOver });
}

test('records a request whose client disconnected', async () => {
  const records: RequestRecord[] = [];
  const controller = new AbortController();
  answerUntilStep(5, () => controller.abort());
  await exchange(makeApp({ onEnd: (record) => records.push(record) }), '/v1/chat/completions', MESSAGES, {
    signal: controller.signal,
  });
  expect(records).toMatchObject([{ status: 499, hasClientLeft: true, route: '/v1/chat/completions' }]);
});

test('revoking a key ends its stream with an error event and the terminator', async () => {
  const denial = { ok: false, status: 401, code: 'invalid_api_key', message: 'gone', headers: {} } as const;
  const controller = new AbortController();
  answerUntilStep(5, () => controller.abort(new RevokedError(denial)));
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
