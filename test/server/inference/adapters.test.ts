/** Adapters over HTTP: the model of a request, the list of models, and loading at run time on the admin listener. */
import { cpSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { createHandler } from '../../../server/inference/handler';
import { App, type AppOptions } from '../../../server/inference/app';
import { Metrics } from '../../../server/inference/metrics/metrics';
import { Engine } from '../../../ts';
import { fake } from '../../fakes/fake-addon';
import { exchange } from '../../fakes/memory-exchange';
import { temporaryFolder } from '../../fakes/temporary-folder';

const FIXTURES = join(__dirname, '../../oracle/fixtures');
const MESSAGES = [{ role: 'user', content: 'Hi' }];
const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };

const root = temporaryFolder('adapters');
const loraDir = join(root, 'lora');
const outside = join(root, 'outside');
let engine: Engine;

beforeAll(() => {
  mkdirSync(loraDir);
  cpSync(join(FIXTURES, 'lora/llama-all'), join(loraDir, 'sql'), { recursive: true });
  cpSync(join(FIXTURES, 'lora/llama-all'), outside, { recursive: true });
  symlinkSync(outside, join(loraDir, 'link'));
  mkdirSync(join(loraDir, 'mixed'));
  symlinkSync(join(outside, 'adapter_model.safetensors'), join(loraDir, 'mixed/adapter_model.safetensors'));
  cpSync(join(outside, 'adapter_config.json'), join(loraDir, 'mixed/adapter_config.json'));
});
beforeEach(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  fake.reset();
  engine = await Engine.load(join(FIXTURES, 'llama3-f32'), {
    loraModules: { tuned: join(FIXTURES, 'lora/llama-all') },
    chatTemplate: '{{ messages[0].content }}',
  });
});
afterEach(() => engine.close());

