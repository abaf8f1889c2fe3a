/** Deployments of models from the hub, from the request to the start of their replicas. */
import fs from 'node:fs';
import type { NewDeployment } from '../../../../server/platform/deployments/deployments';
import type { RuntimeOptions } from '../../../../server/platform/deployments/runtime-options';
import { overBackends, makeFolder } from '../../access/support';
import { GPU, type Harness, machine, openHarness, withAnn } from '../support';

const MODEL = 'acme/tiny:Q4_K_M';
const MINUTE = 60_000;

overBackends((make) => {
  let h: Harness;

  const open = async (gpus = 0) => {
    const root = fs.realpathSync(makeFolder());
    h = await openHarness(await make(withAnn), makeFolder(), machine({ dataRoots: [root], gpus }));
    h.actor = { ...h.actor, isAdmin: true };
  };
  afterEach(async () => {
    await h.close();
  });

  const deploy = async (runtime: Partial<RuntimeOptions>, more: Partial<NewDeployment> = {}) => {
    const made = await h.store.createDeployment(h.actor, { name: 'chat', runtime, ...more });
    await step(made.id);
    return made;
  };
  const step = async (id: string) => {
    await h.controller.reconcile(id);
    await h.settle();
  };
  const version = (id: string, number = 1) => h.store.getVersion(h.actor, id, number);
  const sources = () => h.store.listDataSources(h.actor);
  /** Does what the HubPuller does. */
  const finishDownload = async () => {
    const job = (await h.store.takePull([]))!;
    fs.mkdirSync(job.folder, { recursive: true });
    await h.store.finishPull(job);
    await h.controller.capacityFreed();
    await h.settle();
    return job;
  };
  const failDownload = async (message: string) => {
    await h.store.failPull((await h.store.takePull([]))!, { code: 'access_denied', message });
    await h.controller.capacityFreed();
    await h.settle();
  };
  const args = () => [...h.world.running.values()].map(({ spec }) => spec.runtimeArgs);
  const refused = (message: RegExp) => ({
    code: 'invalid_argument',
    message: expect.stringMatching(message) as string,
  });

  test('downloads a gated model with the token of the request, which no response contains', async () => {
    await open();
    const made = await deploy({ model: MODEL }, { hub_token: 'hf_sealed' });
    expect(JSON.stringify([made, await version(made.id), await sources()])).not.toContain('hf_sealed');
    expect((await finishDownload()).token).toBe('hf_sealed');
  });

  test('a download that failed starts again with the token of the next version', async () => {
    await open();
    const made = await deploy({ model: MODEL });
    await failDownload('gated');
    await h.store.createVersion(h.actor, made.id, { hub_token: 'hf_later' });
    await step(made.id);
    expect(await h.store.takePull([])).toMatchObject({ token: 'hf_later' });
    expect(await sources()).toHaveLength(1);
  });

  test('a change of the token is in the audit log, without the token', async () => {
    await open();
    const made = await deploy({ model: MODEL });
    const newest = async () =>
      (await h.store.readAudit({ limit: 20 }))
        .filter(({ action }) => action.startsWith('source.'))
        .map(({ action }) => action);
    await h.store.createVersion(h.actor, made.id, { hub_token: 'hf_later' });
    expect(await newest()).toEqual(['source.token_set', 'source.created']);
    await failDownload('gated');
    await h.store.createVersion(h.actor, made.id, { hub_token: null });
    expect(await newest()).toEqual(expect.arrayContaining(['source.pulled', 'source.token_removed']));
    expect(JSON.stringify(await h.store.readAudit({ limit: 20 }))).not.toContain('hf_later');
  });

  test('refuses a token that is none, by the name of the field', async () => {
    await open();
    const made = await deploy({ model: MODEL }, { hub_token: 'hf_kept' });
    for (const token of ['', ' ', 'a b'])
      await expect(h.store.createVersion(h.actor, made.id, { hub_token: token })).rejects.toMatchObject(
        refused(/^hub_token: expected a token/),
      );
    expect((await finishDownload()).token).toBe('hf_kept');
    await expect(deploy({ model: 'acme/other' }, { name: 'other', hub_token: ' ' })).rejects.toMatchObject(
      refused(/^hub_token: /),
    );
  });

  test('refuses a token without a model from the hub', async () => {
    await open();
    await expect(deploy({ model: 'demo' }, { hub_token: 'hf_x' })).rejects.toMatchObject(refused(/^hub_token: /));
  });

  test('waits for the download, however long, and serves the folder under the name of the repository', async () => {
    await open();
    const { id } = await deploy({ model: `hf:${MODEL}` });
    expect(await version(id)).toMatchObject({
      state: 'queued',
      reason: { code: 'downloading_model', message: expect.stringContaining(`${MODEL} is downloaded into`) as string },
      spec: {
        runtime: { model: `hf:${MODEL}` },
        bindings: [{ mount: 'input0', source_name: MODEL, mode: 'ro' }],
      },
    });
    expect(await h.store.getDeployment(h.actor, id)).toMatchObject({ state: 'pending' });
    // The limit of the queue is 30 minutes.
    await h.advance(120 * MINUTE);
    expect((await version(id)).state).toBe('queued');
    expect(args()).toEqual([]);
    await finishDownload();
    expect(args()).toEqual([['/platform/input/input0', '--served-model-name', 'acme/tiny', '--device', 'cpu']]);
    expect(await version(id)).toMatchObject({ state: 'running', reason: null });
  });

  test('continues to wait after kill -9 of the service', async () => {
    await open();
    const { id } = await deploy({ model: MODEL });
    await h.store.takePull([]);
    await h.killAndRestart();
    expect((await version(id)).reason?.code).toBe('downloading_model');
    await finishDownload();
    expect((await version(id)).state).toBe('running');
  });

  test('fails with the reason of the download, and a new start downloads again', async () => {
    await open();
    const { id } = await deploy({ model: MODEL });
    await failDownload('acme/tiny is gated');
    expect(await version(id)).toMatchObject({
      state: 'error',
      reason: { code: 'model_download_failed', message: `${MODEL}: acme/tiny is gated` },
    });
    expect((await h.store.getDeployment(h.actor, id)).state).toBe('failed');
    await h.store.applyIntent(h.actor, id, 'start');
    await step(id);
    expect((await version(id)).reason?.code).toBe('downloading_model');
    expect((await sources())[0].pull).toMatchObject({ state: 'pending', error: null });
    await finishDownload();
    expect((await version(id)).state).toBe('running');
  });

  test('ends the wait when the download is cancelled or the deployment is paused', async () => {
    await open();
    const { id } = await deploy({ model: MODEL });
    await h.store.applyIntent(h.actor, id, 'stop');
    await step(id);
    expect((await version(id)).state).toBe('stopped');
    await h.store.applyIntent(h.actor, id, 'start');
    await step(id);
    await h.store.cancelPull(h.actor, (await sources())[0].id);
    await step(id);
    expect((await version(id)).reason).toMatchObject({
      code: 'model_download_failed',
      message: expect.stringContaining('the download was cancelled') as string,
    });
  });

  test('uses a data source that has the model, and makes one for another revision', async () => {
    await open();
    await deploy({ model: MODEL });
    await finishDownload();
    const second = await deploy({ model: MODEL }, { name: 'second' });
    expect((await version(second.id)).state).toBe('running');
    expect(await sources()).toHaveLength(1);
    const third = await deploy({ model: 'acme/tiny@v1:Q4_K_M' }, { name: 'third' });
    expect((await version(third.id)).state).toBe('queued');
    expect((await sources()).map(({ name }) => name)).toEqual([MODEL, 'acme/tiny@v1:Q4_K_M']);
    const other = await deploy({ model: MODEL, hub: 'modelscope' }, { name: 'fourth' });
    expect((await version(other.id)).spec.bindings[0].source_name).toBe(`${MODEL} (2)`);
  });

  test('does not serve the old model of a data source while another one is downloaded into it', async () => {
    await open();
    const { id: sourceId } = await h.store.createPull(h.actor, { name: 'tiny', model: 'acme/old' });
    await finishDownload();
    await h.store.pullAgain(h.actor, sourceId, { model: MODEL });
    const { id } = await deploy({ model: MODEL });
    expect((await version(id)).spec.bindings).toMatchObject([{ source_name: 'tiny' }]);
    expect([(await version(id)).reason?.code, args()]).toEqual(['downloading_model', []]);
    await failDownload('the hub is down');
    expect((await version(id)).reason?.code).toBe('model_download_failed');
    const second = await deploy({ model: MODEL }, { name: 'second' });
    expect((await version(second.id)).reason?.code).toBe('downloading_model');
    await finishDownload();
    expect((await version(second.id)).state).toBe('running');
  });

  test('does not start a container on a model that is not complete', async () => {
    await open();
    const { id: sourceId } = await h.store.createPull(h.actor, { name: 'tiny', model: 'acme/old' });
    await finishDownload();
    await h.store.pullAgain(h.actor, sourceId, {});
    const bindings = [{ mount: 'input0' as const, source_id: sourceId }];
    const { id } = await h.store.createContainer(h.actor, { name: 'lab', bindings, start_command: 'true' });
    await h.store.commandContainer(h.actor, id, 'start');
    await step(id);
    expect(h.world.running.size).toBe(0);
    expect(await h.store.getContainer(h.actor, id)).toMatchObject({
      reason: expect.stringContaining('input0: its model is not complete') as string,
    });
  });

  test('fails when one of two downloads has failed, although the other one runs', async () => {
    await open();
    const { id: sourceId } = await h.store.createPull(h.actor, { name: 'other', model: 'acme/other' });
    const bindings = [{ mount: 'input0' as const, source_id: sourceId }];
    const { id } = await deploy({ model: MODEL }, { bindings });
    expect((await version(id)).spec.bindings).toHaveLength(2);
    await h.store.cancelPull(h.actor, sourceId);
    await step(id);
    expect((await version(id)).reason).toMatchObject({
      code: 'model_download_failed',
      message: 'acme/other: the download was cancelled',
    });
  });

  test('keeps its binding in later versions, and drops it with the model', async () => {
    await open();
    const { id } = await deploy({ model: MODEL });
    await finishDownload();
    const change = async (number: number, request: Parameters<Harness['store']['createVersion']>[2]) => {
      await h.store.createVersion(h.actor, id, request);
      await step(id);
      return version(id, number);
    };
    const mounts = ({ spec }: Awaited<ReturnType<typeof version>>) =>
      spec.bindings.map(({ mount, source_name: name }) => `${mount} ${name}`);
    expect(mounts(await change(2, { runtime: { quantization: 'int8' } }))).toEqual([`input0 ${MODEL}`]);
    expect(args().at(-1)).toEqual(expect.arrayContaining(['--quantization', 'int8']));
    const [source] = await sources();
    // A request with all bindings may name that of the model.
    const bindings = [{ mount: 'input3' as const, source_id: source.id }];
    expect(mounts(await change(3, { bindings }))).toEqual([`input3 ${MODEL}`]);
    expect(args().at(-1)![0]).toBe('/platform/input/input3');
    expect(mounts(await change(4, { runtime: { model: 'demo' } }))).toEqual([]);
    expect(args().at(-1)).toEqual(['demo', '--quantization', 'int8', '--device', 'cpu']);
    expect(mounts(await change(5, { runtime: { model: MODEL, hub: 'modelscope' } }))).toEqual([`input0 ${MODEL} (2)`]);
    await finishDownload();
    expect((await change(6, { runtime: { quantization: 'none' } })).spec.runtime.hub).toBe('modelscope');
    // Another model is that of the default hub.
    const other = await change(7, { runtime: { model: 'acme/other' } });
    expect([other.spec.runtime.hub, mounts(other)]).toEqual([null, ['input0 acme/other']]);
    await finishDownload();
    expect((await change(8, { runtime: { model: 'demo' } })).spec.runtime.hub).toBeNull();
  });

  test('passes the options of the runtime on, and refuses those that cannot work', async () => {
    await open();
    await deploy({
      max_model_len: 128,
      dtype: 'bf16',
      quantization: 'int4',
      kv_cache_dtype: 'f16',
      kv_cache_memory_mb: 64,
      max_num_seqs: 4,
      max_num_batched_tokens: 256,
      chat_template: '{{ messages }}',
      tool_call_parser: 'hermes',
      reasoning_parser: 'none',
      prefix_caching: false,
    });
    expect(args()[0].join(' ')).toBe(
      'demo --max-model-len 128 --dtype bf16 --quantization int4 --kv-cache-dtype f16 --max-num-seqs 4 ' +
        '--max-num-batched-tokens 256 --chat-template {{ messages }} --tool-call-parser hermes --reasoning-parser none ' +
        '--kv-cache-memory 64M --no-enable-prefix-caching --device cpu',
    );
    const attempt = (runtime: Partial<RuntimeOptions>, more: Partial<NewDeployment> = {}) =>
      h.store.createDeployment(h.actor, { name: 'bad', runtime, ...more });
    await expect(attempt({ model: 'not a name' })).rejects.toMatchObject(
      refused(/runtime\.model: expected demo, a name/),
    );
    await expect(attempt({ model: 'acme/../tiny' })).rejects.toMatchObject(refused(/runtime\.model/));
    await expect(attempt({ hub: 'modelscope' })).rejects.toMatchObject(refused(/runtime\.hub: expected null/));
    await expect(attempt({ kv_cache_dtype: 'fp8' })).rejects.toMatchObject(refused(/kv_cache_dtype: .* on the CPU/));
    await expect(attempt({ chat_template: '/etc/passwd' })).rejects.toMatchObject(
      refused(/chat_template: expected the text/),
    );
    await expect(attempt({ prefix_caching: false, prefix_cache_disk_mb: 64 })).rejects.toMatchObject(
      refused(/prefix_cache_disk_mb: expected null with prefix_caching false, got 64/),
    );
    await expect(
      h.store.createContainer(h.actor, { name: 'lab', runtime: { prefix_cache_disk_mb: 64 } }),
    ).rejects.toMatchObject(refused(/prefix_cache_disk_mb: expected null: only deployments/));
    await expect(attempt({ tool_call_parser: 'unknown' })).rejects.toMatchObject(
      refused(/runtime\.tool_call_parser: expected one of auto, .*hermes.*, got "unknown"/),
    );
    await expect(h.store.createContainer(h.actor, { name: 'lab', runtime: { model: MODEL } })).rejects.toMatchObject(
      refused(/a training container cannot run a model from the hub/),
    );
  });

  test('refuses options of the CPU on a GPU', async () => {
    await open(1);
    expect(GPU(0)).toBeDefined();
    const attempt = (runtime: Partial<RuntimeOptions>) =>
      h.store.createDeployment(h.actor, { name: 'bad', runtime, compute: { gpu_count: 1 } });
    await expect(attempt({ dtype: 'f32' })).rejects.toMatchObject(
      refused(/dtype: expected f16, bf16 or null on a GPU/),
    );
    await expect(attempt({ kv_cache_dtype: 'f16' })).rejects.toMatchObject(
      refused(/kv_cache_dtype: expected fp8 or null/),
    );
    await expect(attempt({ prefix_cache_disk_mb: 64 })).rejects.toMatchObject(
      refused(/prefix_cache_disk_mb: expected null on a GPU, got 64/),
    );
    await expect(attempt({ kv_cache_dtype: 'int8' })).rejects.toMatchObject(
      refused(/kv_cache_dtype: expected fp8 or null on a GPU, got int8/),
    );
  });

  test('of users without a disk quota are refused before anything is made', async () => {
    await open();
    h.actor = { ...h.actor, isAdmin: false };
    await expect(deploy({ model: MODEL })).rejects.toMatchObject({
      code: 'forbidden',
      message: expect.stringContaining('an owner without a disk quota') as string,
    });
    expect(await sources()).toEqual([]);
    expect((await h.store.pageDeployments(h.actor, { limit: 10 })).data).toEqual([]);
  });
});
