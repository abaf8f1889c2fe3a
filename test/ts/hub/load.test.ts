/** Loads a model from the hub with the library. */
import { mkdirSync, mkdtempSync, readFileSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describeModel, Engine, type LoadProgress, listModels, modelInfo, pullModel, removeModel } from '../../../ts';
import { HubServer, TOKEN } from '../../fakes/hub-server';
import { tinyModel } from '../../fakes/tiny-model';

const NAME = 'acme/tiny';
const folder = tinyModel();
const FILES = Object.fromEntries(
  ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'model.safetensors'].map((name) => [
    name,
    readFileSync(join(folder, name)),
  ]),
);
const TOTAL = Object.values(FILES).reduce((sum, { length }) => sum + length, 0);
const hub = new HubServer();

beforeAll(async () => {
  await hub.start();
  hub.add(NAME, FILES);
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
});
beforeEach(() => {
  hub.requests.length = 0;
  Object.assign(process.env, { HF_HOME: mkdtempSync(join(tmpdir(), 'capstan-hub-')), HF_ENDPOINT: hub.url });
});
afterAll(() => hub.close());

test('Engine.load downloads a model, reports both stages, and names it', async () => {
  const seen: LoadProgress[] = [];
  const onDownload = jest.fn();
  const engine = await Engine.load(NAME, { onProgress: (progress) => seen.push(progress), onDownload });
  expect(engine.info.modelName).toBe(NAME);
  await engine.close();
  expect(seen.filter(({ stage }) => stage === 'download').at(-1)).toEqual({
    stage: 'download',
    doneBytes: TOTAL,
    totalBytes: TOTAL,
  });
  expect(seen.at(-1)?.stage).toBe('load');
  expect(onDownload).toHaveBeenCalledWith(expect.objectContaining({ repository: NAME, downloadBytes: TOTAL }));
  hub.requests.length = 0;
  await (await Engine.load(`hf:${NAME}@main`)).close();
  expect(hub.requests).toEqual([]);
});

test('Engine.load and describeModel take the folder of the cache and the token', async () => {
  const cacheDir = mkdtempSync(join(tmpdir(), 'capstan-hub-'));
  const options = { cacheDir, token: TOKEN };
  hub.add('acme/private', FILES, { isPrivate: true });
  await expect(Engine.load('acme/private', { cacheDir })).rejects.toMatchObject({ code: 'model_not_found' });
  expect((await describeModel('acme/private', options)).modelName).toBe('acme/private');
  await (await Engine.load('acme/private', options)).close();
  expect((await listModels({ cacheDir })).map(({ repository }) => repository)).toEqual(['acme/private']);
  expect(await listModels()).toEqual([]);
  await expect(Engine.load(NAME, { token: 7 as unknown as string })).rejects.toMatchObject({ param: 'token' });
  await expect(Engine.load(NAME, { cacheDir: null as unknown as string })).rejects.toMatchObject({ param: 'cacheDir' });
});

test('a signal and a callback that throws end the download', async () => {
  const stopped = Engine.load(NAME, { signal: AbortSignal.abort() });
  await expect(stopped).rejects.toMatchObject({ code: 'aborted' });
  const refused = Engine.load(NAME, {
    onDownload: () => {
      throw new Error('too large');
    },
  });
  await expect(refused).rejects.toThrow('too large');
  expect(hub.downloads().some((path) => path.includes('safetensors'))).toBe(false);
});

test('pullModel, listModels and removeModel agree', async () => {
  const { path, commit } = await pullModel(NAME);
  const [model] = await listModels();
  expect(path).toContain(commit);
  expect(model).toMatchObject({ repository: NAME, sizeBytes: TOTAL, revisions: [{ commit, revisions: ['main'] }] });
  expect(await removeModel(NAME)).toBe(TOTAL);
  expect(await listModels()).toEqual([]);
  await expect(removeModel(NAME)).rejects.toMatchObject({ code: 'model_not_found' });
});

test('a model in another folder is listed and removed there', async () => {
  const cacheDir = mkdtempSync(join(tmpdir(), 'capstan-own-'));
  await pullModel(NAME, { cacheDir });
  expect(await listModels()).toEqual([]);
  expect(await listModels({ cacheDir })).toMatchObject([{ repository: NAME }]);
  expect(await removeModel(NAME, { cacheDir })).toBe(TOTAL);
  expect(await listModels({ cacheDir })).toEqual([]);
});

test.each<[string, () => Promise<unknown>, string]>([
  ['listModels', () => listModels(), 'read'],
  ['removeModel', () => removeModel(NAME), 'delete from'],
  ['Engine.load', () => Engine.load(NAME), 'read'],
])('%s of a cache that cannot be read is an io_error', async (_name, run, verb) => {
  const cacheDir = join(process.env.HF_HOME!, 'hub');
  const folder = join(cacheDir, 'models--acme--tiny');
  mkdirSync(join(folder, 'refs'), { recursive: true });
  // A link to itself fails for every user, root included.
  for (const name of ['blobs', 'refs/main']) symlinkSync(join(folder, name), join(folder, name));
  await expect(run()).rejects.toMatchObject({
    code: 'io_error',
    message: expect.stringMatching(`cannot ${verb} the cache ${cacheDir}: ELOOP`) as string,
  });
});

test.each([
  ['a name that is none', () => pullModel('tiny'), 'name'],
  ['an unknown option', () => pullModel(NAME, { fast: true } as never), 'options.fast'],
  ['an unknown option of a list', () => listModels({ cachedir: '/' } as never), 'options.cachedir'],
  ['a callback that is none', () => pullModel(NAME, { onProgress: 3 as never }), 'onProgress'],
  ['an unknown hub', () => listModels({ hub: 'github' as never }), 'hub'],
  ['a quantization to delete', () => removeModel(`${NAME}:Q8_0`), 'name'],
])('%s is an invalid_argument', async (_name, run, param) => {
  await expect(run()).rejects.toMatchObject({ code: 'invalid_argument', param });
});

test('the description of a quantized checkpoint names its quantization, or why it does not run', async () => {
  const config = JSON.parse(FILES['config.json'].toString()) as Record<string, unknown>;
  const describe = (quantization: Record<string, unknown>) => {
    const text = JSON.stringify({ ...config, quantization_config: quantization });
    hub.add('acme/quantized', { ...FILES, 'config.json': Buffer.from(text) });
    return modelInfo('acme/quantized');
  };
  expect(await describe({ quant_method: 'awq', bits: 4 })).toMatchObject({
    quantization: 'AWQ, 4 bits',
    problem: null,
  });
  expect(await describe({ quant_method: 'hqq' })).toMatchObject({
    quantization: null,
    problem: expect.stringMatching(/quant_method: expected one of awq, .* got hqq/),
  });
});
