/** Several models in one server, with the fake engine: names, waiting requests, admin routes, health and metrics. */
import { cpSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { App } from '../../../../server/inference/app';
import { openApp } from '../../../../server/inference/open-app';
import type { ModelOptions } from '../../../../server/inference/models/model-options';
import { loadFirst, type OpenedModels, openModels } from '../../../../server/inference/models/open-models';
import { SECRET_HEADER } from '../../../../server/http/replica-headers';
import { defaultServeOptions, type ServeOptions } from '../../../../server/inference/serve-options';
import { CapstanError, Engine, type EngineOptions } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { exchange, MemoryReply } from '../../../fakes/memory-exchange';
import { temporaryFolder } from '../../../fakes/temporary-folder';
import { tinyModel } from '../../../fakes/tiny-model';

const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
const LORA = join(__dirname, '../../../oracle/fixtures/lora/llama-all');
const LLAMA = join(__dirname, '../../../oracle/fixtures/llama3-f32');
const CHAT = '/v1/chat/completions';
const ask = (model: string | undefined, more: object = {}) => ({
  messages: [{ role: 'user', content: 'Hi' }],
  ...(model === undefined ? {} : { model }),
  ...more,
});

interface Server {
  app: App;
  admin: Pick<App, 'handle'>;
  opened: OpenedModels;
}

const closers: (() => Promise<unknown>)[] = [];
/** Gates that hold the loads of the models with these paths. */
const gates = new Map<string, Promise<unknown>>();
let loads: string[] = [];
let folder: string;
let tiny: string;

beforeAll(() => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  tiny = tinyModel();
  folder = temporaryFolder('lora-dir');
  mkdirSync(folder, { recursive: true });
  const load = Engine.load.bind(Engine);
  jest.spyOn(Engine, 'load').mockImplementation(async (model: string, options?: EngineOptions) => {
    loads.push(model);
    await gates.get(model);
    return load(model, options);
  });
});
beforeEach(() => {
  fake.reset();
  gates.clear();
  loads = [];
});
afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close();
});
afterAll(() => jest.restoreAllMocks());

const model = (name: string, more: Partial<ModelOptions> = {}): ModelOptions => ({
  model: tiny,
  name,
  aliases: [],
  engine: {},
  settings: defaultServeOptions({}).settings,
  isPreloaded: false,
  isPinned: false,
  ...more,
});

async function serve(models: ModelOptions[], options: Partial<ServeOptions> = {}): Promise<Server> {
  const all: ServeOptions = { ...defaultServeOptions({}), models, logsRequests: false, ...options };
  const app = await openApp(all, log as never);
  closers.push(() => app.close());
  const signal = new AbortController().signal;
  const opened = await openModels(all, { signal, log: log as never, observe: app.observe });
  closers.push(() => opened.models.pool.close());
  app.serveModels(opened);
  await loadFirst(opened, models, signal);
  return { app: app.app, admin: { handle: app.app.handleAdmin.bind(app.app) }, opened };
}

const eventually = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((resolve) => setTimeout(resolve, 1));
};
const errorOf = ({ status, json }: MemoryReply) => [status, json.error.code, json.error.param];
const statesOf = (opened: OpenedModels) => opened.models.entries.map(({ slot }) => slot.state);
/** Holds the loads of the tiny model. Returns the function that lets them go on. */
function hold(): (error?: Error) => void {
  let settle: (error?: Error) => void = () => {};
  gates.set(
    tiny,
    new Promise<void>((resolve, reject) => {
      settle = (error) => (error === undefined ? resolve() : reject(error));
    }),
  );
  gates.get(tiny)!.catch(() => {});
  return (error) => settle(error);
}

