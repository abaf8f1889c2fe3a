import { createHash } from 'node:crypto';
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { locateModel } from '../../../ts/hub/locate';
import { infoWith, pullWith, type PullOptions } from '../../../ts/hub/models';
import { etagOf, HubServer, sha256, TOKEN } from '../../fakes/hub-server';
import { closeTestSystems, testSystem, type TestSystem } from '../../fakes/hub-system';
import { changedMetadata, ggufBytes, tinyGgufMetadata, tinyGgufTensors } from '../../fakes/tiny-gguf';
import { tinyModel } from '../../fakes/tiny-model';

const NAME = 'acme/tiny';
const folder = tinyModel();
const read = (name: string): Buffer => readFileSync(join(folder, name));
const TEXTS = ['config.json', 'generation_config.json', 'tokenizer.json', 'tokenizer_config.json'];
const FILES = Object.fromEntries([...TEXTS, 'model.safetensors'].map((name) => [name, read(name)]));
const WEIGHTS = FILES['model.safetensors'];
/** What a pull must leave out. */
const OTHERS = {
  'README.md': 'read me',
  'pytorch_model.bin': 'a pickle',
  'onnx/model.onnx': 'onnx',
  'tf_model.h5': 'h5',
  'original/consolidated.00.pth': 'a pickle',
  '.gitattributes': '*.safetensors filter=lfs',
};

let hub: HubServer;
let cacheDir: string;
let env: NodeJS.ProcessEnv;
let system: TestSystem;

beforeAll(() => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
});
beforeEach(async () => {
  hub = new HubServer();
  await hub.start();
  const home = mkdtempSync(join(tmpdir(), 'capstan-hub-'));
  cacheDir = join(home, 'hub');
  env = { HF_HOME: home, HF_ENDPOINT: hub.url };
  system = testSystem(env);
});

afterEach(async () => {
  closeTestSystems();
  await hub.close();
  expect(hub.violations).toEqual([]);
});

const pull = (options: PullOptions = {}, name = NAME) => pullWith(name, options, system);
const blob = (bytes: Buffer, name = NAME): string =>
  join(cacheDir, `models--${name.replace('/', '--')}`, 'blobs', etagOf(bytes));
const refusal = (code: string, message: RegExp | string) => ({
  code,
  message: expect.stringMatching(message) as string,
});

describe('a pull', () => {
  test('leaves the files that the model needs in the layout of huggingface_hub', async () => {
    const { commit } = hub.add(NAME, { ...FILES, ...OTHERS });
    const { path } = await pull();
    expect(path).toBe(join(cacheDir, 'models--acme--tiny/snapshots', commit));
    expect(readdirSync(path).sort()).toEqual(Object.keys(FILES).sort());
    for (const [name, bytes] of Object.entries(FILES)) {
      expect(readlinkSync(join(path, name))).toBe(`../../blobs/${etagOf(bytes)}`);
      expect(readFileSync(join(path, name)).equals(bytes)).toBe(true);
    }
    expect(readdirSync(dirname(blob(WEIGHTS))).sort()).toEqual(Object.values(FILES).map(etagOf).sort());
    expect(readFileSync(join(cacheDir, 'models--acme--tiny/refs/main'), 'utf8')).toBe(commit);
    expect(existsSync(join(cacheDir, 'models--acme--tiny/.no_exist', commit, 'chat_template.jinja'))).toBe(true);
  });

  test('reports progress in bytes up to the total', async () => {
    hub.add(NAME, FILES);
    const seen: { doneBytes: number; totalBytes: number }[] = [];
    await pull({ onProgress: (progress) => seen.push(progress) });
    const total = Object.values(FILES).reduce((sum, { length }) => sum + length, 0);
    expect(seen.at(-1)).toEqual({ doneBytes: total, totalBytes: total });
  });

  test('of a revision that the cache has asks for the list only, and downloads what has changed', async () => {
    hub.add(NAME, FILES);
    await pull();
    hub.requests.length = 0;
    await pull();
    expect(hub.requests.map(({ path }) => path)).toEqual([`/api/models/${NAME}/revision/main`]);
    const { commit } = hub.add(NAME, {
      ...FILES,
      'config.json': Buffer.concat([FILES['config.json'], Buffer.from('\n')]),
    });
    hub.requests.length = 0;
    await pull();
    expect(hub.downloads()).toEqual([`/${NAME}/resolve/${commit}/config.json`]);
    expect(readdirSync(join(cacheDir, 'models--acme--tiny/snapshots'))).toHaveLength(2);
  });

  test('takes a branch with a slash, a tag or a commit', async () => {
    const { commit } = hub.add(NAME, FILES, { revisions: ['main', 'refs/pr/1', 'v1.0'] });
    for (const revision of ['refs/pr/1', 'v1.0', commit])
      expect((await pull({}, `${NAME}@${revision}`)).commit).toBe(commit);
    expect(readFileSync(join(cacheDir, 'models--acme--tiny/refs/refs/pr/1'), 'utf8')).toBe(commit);
    expect(existsSync(join(cacheDir, 'models--acme--tiny/refs', commit))).toBe(false);
  });

  test('takes the quantized embedding that capstan quantize writes', async () => {
    hub.add(NAME, { ...FILES, 'embedding.capstan': 'the embedding' });
    const { path } = await pull();
    expect(readFileSync(join(path, 'embedding.capstan'), 'utf8')).toBe('the embedding');
  });

  test('takes the modules whose folders modules.json may name', async () => {
    const modules = {
      'modules.json': '[]',
      '1_Pooling/config.json': '{}',
      '2_Dense-Layer/config.json': '{}',
      '2_Dense-Layer/model.safetensors': 'x',
    };
    hub.add(NAME, { ...FILES, ...modules, 'onnx/config.json': '{}', 'original/model.safetensors': 'x' });
    const { path } = await pull();
    const folders = Object.keys(modules).map((file) => file.split('/')[0]);
    expect(readdirSync(path).sort()).toEqual([...new Set([...Object.keys(FILES), ...folders])].sort());
    expect(readdirSync(join(path, '2_Dense-Layer')).sort()).toEqual(['config.json', 'model.safetensors']);
  });

  // Qwen3.5 has the second name.
  test.each(['model', 'model.safetensors', 'weights'])(
    'takes the parts %s-… of a model and its index',
    async (stem) => {
      const parts = {
        'model.safetensors.index.json': '{}',
        [`${stem}-00001-of-00002.safetensors`]: 'one',
        [`${stem}-00002-of-00002.safetensors`]: 'two',
      };
      hub.add(NAME, { ...FILES, ...parts, 'model.safetensors': 'x' });
      delete hub.repositories.get(NAME)!.files['model.safetensors'];
      for (const name of ['consolidated.safetensors', 'consolidated-00001-of-00001.safetensors'])
        hub.repositories.get(NAME)!.files[name] = Buffer.from('the same again');
      const { path } = await pull();
      expect(readdirSync(path).sort()).toEqual([...TEXTS, ...Object.keys(parts)].sort());
    },
  );

  test('takes the only file of weights, whatever its name', async () => {
    const name = 'gptq_model-4bit-128g.safetensors';
    hub.add(NAME, { ...FILES, [name]: 'weights' });
    delete hub.repositories.get(NAME)!.files['model.safetensors'];
    const { path } = await pull();
    expect(readdirSync(path).sort()).toEqual([...TEXTS, name].sort());
  });

  test('calls onDownload once, after the configuration and before the weights', async () => {
    hub.add(NAME, FILES);
    const onDownload = jest.fn(() => {
      expect(hub.downloads().some((path) => path.includes('safetensors'))).toBe(false);
    });
    await pull({ onDownload });
    await pull({ onDownload });
    expect(onDownload).toHaveBeenCalledTimes(1);
    expect(onDownload).toHaveBeenCalledWith(
      expect.objectContaining({ repository: NAME, format: 'safetensors', problem: null }),
    );
  });

  test('ends with an error that a callback throws', async () => {
    hub.add(NAME, FILES);
    const fail = (): never => {
      throw Object.assign(new Error('no more'), { code: 'MINE' });
    };
    await expect(pull({ onProgress: fail })).rejects.toThrow('no more');
    await expect(pull({ onDownload: fail })).rejects.toThrow('no more');
  });
});

