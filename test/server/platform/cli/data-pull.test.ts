import fs from 'node:fs';
import path from 'node:path';
import { HubServer, TOKEN } from '../../../fakes/hub-server';
import { tinyModel } from '../../../fakes/tiny-model';
import { startService, type TestService } from './support';

const NAME = 'acme/tiny';
const folder = tinyModel();
const FILES = Object.fromEntries(
  ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'model.safetensors'].map((name) => [
    name,
    fs.readFileSync(path.join(folder, name)),
  ]),
);

let service: TestService;
let hub: HubServer;
const run = (...line: string[]) => service.run(['data', ...line]);

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  hub = new HubServer();
  await hub.start();
  process.env.HF_ENDPOINT = hub.url;
  service = await startService();
});
afterAll(async () => {
  await service.close();
  await hub.close();
  delete process.env.HF_ENDPOINT;
  expect(hub.violations).toEqual([]);
});
beforeEach(() => {
  hub.add(NAME, FILES);
});

test('downloads a model, shows its progress and whether it fits', async () => {
  const { code, out, err } = await run('pull', 'tiny', NAME, '--wait', '--description', 'small');
  expect([code, out]).toEqual([0, expect.stringMatching(/^tiny \(src_\w+\): complete, \d+ MiB\n$/)]);
  expect(err).toMatch(/^acme\/tiny: safetensors, 4 files, \d+ MiB \(commit [0-9a-f]{12}\)\nfits: needs about \d+ MiB/);
  expect(err).toMatch(/ s {2}complete, \d+ MiB\n$/);
  const shown = await run('get', 'tiny');
  expect(shown.out).toMatch(/^model +acme\/tiny$/m);
  expect(shown.out).toMatch(/^download +complete, \d+ MiB$/m);
  expect(shown.out).not.toMatch(/^hub token/m);
});

test('shows what it would download, and downloads nothing', async () => {
  hub.requests.length = 0;
  const { code, out, err } = await run('pull', 'nothing', NAME, '--check', '--max-model-len', '64');
  expect([code, err]).toEqual([0, '']);
  expect(out).toMatch(/of memory for 64 tokens; the machine has/);
  expect(hub.downloads()).toEqual([`/${NAME}/resolve/${hub.repositories.get(NAME)!.commit}/config.json`]);
  expect((await run('list')).out).not.toContain('nothing');
  const json = JSON.parse((await run('pull', 'nothing', NAME, '--check', '--json')).out) as { fit: object };
  expect(json.fit).toMatchObject({ verdict: 'fits', suggestion: null });
});

test('pulls again without a name, and another model into the same data source', async () => {
  await run('pull', 'again', NAME, '--wait');
  const { commit } = hub.add(NAME, { ...FILES, 'chat_template.jinja': 'new' });
  const { code, err } = await run('pull', 'again', '--wait');
  expect([code, err]).toEqual([0, expect.stringContaining(`commit ${commit.slice(0, 12)}`)]);
  hub.add('acme/second', FILES);
  const second = await run('pull', 'again', 'acme/second', '--wait', '--json');
  expect(JSON.parse(second.out)).toMatchObject({ pull: { model: 'acme/second', state: 'done' } });
});

test('explains a gated model, and takes the token from a variable that is never shown', async () => {
  hub.add('acme/gated', FILES, { isGated: true });
  const line = ['data', 'pull', 'gated', 'acme/gated', '--wait'];
  const refused = await service.run(line);
  expect([refused.code, refused.err]).toEqual([
    2,
    expect.stringMatching(
      /acme\/gated is gated: its owner grants access\. Request it at http.*Then set the option token/,
    ),
  ]);
  const unset = await service.run([...line, '--token-secret', 'MY_TOKEN']);
  expect(unset.err).toContain("--token-secret: expected the name of a variable in this command's environment");
  const { code, out, err } = await service.run([...line, '--token-secret', 'MY_TOKEN'], { MY_TOKEN: TOKEN });
  expect(code).toBe(0);
  expect(out + err + (await run('get', 'gated', '--json')).out).not.toContain(TOKEN);
  expect((await run('get', 'gated')).out).toMatch(/^hub token +set$/m);
  // The sealed token is used again.
  hub.add('acme/gated', { ...FILES, 'chat_template.jinja': 'x' }, { isGated: true });
  expect((await service.run(['data', 'pull', 'gated', '--wait'])).code).toBe(0);
});

test('says which files are not checked', async () => {
  hub.add('acme/mirrored', FILES, { hasHashes: false });
  expect((await run('pull', 'mirrored', 'acme/mirrored', '--check')).out).toMatch(
    /^warning: the mirror gives no hashes, so the content of these files is not checked, only their size: config\.json, /m,
  );
});

test('says which model is missing, and that a name is none', async () => {
  expect(await run('pull', 'x', 'acme/none')).toMatchObject({
    code: 2,
    err: expect.stringContaining('there is no model acme/none at') as string,
  });
  expect(await run('pull', 'x', 'a/b/c')).toMatchObject({
    code: 2,
    err: expect.stringContaining('model: expected a name on the hub, ORG/NAME') as string,
  });
  expect((await run('pull', 'x')).err).toContain('expected the name of a model, ORG/NAME');
});