describe('the name of a request', () => {
  const several = () =>
    serve(
      [
        model('a', { aliases: ['first'] }),
        model('b'),
        model('c', { model: LLAMA, engine: { loraModules: { sql: LORA }, chatTemplate: 'x' } }),
      ],
      {
        aliases: [
          { name: 'fast', target: 'b' },
          { name: 'llama', target: LLAMA },
        ],
      },
    );

  test('chooses the model, by its names, aliases and adapters', async () => {
    const { app, opened } = await several();
    for (const [name, owner] of [
      ['a', 'a'],
      ['first', 'a'],
      ['b', 'b'],
      ['fast', 'b'],
      ['c', 'c'],
      ['llama', 'c'],
      ['sql', 'c'],
    ]) {
      const reply = await exchange(app, CHAT, ask(name, { max_tokens: 2 }));
      expect([reply.status, reply.json.model]).toEqual([200, name]);
      const used = opened.models.entries.toSorted((x, y) => y.slot.lastUsedMs - x.slot.lastUsedMs)[0];
      expect(used.served.names[0]).toBe(owner);
    }
    expect(loads).toEqual([tiny, tiny, LLAMA]);
    expect(fake.requests.map(({ adapterId }) => adapterId)).toEqual([0, 0, 0, 0, 0, 0, 1]);
  });

  test('is checked before anything is loaded', async () => {
    const { app } = await several();
    const unknown = await exchange(app, CHAT, ask('other'));
    expect(errorOf(unknown)).toEqual([404, 'model_not_found', 'model']);
    expect(unknown.json.error.message).toBe(
      'model: expected one of "a", "first", "b" and 4 more of GET /v1/models, got "other"',
    );
    const missing = await exchange(app, CHAT, ask(undefined));
    expect(errorOf(missing)).toEqual([400, 'missing_required_parameter', 'model']);
    expect(missing.json.error.message).toBe('model: expected one of "a", "b", "c", but it is missing');
    expect(errorOf(await exchange(app, CHAT, { ...ask('a'), model: 5 }))).toEqual([400, 'invalid_type', 'model']);
    expect(errorOf(await exchange(app, CHAT, '{"model": "a'))).toEqual([400, 'invalid_json', null]);
    const embedding = await exchange(app, '/v1/embeddings', { model: 'a', input: 'x' });
    expect(errorOf(embedding)).toEqual([400, 'unsupported_task', 'model']);
    expect(loads).toEqual([]);
  });

  test('belongs to one model: a clash is refused at the start', async () => {
    const message = async (models: ModelOptions[], aliases: ServeOptions['aliases'] = []) =>
      serve(models, { aliases }).then(
        () => 'ok',
        (error: Error) => error.message,
      );
    expect(await message([model('a'), model('a')])).toBe(
      'models: expected each name, alias and adapter once, got "a, a name of a and of a"',
    );
    expect(await message([model('a', { aliases: ['b'] }), model('b')])).toContain('a name of a and of b');
    const adapted = model('b', { engine: { loraModules: { a: LORA } } });
    expect(await message([model('a'), adapted])).toContain('a name of a and of b');
    expect(await message([model('a'), model('b')], [{ name: 'x', target: 'c' }])).toBe(
      "--alias: expected one of 'a', 'b' after 'x=', got 'c'",
    );
    expect(await message([model('a'), model('b')], [{ name: 'x', target: undefined }])).toBe(
      "--alias: expected NAME=MODEL with several models, got 'x'",
    );
  });
});