describe('a fault of the connection', () => {
  test.each([
    ['a cut', { cutAfter: 1000 }],
    ['a status 503', { status: 503 }],
    ['a status 500', { status: 500 }],
    ['an expired link', { status: 403 }],
    ['a wrong byte', { isCorrupt: true }],
    ['bytes too many', { extraBytes: 10 }],
  ])('%s is followed by another attempt', async (_name, fault) => {
    hub.add(NAME, FILES);
    hub.fail('model.safetensors', fault);
    const { path } = await pull();
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  });

  test('continues where each of many cuts was, without an end to their number', async () => {
    hub.add(NAME, FILES);
    hub.fail('model.safetensors', ...Array.from({ length: 10 }, () => ({ cutAfter: 500 })));
    await pull();
    const ranges = hub.requests.filter(({ host }) => host === 'storage').map(({ range }) => range);
    expect(ranges.length).toBe(11);
    expect(ranges[0]).toBeUndefined();
    expect(ranges[10]).toBe('bytes=5000-');
    // Progress resets the pause.
    expect(system.waits).toEqual(Array(10).fill(1000));
  });

  test('starts again if the storage ignores the range', async () => {
    hub.add(NAME, FILES);
    hub.fail('model.safetensors', { cutAfter: 1000 }, { ignoresRange: true });
    const { path } = await pull();
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  });

  test('a storage that ignores ranges and cuts each time is given up', async () => {
    hub.add(NAME, FILES);
    hub.fail('model.safetensors', ...Array.from({ length: 20 }, () => ({ cutAfter: 1000, ignoresRange: true })));
    await expect(pull()).rejects.toMatchObject(
      refusal('download_failed', /model\.safetensors of acme\/tiny: the connection was cut/),
    );
  });

  test('a file with a wrong hash is given up after two downloads, and nothing of it is kept', async () => {
    hub.add(NAME, FILES);
    hub.fail('model.safetensors', { isCorrupt: true }, { isCorrupt: true });
    await expect(pull()).rejects.toMatchObject(
      refusal('download_failed', `expected content with the hash ${sha256(WEIGHTS)}, got [0-9a-f]{64}, 2 times`),
    );
    expect(existsSync(blob(WEIGHTS))).toBe(false);
    expect(readFileSync(`${blob(WEIGHTS)}.incomplete`)).toHaveLength(0);
    expect(existsSync(join(cacheDir, 'models--acme--tiny/refs/main'))).toBe(false);
  });

  test('a small file is checked by its Git hash', async () => {
    hub.add(NAME, FILES);
    hub.fail('config.json', { isCorrupt: true }, { isCorrupt: true });
    await expect(pull()).rejects.toMatchObject(refusal('download_failed', `the hash ${etagOf(FILES['config.json'])}`));
  });

  test('a busy hub is asked again after the pause that it names', async () => {
    hub.add(NAME, FILES);
    hub.fail('list', { status: 429, headers: { 'Retry-After': '7' } });
    hub.fail('config.json', { status: 429, headers: { 'Retry-After': new Date(1_000_000 + 9_000).toUTCString() } });
    await pull();
    expect(system.waits).toEqual([7000, 9000]);
  });

  test('a pause of an hour is not waited for', async () => {
    hub.add(NAME, FILES);
    hub.fail('list', { status: 429, headers: { 'Retry-After': '3600' } });
    await expect(pull()).rejects.toMatchObject(
      refusal('download_failed', /answered with status 429\. Try again after 1970-01-01T01:16:40/),
    );
    expect(system.waits).toEqual([]);
  });

  test('without a network, one message says what to do, and no secret is in it', async () => {
    await hub.close();
    env.HF_TOKEN = TOKEN;
    const error = (await pull().catch((thrown: Error) => thrown)) as Error;
    expect(error.message).toMatch(/cannot reach 127\.0\.0\.1:\d+ \(the connection was refused\)\. Check the network/);
    expect(error.message).not.toContain(TOKEN);
    expect(system.waits).toEqual([1000, 2000]);
    await hub.start();
  });
});