function makeApp(options: Partial<AppOptions> = { loraDir }): App {
  const app = new App({
    servedNames: ['base', 'alias'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    ...options,
  });
  app.serve(engine);
  return app;
}

const adminOf = (app: App) => ({ handle: app.handleAdmin.bind(app) });
const load = (app: App, body: object) => exchange(adminOf(app), '/v1/load_lora_adapter', body);
const errorOf = (reply: { status: number; json: any }) => [reply.status, reply.json.error.code, reply.json.error.param];

test('the model of a request chooses the adapter', async () => {
  const app = makeApp();
  const models = ['tuned', 'base', 'alias', undefined];
  for (const model of models) {
    const reply = await exchange(app, '/v1/chat/completions', { messages: MESSAGES, max_tokens: 2, model });
    expect([reply.status, reply.json.model]).toEqual([200, model ?? 'base']);
    const text = await exchange(app, '/v1/completions', { prompt: [[5, 6], [7]], max_tokens: 2, model });
    expect([text.status, text.json.model]).toEqual([200, model ?? 'base']);
  }
  const expected = models.flatMap((model) => Array(3).fill(model === 'tuned' ? 1 : 0) as number[]);
  expect(fake.requests.map(({ adapterId }) => adapterId)).toEqual(expected);
  expect((await exchange(app, '/tokenize', { prompt: 'a', model: 'tuned' })).status).toBe(200);
  expect(errorOf(await exchange(app, '/v1/completions', { prompt: 'a', model: 'other' }))).toEqual([
    404,
    'model_not_found',
    'model',
  ]);
});

test('the error for an unknown model names adapters too', async () => {
  const message = async () =>
    (await exchange(makeApp(), '/v1/completions', { prompt: 'a', model: 'other' })).json.error.message as string;
  expect(await message()).toBe('model: expected one of "base", "alias", "tuned", got "other"');
  await engine.loadAdapter('sql', join(loraDir, 'sql'));
  expect(await message()).toBe(
    'model: expected one of "base", "alias", "tuned" and 1 more of GET /v1/models, got "other"',
  );
});

test('an adapter that is unloaded after the check of its name gives 404', async () => {
  const app = makeApp();
  const [chat, generate] = [engine.chat.bind(engine), engine.generate.bind(engine)];
  engine.chat = (...args) => (engine.unloadAdapter('tuned'), chat(...args));
  engine.generate = (...args) => (engine.unloadAdapter('tuned'), generate(...args));
  for (const [path, prompt] of [
    ['chat/completions', { messages: MESSAGES }],
    ['completions', { prompt: 'a' }],
  ] as const) {
    if (engine.adapters.length === 0) await engine.loadAdapter('tuned', join(loraDir, 'sql'));
    const reply = await exchange(app, `/v1/${path}`, { ...prompt, max_tokens: 2, model: 'tuned' });
    expect(errorOf(reply)).toEqual([404, 'model_not_found', 'model']);
    expect(reply.json.error.message).toBe('model: expected the name of a loaded adapter, got "tuned"');
  }
});

test('an adapter with the name of the model is refused at the start', async () => {
  const message = 'loraModules: expected names that the model does not have, got "tuned"';
  for (const servedNames of [['tuned'], ['base', 'tuned']]) expect(() => makeApp({ servedNames })).toThrow(message);
  await expect(createHandler({ engine, servedModelNames: ['tuned'] })).rejects.toThrow(message);
  expect(await engine.generate([5], { adapter: 'tuned', maxTokens: 1 }).result()).toBeDefined();
  const modules = { 'llama3-f32': join(loraDir, 'sql') };
  const closed = jest.spyOn(Engine.prototype, 'close');
  await expect(
    createHandler({ model: join(FIXTURES, 'llama3-f32'), engineOptions: { loraModules: modules } }),
  ).rejects.toThrow('got "llama3-f32"');
  expect(closed).toHaveBeenCalledTimes(1);
  closed.mockRestore();
});

test('/v1/models lists adapters with their model and the name of their folder', async () => {
  const app = makeApp();
  const { data } = (await exchange(app, '/v1/models')).json;
  expect(data.map(({ id, root, parent }: any) => [id, root, parent])).toEqual([
    ['base', 'base', null],
    ['alias', 'base', null],
    ['tuned', 'llama-all', 'base'],
  ]);
  const one = (await exchange(app, '/v1/models/tuned')).json;
  expect([one.id, one.parent, one.permission[0].id]).toEqual(['tuned', 'base', 'modelperm-tuned']);
});

test('adapters are loaded and unloaded at run time', async () => {
  const app = makeApp();
  const chat = () => exchange(app, '/v1/chat/completions', { messages: MESSAGES, max_tokens: 2, model: 'sql' });
  expect((await chat()).status).toBe(404);
  for (const path of ['sql', join(loraDir, 'sql'), './sql/../sql']) {
    const reply = await load(app, { lora_name: 'sql', lora_path: path });
    expect([reply.status, reply.text]).toEqual([200, "Success: LoRA adapter 'sql' added successfully."]);
    expect((await chat()).status).toBe(200);
    const unloaded = await exchange(adminOf(app), '/v1/unload_lora_adapter', { lora_name: 'sql' });
    expect([unloaded.status, unloaded.text]).toEqual([200, "Success: LoRA adapter 'sql' removed successfully."]);
    expect((await chat()).status).toBe(404);
  }
  expect(fake.requests.map(({ adapterId }) => adapterId)).toEqual([2, 3, 4]);
  expect(fake.unloaded).toEqual([2, 3, 4]);
});

test('only folders and files below --lora-dir are loaded', async () => {
  const app = makeApp();
  for (const path of ['../outside', outside, 'link', 'mixed', '.', loraDir, 'none', 'sql\0', `${loraDir}/../outside`]) {
    const reply = await load(app, { lora_name: 'x', lora_path: path });
    expect([path, ...errorOf(reply)]).toEqual([path, 400, 'invalid_value', 'lora_path']);
    expect(reply.json.error.message).toContain('expected the folder of an adapter in --lora-dir');
  }
  expect(fake.adapters.length).toBe(1);
});

test('refuses names in use, bad bodies and web pages, and everything without --lora-dir', async () => {
  const app = makeApp();
  for (const name of ['base', 'alias', 'tuned'])
    expect(errorOf(await load(app, { lora_name: name, lora_path: 'sql' }))).toEqual([
      400,
      'invalid_value',
      'lora_name',
    ]);
  expect(errorOf(await load(app, { lora_name: 'x' }))).toEqual([400, 'missing_required_parameter', 'lora_path']);
  expect(errorOf(await load(app, { lora_name: 'x', lora_path: 'sql', load_inplace: true }))).toEqual([
    400,
    'unsupported_value',
    'load_inplace',
  ]);
  const unload = await exchange(adminOf(app), '/v1/unload_lora_adapter', { lora_name: 'base' });
  expect(errorOf(unload)).toEqual([404, 'model_not_found', 'lora_name']);
  const body = { lora_name: 'x', lora_path: 'sql' };
  const page = await exchange(adminOf(app), '/v1/load_lora_adapter', body, {
    headers: [
      ['content-type', 'application/json'],
      ['origin', 'http://evil.example'],
    ],
  });
  expect(errorOf(page)).toEqual([403, 'permission_denied', null]);
  const closed = await exchange(adminOf(makeApp({})), '/v1/load_lora_adapter', body);
  expect(errorOf(closed)).toEqual([403, 'permission_denied', null]);
});

test('the serving port has no such routes', async () => {
  const reply = await exchange(makeApp(), '/v1/load_lora_adapter', { lora_name: 'x', lora_path: 'sql' });
  expect(errorOf(reply)).toEqual([404, 'unknown_url', null]);
  expect(reply.json.error.message).toContain('on the admin listener only');
});

test('the metrics have the open prompts of each adapter', async () => {
  const metrics = new Metrics({ compat: 'none' });
  metrics.observing(engine, 'base');
  const value = async () => /capstan_adapter_requests\{adapter="tuned"\} (\d)/.exec(await metrics.render())?.[1];
  fake.answer = () => ({ text: 'and on '.repeat(100), stepMs: 20 });
  const call = engine.generate([5, 6], { adapter: 'tuned', maxTokens: 100 });
  await call.submitted;
  expect(await value()).toBe('1');
  call.abort();
  expect(await value()).toBe('0');
  engine.unloadAdapter('tuned');
  expect(await value()).toBeUndefined();
});