describe('a request for a model that is not loaded', () => {
  test('waits, and two of them load it once', async () => {
    const { app, opened } = await serve([model('a'), model('b')]);
    const release = hold();
    const both = [exchange(app, CHAT, ask('a')), exchange(app, CHAT, ask('a'))];
    await eventually(() => loads.length === 1 && opened.models.entries[0].slot.waiters.size === 2);
    release();
    expect((await Promise.all(both)).map(({ status }) => status)).toEqual([200, 200]);
    expect([loads.length, statesOf(opened)]).toEqual([1, ['loaded', 'unloaded']]);
  });

  test('gets comments while it waits, if it is a stream', async () => {
    const { app } = await serve([model('a'), model('b')], { ssePingIntervalMs: 1 });
    const release = hold();
    const reply = new MemoryReply();
    const body = Buffer.from(JSON.stringify(ask('a', { stream: true })));
    const done = app.handle(requestOf(body), reply);
    await eventually(() => reply.text.startsWith(':\n\n:\n\n'));
    expect([reply.status, reply.headers['Content-Type'], reply.events]).toEqual([
      200,
      'text/event-stream; charset=utf-8',
      [],
    ]);
    release();
    await done;
    expect([reply.events.at(-1), reply.state]).toEqual(['[DONE]', 'ended']);
    expect(reply.events[0].choices[0].delta.role).toBe('assistant');
  });

  test('gets an error that can be tried again, as an event after the first comment', async () => {
    const { app, admin, opened } = await serve([model('a'), model('b')], { ssePingIntervalMs: 1 });
    const fail = hold();
    const stream = new MemoryReply();
    const streamed = app.handle(requestOf(Buffer.from(JSON.stringify(ask('a', { stream: true })))), stream);
    const plain = exchange(app, CHAT, ask('a'));
    await eventually(() => stream.text.includes(':\n\n') && opened.models.entries[0].slot.waiters.size === 2);
    fail(new CapstanError('out_of_memory', 'no memory for /secret/path'));
    await streamed;
    const error = {
      message: 'The model "a" could not be loaded (out_of_memory). The log of the server says why.',
      type: 'server_error',
      param: null,
      code: 'model_load_failed',
    };
    expect([stream.status, stream.events, stream.state]).toEqual([200, [{ error }, '[DONE]'], 'ended']);
    expect(await plain).toMatchObject({ status: 503, json: { error }, headers: { 'Retry-After': '5' } });
    expect(log.error).toHaveBeenCalledWith(
      { model: 'a', reason: 'no memory for /secret/path' },
      'a model cannot be loaded',
    );
    const status = (await exchange(app, '/v1/models/a')).json.status;
    expect(status).toEqual({ value: 'unloaded', failed: true });
    gates.clear();
    const soon = await exchange(app, CHAT, ask('a'));
    expect(errorOf(soon)).toEqual([503, 'model_load_failed', null]);
    expect(Number(soon.headers['Retry-After'])).toBeGreaterThan(0);
    expect(loads.length).toBe(1);
    expect((await exchange(admin, '/models/load', { model: 'a' })).status).toBe(200);
    expect((await exchange(app, CHAT, ask('a'))).status).toBe(200);
    expect((await exchange(app, '/v1/models/a')).json.status).toEqual({ value: 'loaded' });
  });

  test('gets the error of its interface', async () => {
    const { app } = await serve([model('a'), model('b'), model('c')], { ssePingIntervalMs: 1 });
    for (const [path, body] of [
      ['/v1/messages', ask('a', { stream: true, max_tokens: 4 })],
      ['/v1/responses', { model: 'c', input: 'Hi', stream: true }],
    ] as const) {
      const fail = hold();
      const reply = new MemoryReply();
      const done = app.handle({ ...requestOf(Buffer.from(JSON.stringify(body))), path }, reply);
      await eventually(() => reply.text !== '');
      fail(new CapstanError('out_of_memory', 'no memory'));
      await done;
      expect(reply.text).toMatch(/^(:\n\n)+event: error\ndata: \{"type":"error".*\n\n$/);
      gates.clear();
    }
    const messages = await exchange(app, '/v1/messages', ask('b', { max_tokens: 4 }));
    expect([messages.status, messages.json.model]).toEqual([200, 'b']);
    expect((await exchange(app, '/v1/responses/resp_x')).status).toBe(404);
  });

  test('ends with its client and at the time limit', async () => {
    const { app, opened } = await serve([model('a'), model('b')], {
      modelLimits: { ...defaultServeOptions({}).modelLimits, waitTimeoutMs: 1 },
    });
    const release = hold();
    const late = await exchange(app, CHAT, ask('a'));
    expect([late.status, late.json.error.code, late.headers['Retry-After']]).toEqual([503, 'model_loading', '2']);
    expect(late.json.error.message).toBe('The model "a" was not loaded within 0.001 s (--model-wait-timeout)');
    const client = new AbortController();
    const left = exchange(app, CHAT, ask('b'), { signal: client.signal });
    client.abort();
    expect((await left).hasStarted).toBe(false);
    expect(opened.models.entries[1].slot.waiters.size).toBe(0);
    release();
  });

  test('keeps at most 256 MiB of bodies in memory with the others', async () => {
    const { app, opened } = await serve([model('a'), model('b')]);
    const release = hold();
    const body = Buffer.alloc(130 * 2 ** 20, 'a');
    body.write('{"model":"a","user":"');
    body.write('"}', body.length - 2);
    const client = new AbortController();
    const first = app.handle({ ...requestOf(body), signal: client.signal }, new MemoryReply());
    await eventually(() => opened.models.entries[0].slot.waiters.size === 1);
    const second = new MemoryReply();
    void app.handle(requestOf(body), second);
    await eventually(() => second.status !== 0 || opened.models.entries[0].slot.waiters.size === 2);
    client.abort();
    await first;
    release();
    expect(errorOf(second)).toEqual([429, 'queue_full', null]);
    expect(second.json.error.message).toContain('of request bodies wait for models to load');
  });

  test('may be larger than what is parsed at once', async () => {
    const { app } = await serve([model('a'), model('b')]);
    const content = '"\\{[ model '.repeat(200_000);
    const body = { messages: [{ role: 'user', content, model: 'b' }], model: 'a', max_tokens: 2 };
    const reply = await exchange(app, CHAT, body);
    expect(errorOf(reply)).toEqual([400, 'context_length_exceeded', 'messages']);
    expect(loads.length).toBe(1);
  });
});

test('a model gives its memory to another one when its requests have ended', async () => {
  const kvCacheBytes = 2 ** 20;
  const { app, opened } = await serve(
    [model('a', { engine: { kvCacheBytes } }), model('b', { engine: { kvCacheBytes } })],
    {
      modelLimits: { ...defaultServeOptions({}).modelLimits, memoryBytes: 1.5 * kvCacheBytes },
    },
  );
  let isOver = false;
  fake.answer = () => ({ text: 'and on '.repeat(1000), stepMs: 1, isOver: () => isOver });
  const first = exchange(app, CHAT, ask('a'));
  await eventually(() => fake.requests.length === 1);
  const second = exchange(app, CHAT, ask('b'));
  await eventually(() => opened.models.entries[0].slot.isLeaving);
  expect(statesOf(opened)).toEqual(['loaded', 'unloaded']);
  isOver = true;
  expect([(await first).status, (await second).status]).toEqual([200, 200]);
  expect(statesOf(opened)).toEqual(['unloaded', 'loaded']);
  expect(opened.models.entries[0].slot.counts.unloads.memory).toBe(1);
});

test('a model that does not fit alone, and pinned models that do not fit together, are refused at the start', async () => {
  const limits = { ...defaultServeOptions({}).modelLimits, memoryBytes: 1000 };
  await expect(serve([model('a'), model('b')], { modelLimits: limits })).rejects.toThrow(
    /^The model "a" needs about .* for its weights and .* for its KV cache, and --models-memory allows 1.0 kB/,
  );
  const kvCacheBytes = 2 ** 20;
  const pinned = ['a', 'b'].map((name) => model(name, { isPinned: true, engine: { kvCacheBytes } }));
  await expect(serve(pinned, { modelLimits: { ...limits, memoryBytes: 1.5 * kvCacheBytes } })).rejects.toThrow(
    'The pinned models need about 2.1 MB together, and --models-memory allows 1.6 MB',
  );
  expect(loads).toEqual([]);
});

test('preloaded and pinned models are loaded at the start, and /health waits for the pinned ones', async () => {
  const release = hold();
  const all: ServeOptions = {
    ...defaultServeOptions({}),
    models: [model('a'), model('b', { isPinned: true }), model('c', { isPreloaded: true })],
  };
  const app = await openApp(all, log as never);
  closers.push(() => app.close());
  const { signal } = new AbortController();
  const opened = await openModels(all, { signal, log: log as never, observe: app.observe });
  closers.push(() => opened.models.pool.close());
  app.serveModels(opened);
  const started = loadFirst(opened, all.models, signal);
  const health = async () => {
    const reply = await exchange(app.app, '/health');
    return reply.status === 200 ? 200 : reply.json.error.message;
  };
  expect(await health()).toBe('The model "b" is still loading');
  release();
  await started;
  expect([await health(), statesOf(opened)]).toEqual([200, ['unloaded', 'loaded', 'loaded']]);
  fake.failure = 'broken';
  expect(await health()).toBe('The engine of "b" has stopped');
});

test('a model that unloads is no fault of the server', async () => {
  const replicaSecret = 'a'.repeat(64);
  const { app, admin, opened } = await serve([model('a', { isPreloaded: true }), model('b')], { replicaSecret });
  let end = (): void => {};
  const gate = new Promise<void>((resolve) => (end = resolve));
  const engine = opened.models.entries[0].slot.engine!;
  const close = engine.close.bind(engine);
  engine.close = async () => void (await Promise.all([close(), gate]));
  const asleep = exchange(admin, '/sleep', '', { query: 'model=a' });
  await eventually(() => statesOf(opened)[0] === 'unloading');
  const replies = [
    await exchange(app, '/health'),
    await exchange(app, '/v1/models', undefined, { headers: [[SECRET_HEADER.toLowerCase(), replicaSecret]] }),
  ];
  end();
  expect(replies.map(({ status, text }) => [status, status === 200 ? '' : text])).toEqual([
    [200, ''],
    [200, ''],
  ]);
  expect((await asleep).status).toBe(200);
});

describe('the admin listener', () => {
  test('loads and unloads models as llama.cpp does', async () => {
    const { app, admin, opened } = await serve([model('a'), model('b', { isPinned: true })]);
    expect((await exchange(admin, '/models/load', { model: 'a' })).json).toEqual({ success: true });
    expect(statesOf(opened)).toEqual(['loaded', 'loaded']);
    const { data } = (await exchange(admin, '/models')).json;
    expect(data.map(({ id, status }: any) => [id, status.value])).toEqual([
      ['a', 'loaded'],
      ['b', 'loaded'],
    ]);
    expect((await exchange(admin, '/models/unload', { model: 'a' })).json).toEqual({ success: true });
    expect(statesOf(opened)).toEqual(['unloaded', 'loaded']);
    const pinned = await exchange(admin, '/models/unload', { model: 'b' });
    expect(errorOf(pinned)).toEqual([400, 'invalid_value', 'model']);
    expect(errorOf(await exchange(admin, '/models/load', { model: 'x' }))).toEqual([404, 'model_not_found', 'model']);
    expect(errorOf(await exchange(admin, '/models/load', {}))).toEqual([400, 'missing_required_parameter', 'model']);
    expect(errorOf(await exchange(app, '/models/load', { model: 'a' }))).toEqual([404, 'unknown_url', null]);
    hold()(new CapstanError('invalid_model', 'config.json: broken'));
    expect((await exchange(admin, '/models/load', { model: 'a' })).json.error.message).toBe('config.json: broken');
  });

  test('puts models to sleep and wakes them as vLLM does', async () => {
    const { app, admin, opened } = await serve([
      model('a', { isPreloaded: true }),
      model('b', { isPreloaded: true }),
      model('c'),
    ]);
    const post = (path: string, query = '') => exchange(admin, path, '', { query });
    const isSleeping = async (query = '') => (await exchange(admin, '/is_sleeping', undefined, { query })).json;
    expect(await isSleeping()).toEqual({ is_sleeping: false });
    expect(await post('/sleep', 'level=1&model=a')).toMatchObject({ status: 200, text: '' });
    expect([await isSleeping('model=a'), await isSleeping()]).toEqual([{ is_sleeping: true }, { is_sleeping: false }]);
    expect((await post('/sleep')).status).toBe(200);
    expect([statesOf(opened), await isSleeping()]).toEqual([
      ['sleeping', 'sleeping', 'sleeping'],
      { is_sleeping: true },
    ]);
    expect((await exchange(app, '/health')).status).toBe(200);
    expect((await exchange(app, CHAT, ask('b'))).status).toBe(200);
    expect(statesOf(opened)).toEqual(['sleeping', 'loaded', 'sleeping']);
    expect((await post('/wake_up')).status).toBe(200);
    expect(statesOf(opened)).toEqual(['loaded', 'loaded', 'loaded']);
    for (const [path, body] of [['/sleep', ''], ['/models'], ['/is_sleeping']]) {
      const page = await exchange(admin, path, body, { headers: [['origin', 'http://evil.example']] });
      expect([path, errorOf(page)]).toEqual([path, [403, 'permission_denied', null]]);
    }
  });

  test('one model sleeps and wakes as well, and needs no name', async () => {
    const { app, admin, opened } = await serve([], { model: tiny, aliases: [{ name: 'alias', target: undefined }] });
    expect(statesOf(opened)).toEqual(['loaded']);
    expect((await exchange(admin, '/sleep', '')).status).toBe(200);
    expect((await exchange(app, '/v1/models')).json.data.map(({ status }: any) => status.value)).toEqual([
      'sleeping',
      'sleeping',
    ]);
    expect(errorOf(await exchange(app, CHAT, ask('other')))).toEqual([404, 'model_not_found', 'model']);
    expect(loads.length).toBe(1);
    const replies = [await exchange(app, CHAT, ask(undefined)), await exchange(app, CHAT, ask('alias'))];
    expect(replies.map(({ status }) => status)).toEqual([200, 200]);
    expect([statesOf(opened), loads.length]).toEqual([['loaded'], 2]);
  });

  test('adapters belong to the model that is named, and survive its sleep', async () => {
    const { app, admin } = await serve(
      [model('a'), model('c', { model: LLAMA, engine: { enableLora: true, chatTemplate: 'x' } })],
      { loraDir: join(LORA, '..') },
    );
    const load = (body: object) =>
      exchange(admin, '/v1/load_lora_adapter', { lora_name: 'sql', lora_path: 'llama-all', ...body });
    expect(errorOf(await load({}))).toEqual([400, 'missing_required_parameter', 'model']);
    expect(errorOf(await load({ model: 'c', lora_name: 'a' }))).toEqual([400, 'invalid_value', 'lora_name']);
    expect((await load({ model: 'c' })).status).toBe(200);
    await exchange(admin, '/models/unload', { model: 'c' });
    const listed = (await exchange(app, '/v1/models/sql')).json;
    expect([listed.parent, listed.status.value]).toEqual(['c', 'unloaded']);
    expect((await exchange(app, CHAT, ask('sql', { max_tokens: 2 }))).json.model).toBe('sql');
    expect(fake.requests.map(({ adapterId }) => adapterId > 0)).toEqual([true]);
    expect((await exchange(admin, '/v1/unload_lora_adapter', { lora_name: 'sql' })).status).toBe(200);
    expect((await exchange(app, '/v1/models/sql')).status).toBe(404);
  });
});

describe('an adapter of a model that sleeps', () => {
  const serveAdapted = async (loraModules?: Record<string, string>) => {
    for (const name of ['sql', 'math']) cpSync(LORA, join(folder, name), { recursive: true });
    const engine = { enableLora: true, chatTemplate: 'x', ...(loraModules === undefined ? {} : { loraModules }) };
    const server = await serve([model('a'), model('c', { model: LLAMA, engine })], { loraDir: folder });
    const post = (path: string, body: object) => exchange(server.admin, path, body);
    for (const name of ['sql', 'math'])
      await post('/v1/load_lora_adapter', { lora_name: name, lora_path: name, model: 'c' });
    const names = async () =>
      ((await exchange(server.app, '/v1/models')).json.data as { id: string }[]).map(({ id }) => id);
    return { ...server, post, names };
  };

  test('is left out if its folder has gone, and the model still wakes', async () => {
    const { app, post, names } = await serveAdapted();
    await post('/models/unload', { model: 'c' });
    rmSync(join(folder, 'sql'), { recursive: true });
    expect((await exchange(app, CHAT, ask('math', { max_tokens: 2 }))).status).toBe(200);
    expect(await names()).toEqual(['a', 'c', 'math']);
    expect(log.warn).toHaveBeenCalledWith(
      { model: 'c', adapter: 'sql', reason: expect.stringContaining('adapter "sql"') },
      'an adapter is left out of its model',
    );
  });

  test('is unloaded without a load, one of the options as well', async () => {
    const { app, post, names } = await serveAdapted({ tuned: LORA });
    await post('/models/unload', { model: 'c' });
    rmSync(join(folder, 'sql'), { recursive: true });
    const before = loads.length;
    for (const name of ['sql', 'tuned'])
      expect((await post('/v1/unload_lora_adapter', { lora_name: name })).status).toBe(200);
    expect([loads.length, await names()]).toEqual([before, ['a', 'c', 'math']]);
    expect((await exchange(app, CHAT, ask('c', { max_tokens: 2 }))).status).toBe(200);
    expect(await names()).toEqual(['a', 'c', 'math']);
  });

  test('is unloaded while its model loads', async () => {
    const { app, post, names } = await serveAdapted({ tuned: LORA });
    await post('/models/unload', { model: 'c' });
    let release = (): void => {};
    gates.set(LLAMA, new Promise<void>((resolve) => (release = resolve)));
    const before = loads.length;
    const asked = exchange(app, CHAT, ask('c', { max_tokens: 2 }));
    await eventually(() => loads.length > before);
    for (const name of ['sql', 'tuned']) await post('/v1/unload_lora_adapter', { lora_name: name });
    release();
    expect((await asked).status).toBe(200);
    expect(await names()).toEqual(['a', 'c', 'math']);
  });
});

test('of two adapters that load with one name at a time, the second is refused', async () => {
  const engine = { enableLora: true, chatTemplate: 'x' };
  const { app, admin } = await serve(
    ['b', 'c'].map((name) => model(name, { model: LLAMA, engine })),
    { loraDir: join(LORA, '..') },
  );
  const load = (owner: string, path: string) =>
    exchange(admin, '/v1/load_lora_adapter', { lora_name: 'sql', lora_path: path, model: owner });
  const replies = await Promise.all([load('b', 'llama-all'), load('c', 'llama-all')]);
  expect(replies.map(({ status }) => status)).toEqual([200, 400]);
  expect(errorOf(replies[1])).toEqual([400, 'invalid_value', 'lora_name']);
  expect((await exchange(app, '/v1/models/sql')).json.parent).toBe('b');
  expect((await exchange(admin, '/v1/unload_lora_adapter', { lora_name: 'sql' })).status).toBe(200);
  // A load that fails keeps no name.
  expect((await load('c', 'none')).status).toBe(400);
  expect((await load('c', 'llama-all')).status).toBe(200);
});

test('the metrics have the model as a label, and counters outlive a load', async () => {
  const { app, admin } = await serve([model('a'), model('b')], { metricsCompat: 'vllm' });
  const value = async (metric: string): Promise<number | undefined> => {
    const { text } = await exchange(app, '/metrics');
    const line = text.split('\n').find((each) => each.startsWith(`${metric} `));
    return line === undefined ? undefined : Number(line.split(' ').at(-1));
  };
  await exchange(app, CHAT, ask('a'));
  const tokens = await value('capstan_prompt_tokens_total{model_name="a"}');
  expect(tokens).toBeGreaterThan(0);
  expect(await value('capstan_prompt_tokens_total{model_name="b"}')).toBe(0);
  expect(await value('vllm:prompt_tokens_total{model_name="a"}')).toBe(tokens);
  expect(await value('capstan_request_latency_seconds_count{model_name="a"}')).toBe(1);
  expect(await value('capstan_engine_up{model_name="a"}')).toBe(1);
  expect(await value('capstan_model_state{model_name="a",state="loaded"}')).toBe(1);
  await exchange(admin, '/sleep', '', { query: 'model=a' });
  expect(await value('capstan_prompt_tokens_total{model_name="a"}')).toBe(tokens);
  expect(await value('capstan_engine_up{model_name="a"}')).toBe(0);
  expect(await value('capstan_model_state{model_name="a",state="sleeping"}')).toBe(1);
  expect(await value('capstan_model_memory_bytes{model_name="a"}')).toBe(0);
  await exchange(app, CHAT, ask('a'));
  expect(await value('capstan_prompt_tokens_total{model_name="a"}')).toBe(2 * tokens!);
  expect(await value('capstan_model_loads_total{model_name="a",outcome="loaded"}')).toBe(2);
  expect(await value('capstan_model_unloads_total{model_name="a",reason="request"}')).toBe(1);
});

function requestOf(body: Buffer) {
  return {
    method: 'POST',
    path: CHAT,
    query: '',
    headers: [['content-type', 'application/json']] as [string, string][],
    remoteAddress: '127.0.0.1',
    signal: new AbortController().signal,
    readBody: () => Promise.resolve(body),
  };
}