test.each(['gzip', 'br'] as const)('a server or proxy that compresses by %s is understood', async (encoding) => {
  hub.add(NAME, FILES);
  for (const file of ['list', 'config.json']) hub.fail(file, { encoding });
  hub.fail('model.safetensors', { encoding, cutAfter: 1000 }, { encoding });
  const { path } = await pull();
  expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
});

test('the length of a compressed response to HEAD is not the size of the file', async () => {
  hub.add(NAME, FILES, { hasHashes: false });
  hub.fail('tokenizer.json', { encoding: 'gzip' });
  await expect(pull()).rejects.toMatchObject({
    code: 'download_failed',
    message: expect.stringContaining(
      'expected the size of "tokenizer.json" from the hub, got that of its compressed',
    ) as string,
  });
});

describe('an interrupted pull', () => {
  test('stops at once, keeps what was received, and the next one continues', async () => {
    hub.add(NAME, FILES);
    const controller = new AbortController();
    hub.fail('model.safetensors', { hold: new Promise<void>(() => {}) });
    const half = WEIGHTS.length >> 1;
    const others = TEXTS.reduce((sum, name) => sum + FILES[name].length, 0);
    const stopped = pull({
      signal: controller.signal,
      onProgress: ({ doneBytes }) => doneBytes === others + half && controller.abort(),
    });
    await expect(stopped).rejects.toMatchObject({ code: 'aborted' });
    expect(readFileSync(`${blob(WEIGHTS)}.incomplete`)).toHaveLength(half);
    hub.requests.length = 0;
    const { path } = await pull();
    expect(hub.requests.filter(({ host }) => host === 'storage').map(({ range }) => range)).toEqual([`bytes=${half}-`]);
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  });

  test.each([
    ['wrong bytes', (bytes: Buffer) => Buffer.alloc(bytes.length >> 1, 1)],
    ['too many bytes', (bytes: Buffer) => Buffer.concat([bytes, bytes])],
    ['all bytes', (bytes: Buffer) => bytes],
    ['all bytes, one of them wrong', (bytes: Buffer) => Buffer.concat([Buffer.from([1]), bytes.subarray(1)])],
  ])('that left %s is repaired', async (_name, makePartial) => {
    hub.add(NAME, FILES);
    mkdirSync(dirname(blob(WEIGHTS)), { recursive: true });
    writeFileSync(`${blob(WEIGHTS)}.incomplete`, makePartial(WEIGHTS));
    const { path } = await pull();
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
    expect(existsSync(`${blob(WEIGHTS)}.incomplete`)).toBe(false);
  });
});

test('a pull that was killed between the last byte and the end is completed', async () => {
  hub.add(NAME, { ...FILES, 'special_tokens_map.json': '' });
  const { path } = await pull();
  const empty = Buffer.alloc(0);
  renameSync(blob(WEIGHTS), `${blob(WEIGHTS)}.incomplete`);
  rmSync(blob(empty));
  await pull();
  expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  expect(readFileSync(join(path, 'special_tokens_map.json'))).toEqual(empty);
});

test('a pull whose files are deleted meanwhile fails, and the revision names no commit', async () => {
  hub.add(NAME, FILES);
  const onDownload = (): void => rmSync(blob(FILES['config.json']));
  await expect(pull({ onDownload })).rejects.toMatchObject(
    refusal('download_failed', /the model was deleted in the meantime\. Try again/),
  );
  expect(existsSync(join(cacheDir, 'models--acme--tiny/refs/main'))).toBe(false);
});

describe('the disk', () => {
  test('is checked before the weights are downloaded, with the numbers', async () => {
    hub.add(NAME, FILES);
    system = testSystem(env, { freeDiskBytes: () => Promise.resolve(10) });
    const total = Object.values(FILES).reduce((sum, { length }) => sum + length, 0);
    await expect(pull()).rejects.toMatchObject(
      refusal('io_error', `acme/tiny needs ${total} more bytes in .*, and the disk has 10 bytes free`),
    );
    expect(JSON.stringify(hub.downloads())).not.toContain('model.safetensors');
  });

  test('that becomes full keeps the received part, and the next pull continues', async () => {
    hub.add(NAME, FILES);
    hub.fail('model.safetensors', { cutAfter: 4000 });
    system = testSystem(env, {
      write: async (file, bytes, position) => {
        if (position === 4000)
          throw Object.assign(new Error('ENOSPC: no space left on device, write'), {
            code: 'ENOSPC',
            syscall: 'write',
          });
        await file.write(bytes, 0, bytes.length, position);
      },
    });
    await expect(pull()).rejects.toMatchObject(
      refusal(
        'io_error',
        `the disk is full\\. It needs ${WEIGHTS.length - 4000} more bytes\\. Free space, or set HF_HOME`,
      ),
    );
    expect(readFileSync(`${blob(WEIGHTS)}.incomplete`)).toHaveLength(4000);
    system = testSystem(env);
    const { path } = await pull();
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  });
});