test('can be cancelled, and the wait ends with what to do', async () => {
  let release = () => {};
  hub.fail('model.safetensors', { hold: new Promise((done) => (release = done)) });
  const waiting = run('pull', 'slow', NAME, '--wait');
  for (let state = ''; state !== 'running';) {
    const sources = await service.client.dataSources.list();
    state = sources.find(({ name }) => name === 'slow')?.pull?.state ?? '';
  }
  const cancelled = await run('pull', 'slow', '--cancel');
  release();
  expect(cancelled.out).toMatch(/^slow \(src_\w+\): cancelled/);
  const { code, err } = await waiting;
  expect([code, err]).toEqual([
    1,
    expect.stringContaining('The next pull continues the download: capstan data pull slow'),
  ]);
  expect((await run('pull', 'slow', '--cancel')).err).toContain('no model is being downloaded');
});

test('deletes the model with the data source', async () => {
  await run('pull', 'gone', NAME, '--wait');
  const { path: pulled } = JSON.parse((await run('get', 'gone', '--json')).out) as { path: string };
  expect(fs.existsSync(pulled)).toBe(true);
  expect((await run('delete', 'gone')).err).toContain('its model is deleted from the disk');
  expect((await run('delete', 'gone', '--yes')).out).toBe('deleted gone\n');
  expect(fs.existsSync(pulled)).toBe(false);
});

describe('a deployment', () => {
  const deploy = (...line: string[]) => service.run(['deploy', ...line, '--json']);
  const specOf = async (name: string) => {
    const found = (await service.client.deployments.list()).find((deployment) => deployment.name === name)!;
    return (await service.client.versions.get(found.id, 1)).spec;
  };

  test('names a model from the hub, unless a data source has the name', async () => {
    expect((await deploy('on-hub', '--model', 'acme/tiny:Q4_0', '--hub', 'modelscope')).code).toBe(0);
    expect(await specOf('on-hub')).toMatchObject({
      runtime: { model: 'acme/tiny:Q4_0', hub: 'modelscope' },
      bindings: [{ mount: 'input0', source_name: 'acme/tiny:Q4_0' }],
    });
    await run('pull', NAME, NAME, '--wait');
    expect((await deploy('by-source', '--model', NAME)).code).toBe(0);
    expect((await specOf('by-source')).runtime.model).toBe('/platform/input/input0');
    expect((await deploy('forced', '--model', `hf:${NAME}`)).code).toBe(0);
    expect(await specOf('forced')).toMatchObject({
      runtime: { model: `hf:${NAME}` },
      bindings: [{ mount: 'input0' }],
    });
    expect((await service.run(['versions', 'get', 'on-hub', '1'])).out).toMatch(
      /^runs +capstan serve acme\/tiny:Q4_0$/m,
    );
  });

  test('takes the flags of capstan serve for its model', async () => {
    const template = path.join(folder, 'own.jinja');
    fs.writeFileSync(template, '{{ messages }}');
    const flags = {
      '--quantization': 'int8',
      '--dtype': 'bf16',
      '--kv-cache-dtype': 'auto',
      '--kv-cache-memory': '1G',
      '--max-num-seqs': '8',
      '--max-num-batched-tokens': '1k',
      '--gpu-memory-utilization': '0.5',
      '--tensor-parallel-size': '2',
      '--chat-template': template,
      '--tool-call-parser': 'hermes',
      '--reasoning-parser': 'think',
    };
    const line = Object.entries(flags).flat();
    expect((await deploy('flags', ...line, '--no-enable-prefix-caching')).code).toBe(0);
    const cached = await deploy('cached', '--prefix-cache-disk-size', '10G');
    expect([cached.code, (await specOf('cached')).runtime.prefix_cache_disk_mb]).toEqual([0, 10_240]);
    const without = await service.run(['versions', 'create', 'cached', '--prefix-cache-disk-size', 'none']);
    expect(without.err).toBe('');
    expect((await specOf('flags')).runtime).toMatchObject({
      quantization: 'int8',
      dtype: 'bf16',
      kv_cache_dtype: null,
      kv_cache_memory_mb: 1024,
      max_num_seqs: 8,
      max_num_batched_tokens: 1000,
      gpu_memory_utilization: 0.5,
      tensor_parallel_size: 2,
      chat_template: '{{ messages }}',
      tool_call_parser: 'hermes',
      reasoning_parser: 'think',
      prefix_caching: false,
    });
  });

  test.each([
    [['--quantization', 'int3'], "--quantization: expected none, int8 or int4, got 'int3'"],
    [['--gpu-memory-utilization', '2'], '--gpu-memory-utilization: expected a number above 0 and at most 1'],
    [['--chat-template', '/no/such'], "--chat-template: expected a readable file, got '/no/such' (ENOENT)"],
    [['--tool-call-parser', 'unknown'], 'runtime.tool_call_parser: expected one of auto, '],
  ])('refuses %j', async (line, message) => {
    expect(await deploy('bad', ...line)).toMatchObject({ code: 2, err: expect.stringContaining(message) as string });
  });
});