test('a cache that cannot be written is an io_error that names it', async () => {
  hub.add(NAME, FILES);
  writeFileSync(cacheDir, 'a file');
  await expect(pull()).rejects.toMatchObject(refusal('io_error', `cannot write to the cache ${cacheDir}: E`));
});

describe('a model that cannot be read', () => {
  test.each<[string, Parameters<HubServer['add']>[2], string, string, RegExp]>([
    ['gated', { isGated: true }, NAME, 'access_denied', /acme\/tiny is gated.*Request it at http.*set HF_TOKEN/],
    ['private', { isPrivate: true }, NAME, 'model_not_found', /no model acme\/tiny at .* or it is private.*HF_TOKEN/],
    ['missing', {}, 'acme/tinny', 'model_not_found', /no model acme\/tinny at/],
    ['without the revision', {}, `${NAME}@v9`, 'model_not_found', /acme\/tiny has no revision "v9"/],
  ])('%s: one message says what to do', async (_name, more, name, code, message) => {
    hub.add(NAME, FILES, more);
    await expect(pull({}, name)).rejects.toMatchObject(refusal(code, message));
  });

  test('gated or private is read with the token, which the storage host never gets', async () => {
    hub.add(NAME, FILES, { isGated: true, isPrivate: true });
    env.HF_TOKEN = ` ${TOKEN}\n`;
    await pull();
    expect(hub.requests.some(({ host }) => host === 'storage')).toBe(true);
  });

  test('of a repository that was renamed is found, with the token', async () => {
    hub.add(NAME, FILES, { isPrivate: true });
    hub.add('acme/renamed', FILES, { isPrivate: true });
    env.HF_TOKEN = TOKEN;
    hub.fail('list', { status: 307, headers: { Location: '/api/models/acme/renamed/revision/main?blobs=true' } });
    await pull();
    expect(hub.requests[1].path).toBe('/api/models/acme/renamed/revision/main');
  });

  test('the token of hf auth login is used', async () => {
    hub.add(NAME, FILES, { isPrivate: true });
    writeFileSync(join(env.HF_HOME!, 'token'), `${TOKEN}\n`);
    await pull();
    writeFileSync(join(env.HF_HOME!, 'elsewhere'), TOKEN);
    writeFileSync(join(env.HF_HOME!, 'token'), 'old');
    env.HF_TOKEN_PATH = join(env.HF_HOME!, 'elsewhere');
    await pull();
  });

  test('a token with a line break is refused without showing it', async () => {
    env.HF_TOKEN = `${TOKEN}\nX-Other: 1`;
    const error = (await pull().catch((thrown: Error) => thrown)) as Error;
    expect(error.message).toBe('HF_TOKEN: expected a token of printable ASCII characters');
  });

  test('without weights that the engine reads names what there is', async () => {
    hub.add(NAME, { 'config.json': '{}', 'pytorch_model.bin': 'x' });
    await expect(pull()).rejects.toMatchObject(
      refusal('model_not_found', /expected safetensors or GGUF files, got only files such as pytorch_model\.bin/),
    );
  });
});

describe('a hostile hub', () => {
  test.each([
    '../config.json',
    '/etc/passwd',
    'a/../../b.safetensors',
    'a//b',
    './a',
    'a\\..\\b',
    'C:/a',
    'a\u0000b',
    'a\nb',
    `${'x'.repeat(300)}.json`,
    '',
  ])('cannot name a file %j', async (path) => {
    hub.add(NAME, FILES, {
      patchList: (reply) => ({ ...reply, siblings: [...reply.siblings, { ...reply.siblings[0], rfilename: path }] }),
    });
    await expect(pull()).rejects.toMatchObject(
      refusal('download_failed', /expected file names that are relative paths/),
    );
    expect(existsSync(join(cacheDir, 'models--acme--tiny'))).toBe(false);
  });

  test.each<[string, (reply: any) => unknown]>([
    ['a commit that is a path', (reply) => ({ ...reply, sha: '../../x' })],
    ['no list', (reply) => ({ ...reply, siblings: {} })],
    [
      'a hash that is a path',
      (reply) => ({ ...reply, siblings: [{ rfilename: 'config.json', size: 1, blobId: '../x' }] }),
    ],
    [
      'a size that is a text',
      (reply) => ({ ...reply, siblings: [{ rfilename: 'config.json', size: '1', blobId: 'a'.repeat(40) }] }),
    ],
    ['a list', () => []],
    ['null', () => null],
    ['too many files', (reply) => ({ ...reply, siblings: Array(50_001).fill(reply.siblings[0]) })],
    ['17 MB', (reply) => ({ ...reply, padding: 'x'.repeat(17 * 2 ** 20) })],
  ])('cannot answer with %s', async (_name, patchList) => {
    hub.add(NAME, FILES, { patchList });
    await expect(pull()).rejects.toMatchObject({ code: 'download_failed' });
  });

  test.each([
    ['config.json', 2 ** 20],
    ['tokenizer.json', 2 ** 27],
  ])('cannot make a %s of more than %d bytes be downloaded', async (path, limit) => {
    hub.add(NAME, FILES, {
      patchList: ({ siblings, ...reply }) => ({
        ...reply,
        siblings: siblings.map((file: any) =>
          file.rfilename === path
            ? { ...file, size: limit + 1, ...(file.lfs && { lfs: { ...file.lfs, size: limit + 1 } }) }
            : file,
        ),
      }),
    });
    await expect(pull()).rejects.toMatchObject(
      refusal('download_failed', `acme/tiny: expected at most ${limit} bytes for ${path}, got ${limit + 1}`),
    );
    expect(hub.downloads()).toEqual([]);
  });

  test('cannot send another content than the one that it lists', async () => {
    const { commit } = hub.add(NAME, FILES, {
      patchList: (reply) => ({ ...reply, sha: 'a'.repeat(40) }),
      revisions: ['main', 'a'.repeat(40)],
    });
    await expect(pull()).rejects.toMatchObject(
      refusal(
        'download_failed',
        `of commit ${'a'.repeat(40)}, got "?\\d+"? bytes, "[0-9a-f]+", of "${commit}"\\. The repository changed`,
      ),
    );
  });

  test('cannot send control characters to the terminal', async () => {
    hub.add(NAME, FILES);
    const { send } = system;
    system = testSystem(env, {
      send: async (url, request) => {
        const response = await send(url, request);
        const headers = { ...response.headers, 'x-repo-commit': `\u009b2J\u001b${'x'.repeat(9999)}` };
        return url.pathname.startsWith('/api') ? response : { ...response, headers };
      },
    });
    const error = (await pull().catch((thrown: Error) => thrown)) as Error;
    expect(error.message).toMatch(/of "\\u009b2J\\u001bx+…"\. The repository changed/);
    expect(error.message).not.toMatch(/\p{Cc}/u);
  });

  test.each([
    ['without end', (at: string) => at, /more than 5/],
    ['to a file', () => 'file:///etc/passwd', /one to "file:"/],
    ['to nowhere', () => '', /without an address|more than/],
  ])('cannot redirect %s', async (_name, locate, message) => {
    hub.add(NAME, FILES);
    const url = `${hub.url}/api/models/${NAME}/revision/main?blobs=true`;
    hub.fail('list', ...Array.from({ length: 10 }, () => ({ status: 302, headers: { Location: locate(url) } })));
    await expect(pull()).rejects.toMatchObject(refusal('download_failed', message));
  });

  test('cannot redirect from https to http', async () => {
    const seen: string[] = [];
    system = testSystem(
      { HF_HOME: env.HF_HOME, HF_TOKEN: TOKEN },
      {
        send: (url) => {
          seen.push(url.href);
          const body = Readable.from([]);
          return Promise.resolve({ status: 302, headers: { location: 'http://example.com/x' }, body });
        },
      },
    );
    await expect(pull()).rejects.toMatchObject(refusal('download_failed', /one to "http:", which is not https/));
    expect(seen).toEqual(['https://huggingface.co/api/models/acme/tiny/revision/main?blobs=true']);
  });
});

describe('GGUF', () => {
  const GGUF = {
    'README.md': 'x',
    'config.json': '{}',
    'tiny-Q8_0.gguf': 'eight',
    'tiny-q4_k_m.gguf': 'four',
    'mmproj-tiny-f16.gguf': 'a projector',
    'big/tiny-BF16-00001-of-00002.gguf': 'part one',
    'big/tiny-BF16-00002-of-00002.gguf': 'part two',
    'UD-IQ2_XXS/tiny-UD-IQ2_XXS.gguf': 'two',
    'tiny-UD-Q4_K_XL.gguf': 'four and more',
  };

  test.each([
    [`${NAME}:Q8_0`, ['tiny-Q8_0.gguf']],
    [`${NAME}:q4_K_m`, ['tiny-q4_k_m.gguf']],
    [NAME, ['tiny-q4_k_m.gguf']],
    [`hf:${NAME}:bf16`, ['big/tiny-BF16-00001-of-00002.gguf', 'big/tiny-BF16-00002-of-00002.gguf']],
    [`${NAME}@main:tiny-Q8_0.gguf`, ['tiny-Q8_0.gguf']],
    [
      `${NAME}:big/tiny-BF16-00002-of-00002.gguf`,
      ['big/tiny-BF16-00001-of-00002.gguf', 'big/tiny-BF16-00002-of-00002.gguf'],
    ],
    [`${NAME}:UD-IQ2_XXS`, ['UD-IQ2_XXS/tiny-UD-IQ2_XXS.gguf']],
    [`${NAME}:q4_k_xl`, ['tiny-UD-Q4_K_XL.gguf']],
  ])('%s takes %j', async (name, files) => {
    const { commit } = hub.add(NAME, GGUF);
    const { path } = await pull({}, name);
    const snapshot = join(cacheDir, 'models--acme--tiny/snapshots', commit);
    expect(path).toBe(join(snapshot, files[0]));
    const downloaded = hub.downloads().map((request) => request.split(`${commit}/`)[1]);
    expect(downloaded.sort()).toEqual(['config.json', ...files].sort());
    expect(lstatSync(path).isSymbolicLink()).toBe(true);
    expect(readFileSync(path, 'utf8')).toBe((GGUF as Record<string, string>)[files[0]]);
  });

  test.each([
    [
      `${NAME}:Q5_K_M`,
      /GGUF model Q5_K_M, got none\. It has UD-IQ2_XXS, BF16, Q8_0, UD-Q4_K_XL, Q4_K_M\. For example: acme\/tiny:BF16/,
    ],
    [`${NAME}:other.gguf`, /a GGUF model other\.gguf, got none\. It has/],
  ])('%s is refused with the names that there are', async (name, message) => {
    hub.add(NAME, GGUF);
    await expect(pull({}, name)).rejects.toMatchObject(refusal('model_not_found', message));
  });

  test('two models of one quantization are not guessed between', async () => {
    hub.add(NAME, { 'base-Q8_0.gguf': 'a', 'chat-Q8_0.gguf': 'b' });
    await expect(pull({}, `${NAME}:Q8_0`)).rejects.toMatchObject(
      refusal('model_not_found', /a GGUF model Q8_0, got 2 of them\. Name a file: base-Q8_0\.gguf, chat-Q8_0\.gguf/),
    );
    await expect(pull()).rejects.toMatchObject(refusal('model_not_found', /one GGUF model, got several\. It has Q8_0/));
  });

  test('parts that are missing in the repository are refused', async () => {
    hub.add(NAME, { 'tiny-BF16-00001-of-00003.gguf': 'a', 'tiny-BF16-00003-of-00003.gguf': 'b' });
    await expect(pull()).rejects.toMatchObject(refusal('invalid_model', /expected 3 parts of .*, got 2/));
  });
});

describe('a name', () => {
  const locate = (text: string, more: object = {}) =>
    locateModel(text, {
      hub: {},
      signal: undefined,
      engineOptions: {},
      onProgress: () => {},
      onDownload: undefined,
      ...more,
    });
  let saved: NodeJS.ProcessEnv;

  beforeEach(() => {
    saved = { ...process.env };
    Object.assign(process.env, env);
  });
  afterEach(() => {
    process.env = saved;
  });

  test('of a path that exists is never one of the hub', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'capstan-cwd-'));
    mkdirSync(join(folder, NAME), { recursive: true });
    const before = process.cwd();
    process.chdir(folder);
    try {
      expect(await locate(NAME)).toEqual({ path: NAME, name: undefined });
      expect(hub.requests).toEqual([]);
    } finally {
      process.chdir(before);
    }
  });

  test.each(['a', 'a/b/c', 'a/b:', 'a/b@', 'a/b@../c', 'a/b:../c', 'a--b/c', 'a/..b', 'a b/c', 'x\u0000/y'])(
    'that is neither, %j, is refused with both readings',
    async (text) => {
      await expect(locate(text)).rejects.toMatchObject(
        refusal('model_not_found', /there is no such path, and it is not a name on the hub, ORG\/NAME/),
      );
    },
  );

  test.each(['./a/b', '../b', '/no/such', 'a/b.gguf'])(
    'that can only be a path, %j, sends no request',
    async (text) => {
      hub.requests.length = 0;
      await expect(locate(text)).rejects.toMatchObject(
        refusal('model_not_found', /expected a path that exists, got none at \//),
      );
      expect(hub.requests).toEqual([]);
    },
  );

  test('that the hub does not know is refused with both readings', async () => {
    await expect(locate('acme/none')).rejects.toMatchObject(
      refusal('model_not_found', /there is no such path, and there is no model acme\/none at 127/),
    );
  });

  test('of a model that the cache has needs no request, also without a network', async () => {
    hub.add(NAME, FILES);
    const { path } = await pull();
    hub.requests.length = 0;
    expect(await locate(NAME)).toEqual({ path, name: NAME });
    expect(await locate(`hf:${NAME}@main`)).toEqual({ path, name: NAME });
    expect(hub.requests).toEqual([]);
  });

  test('of a repository of GGUF files that the cache has needs no request', async () => {
    const bytes = ggufBytes({ metadata: tinyGgufMetadata() });
    hub.add(NAME, { 'tiny-Q8_0.gguf': 'eight', 'tiny-Q4_K_M.gguf': bytes });
    const { path: eight } = await pull({}, `${NAME}:Q8_0`);
    const { path } = await locate(NAME);
    expect(path).not.toBe(eight);
    hub.requests.length = 0;
    hub.add(NAME, { 'tiny-Q4_K_M.gguf': 'a new one' });
    expect(await locate(NAME)).toEqual({ path, name: NAME });
    expect(hub.requests).toEqual([]);
  });

  test('of a repository that also has safetensors is asked for after a pull of GGUF files', async () => {
    const { commit } = hub.add(NAME, { ...FILES, 'tiny-Q8_0.gguf': 'eight' });
    await pull({}, `${NAME}:Q8_0`);
    expect(await locate(NAME)).toEqual({ path: join(cacheDir, 'models--acme--tiny/snapshots', commit), name: NAME });
    expect(existsSync(blob(WEIGHTS))).toBe(true);
  });

  test('under HF_HUB_OFFLINE finds the cache, else an error says what to do', async () => {
    hub.add(NAME, FILES);
    const { path } = await pull();
    process.env.HF_HUB_OFFLINE = '1';
    expect(await locate(NAME)).toEqual({ path, name: NAME });
    await expect(locate('acme/other')).rejects.toMatchObject(
      refusal('download_failed', /acme\/other is not complete in the cache, and HF_HUB_OFFLINE forbids requests/),
    );
  });

  test('of a model that this version cannot run downloads no weights', async () => {
    hub.add(NAME, { ...FILES, 'config.json': '{"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"]}' });
    await expect(locate(NAME)).rejects.toMatchObject(
      refusal(
        'unsupported_model',
        /^acme\/tiny: config\.json: expected one of the architectures .* got Gemma3ForCausalLM/,
      ),
    );
    expect(existsSync(blob(WEIGHTS))).toBe(false);
  });

  test('of a GGUF quantization that cannot be loaded downloads no weights', async () => {
    hub.add(NAME, { 'tiny-Q8_0.gguf': 'eight', 'tiny-IQ3_M.gguf': 'three' });
    await expect(locate(`${NAME}:IQ3_M`)).rejects.toMatchObject(
      refusal(
        'unsupported_model',
        /^acme\/tiny: expected one of Q8_0, got IQ3_M, whose tensor types cannot be loaded$/,
      ),
    );
    expect(hub.downloads()).toEqual([]);
  });

  describe('of a GGUF file whose name does not show its types', () => {
    const IQ2_XXS = 16;
    const file = (type: number, tensor = 'blk.0.extra.weight'): Buffer =>
      ggufBytes({
        metadata: changedMetadata({
          'qwen2.block_count': { uint32: 2 },
          'qwen2.nextn_predict_layers': { uint32: 1 },
        }),
        tensors: [...tinyGgufTensors(), [tensor, { sizes: [256, 4096], type }]],
      });
    const MIXED = 'tiny-UD-Q4_K_XL.gguf';
    const asked = (): string[] =>
      hub.requests.filter(({ host }) => host === 'storage').map(({ path, range }) => `${path.split('/')[2]} ${range}`);

    test('reads the header alone, and names a quantization to take instead', async () => {
      const bytes = file(IQ2_XXS);
      hub.add(NAME, { [MIXED]: bytes, 'tiny-UD-Q2_K_XL.gguf': 'two', 'tiny-Q4_K_M.gguf': 'four' });
      const problem =
        'expected one of Q4_K_M, got UD-Q4_K_XL, which has tensors of the type IQ2_XXS. ' +
        'Tensors of this type cannot be loaded';
      const range = `${MIXED} bytes=0-${bytes.length - 1}`;
      await expect(locate(`${NAME}:Q4_K_XL`)).rejects.toMatchObject({
        code: 'unsupported_model',
        message: `acme/tiny: ${problem}`,
      });
      expect([asked(), existsSync(blob(bytes))]).toEqual([[range], false]);
      expect(await infoWith(`${NAME}:Q4_K_XL`, {}, system)).toMatchObject({
        problem,
        quantizations: [
          { name: 'Q4_K_M', fits: true },
          { name: 'UD-Q2_K_XL', fits: true },
          { name: 'UD-Q4_K_XL', fits: null },
        ],
      });
    });

    test.each([
      ['a cut', { cutAfter: 100 }],
      ['a host that ignores ranges', { ignoresRange: true }],
    ])('after %s', async (_what, fault) => {
      hub.add(NAME, { [MIXED]: file(IQ2_XXS) });
      hub.fail(MIXED, fault);
      await expect(locate(`${NAME}:${MIXED}`)).rejects.toMatchObject(
        refusal('unsupported_model', /^acme\/tiny: expected a quantization such as Q4_K_M, got UD-Q4_K_XL, which has/),
      );
    });

    test('in any of its parts', async () => {
      hub.add(NAME, {
        'tiny-Q8_0-00001-of-00002.gguf': ggufBytes({ metadata: tinyGgufMetadata(), tensors: tinyGgufTensors() }),
        'tiny-Q8_0-00002-of-00002.gguf': file(IQ2_XXS),
      });
      expect((await infoWith(NAME, {}, system)).problem).toMatch(/got Q8_0, which has tensors of the type IQ2_XXS/);
    });

    test('also from the cache', async () => {
      hub.add(NAME, { [MIXED]: file(IQ2_XXS) });
      await pull();
      hub.requests.length = 0;
      expect((await infoWith(NAME, {}, system)).problem).toMatch(/IQ2_XXS/);
      expect(asked()).toEqual([]);
    });

    test('takes types in layers that a load leaves out', async () => {
      hub.add(NAME, { [MIXED]: file(IQ2_XXS, 'blk.1.extra.weight') });
      expect((await infoWith(NAME, {}, system)).problem).toBeNull();
    });

    test('says that an architecture cannot be loaded', async () => {
      const metadata = changedMetadata({ 'general.architecture': { string: 'mamba\u001b' } });
      hub.add(NAME, { [MIXED]: ggufBytes({ metadata, tensors: tinyGgufTensors() }) });
      expect((await infoWith(NAME, {}, system)).problem).toMatch(
        /^tiny-UD-Q4_K_XL\.gguf: general\.architecture: expected one of the architectures .* got "mamba[^\p{Cc}]*"$/u,
      );
    });

    test('says that a file is no GGUF file', async () => {
      hub.add(NAME, { [MIXED]: 'a text that is longer than the header' });
      expect((await infoWith(NAME, {}, system)).problem).toMatch(/expected a GGUF file, which starts with GGUF/);
    });

    test('of a gated model leaves the error to the download', async () => {
      hub.add(NAME, { [MIXED]: file(IQ2_XXS) }, { isGated: true });
      expect((await infoWith(NAME, {}, system)).problem).toBeNull();
    });
  });
});

describe('a mirror', () => {
  test('without sizes and hashes is asked for each file, and the description says what is not checked', async () => {
    hub.add(NAME, FILES, { hasHashes: false });
    const info = await infoWith(NAME, {}, system);
    expect(info.uncheckedFiles.sort()).toEqual(Object.keys(FILES).sort());
    expect(info.totalBytes).toBe(Object.values(FILES).reduce((sum, { length }) => sum + length, 0));
    const { path } = await pull();
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
    expect(hub.requests.filter(({ method }) => method === 'HEAD').length).toBe(2 * Object.keys(FILES).length);
  });

  test('without hashes in the list only is checked by the hashes in the headers', async () => {
    hub.add(NAME, FILES, {
      patchList: ({ siblings, ...reply }) => ({
        ...reply,
        siblings: siblings.map(({ rfilename }: any) => ({ rfilename })),
      }),
    });
    expect((await infoWith(NAME, {}, system)).uncheckedFiles).toEqual([]);
    hub.fail('model.safetensors', {}, { isCorrupt: true }, { isCorrupt: true });
    await expect(pull()).rejects.toMatchObject(
      refusal('download_failed', `expected content with the hash ${sha256(WEIGHTS)}, got [0-9a-f]{64}, 2 times`),
    );
    expect((await pull()).path).toContain('snapshots');
  });

  test('without hashes continues a file that was cut', async () => {
    hub.add(NAME, FILES, { hasHashes: false });
    hub.fail('model.safetensors', {}, { cutAfter: 1000 });
    const { path } = await pull();
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
    expect(hub.requests.some(({ range }) => range === 'bytes=1000-')).toBe(true);
  });
});

describe('options in place of the environment', () => {
  test('name the cache and the token, and null means no token', async () => {
    hub.add(NAME, FILES, { isGated: true });
    const folder = join(env.HF_HOME!, 'elsewhere');
    system = testSystem({ ...env, HF_TOKEN: TOKEN });
    await expect(pull({ token: null, cacheDir: folder })).rejects.toMatchObject(
      refusal('access_denied', /is gated.*Then set the option token to a token of that account/),
    );
    system = testSystem(env);
    const { path } = await pull({ token: TOKEN, cacheDir: folder });
    expect(path).toContain(join(folder, 'models--acme--tiny', 'snapshots'));
    expect(existsSync(cacheDir)).toBe(false);
    await expect(pull({ token: 'two words' })).rejects.toMatchObject(
      refusal('invalid_argument', /^token: expected a token of printable ASCII/),
    );
  });

  test('advise another folder when the disk is full', async () => {
    hub.add(NAME, FILES);
    system = testSystem(env, { freeDiskBytes: () => Promise.resolve(10) });
    await expect(pull({ cacheDir: join(env.HF_HOME!, 'x') })).rejects.toMatchObject(
      refusal('io_error', /Free space, or use a folder on another disk$/),
    );
  });
});

describe('ModelScope', () => {
  test('is asked at its own address, with its own token and cache', async () => {
    const bytes = { ...FILES };
    const seen: { url: string; authorization: string | undefined }[] = [];
    const Files = Object.entries(bytes).map(([path, content]) => ({
      Path: path,
      Type: 'blob',
      Size: content.length,
      Sha256: createHash('sha256').update(content).digest('hex'),
    }));
    system = testSystem(
      { ...env, HF_TOKEN: TOKEN, MODELSCOPE_API_TOKEN: 'ms-token' },
      {
        send: (url, { headers }) => {
          seen.push({ url: url.href, authorization: headers.Authorization });
          const name = url.pathname.split('/').at(-1)!;
          const list = JSON.stringify({ Code: 200, Data: { Files: [...Files, { Path: 'x', Type: 'tree' }] } });
          const body = name === 'files' ? Buffer.from(list) : bytes[name];
          return Promise.resolve({ status: 200, headers: {}, body: Readable.from([body]) });
        },
      },
    );
    const { path } = await pull({ hub: 'modelscope' });
    expect(path).toContain(join(env.HF_HOME!, 'modelscope', 'models--acme--tiny', 'snapshots'));
    expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
    expect(seen[0].url).toBe('https://modelscope.cn/api/v1/models/acme/tiny/repo/files?Revision=master&Recursive=true');
    expect(seen.map(({ url }) => url)).toContain('https://modelscope.cn/models/acme/tiny/resolve/master/config.json');
    expect(new Set(seen.map(({ authorization }) => authorization))).toEqual(new Set(['Bearer ms-token']));
  });
});

describe('the description of a model', () => {
  test('lists files, sizes and what is in the cache, and downloads nothing', async () => {
    hub.add(NAME, { ...FILES, ...OTHERS });
    const before = await infoWith(NAME, {}, system);
    expect(before).toMatchObject({
      repository: NAME,
      revision: 'main',
      format: 'safetensors',
      quantization: null,
      problem: null,
    });
    expect(before.downloadBytes).toBe(before.totalBytes);
    expect(before.files.map(({ path }) => path).sort()).toEqual(Object.keys(FILES).sort());
    expect(existsSync(cacheDir)).toBe(false);
    await pull();
    const after = await infoWith(NAME, {}, system);
    expect(after.downloadBytes).toBe(0);
    expect(after.files.every(({ isCached }) => isCached)).toBe(true);
  });

  test('says which quantizations fit, and which of them to take', async () => {
    hub.add(NAME, { 'a-Q8_0.gguf': 'x'.repeat(900), 'a-Q4_0.gguf': 'x'.repeat(500), 'a-Q2_K.gguf': 'x'.repeat(310) });
    const info = await infoWith(`${NAME}:Q8_0`, {}, testSystem(env, { freeMemoryBytes: () => 600 }));
    expect(info.quantizations).toEqual([
      { name: 'Q2_K', sizeBytes: 310, fits: false },
      { name: 'Q4_0', sizeBytes: 500, fits: true },
      { name: 'Q8_0', sizeBytes: 900, fits: false },
    ]);
    expect(info.fit).toMatchObject({ verdict: 'tight', suggestion: { variant: 'Q4_0' } });
    const onGpu = await infoWith(`${NAME}:Q8_0`, { engineOptions: { device: 'cuda' } }, system);
    expect([onGpu.fit, onGpu.quantizations[0].fits]).toEqual([null, null]);
  });

  test('says that a quantization cannot be loaded', async () => {
    hub.add(NAME, { 'a-Q8_0.gguf': 'eight', 'a-UD-IQ2_XXS.gguf': 'two' });
    expect(await infoWith(`${NAME}:UD-IQ2_XXS`, {}, system)).toMatchObject({
      problem: 'expected one of Q8_0, got UD-IQ2_XXS, whose tensor types cannot be loaded',
      quantizations: [
        { name: 'Q8_0', fits: true },
        { name: 'UD-IQ2_XXS', fits: null },
      ],
    });
    hub.add(NAME, { 'a-TQ1_0.gguf': 'one' });
    expect((await infoWith(NAME, {}, system)).problem).toMatch(/^expected a quantization such as Q4_K_M, got TQ1_0/);
  });

  test('needs a request, so not under HF_HUB_OFFLINE', async () => {
    env.HF_HUB_OFFLINE = '1';
    await expect(infoWith(NAME, {}, system)).rejects.toMatchObject(
      refusal('download_failed', /^HF_HUB_OFFLINE forbids/),
    );
  });
});
