import fs from 'node:fs';
import path from 'node:path';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import type { ServiceActor } from '../../../../server/platform/accounts/actor';
import { HubPuller, type HubPullerOptions } from '../../../../server/platform/deployments/hub-puller';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { pullWith } from '../../../../ts/hub/models';
import type { HubSystem } from '../../../../ts/hub/system';
import { HubServer, sha256, TOKEN } from '../../../fakes/hub-server';
import { closeTestSystems, testSystem } from '../../../fakes/hub-system';
import { tinyModel } from '../../../fakes/tiny-model';
import { makeFolder, overBackends, removeFolders } from '../../access/support';
import { actorOf, annOf, machine, STORE_OPTIONS, withAnn } from '../support';

const NAME = 'acme/tiny';
const model = tinyModel();
const TEXTS = ['config.json', 'generation_config.json', 'tokenizer.json', 'tokenizer_config.json'];
const FILES = Object.fromEntries(
  [...TEXTS, 'model.safetensors'].map((name) => [name, fs.readFileSync(path.join(model, name))]),
);
const WEIGHTS = FILES['model.safetensors'];
const TOTAL = Object.values(FILES).reduce((sum, { length }) => sum + length, 0);

beforeAll(() => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
});
afterAll(() => removeFolders());

overBackends((make) => {
  let location: DatabaseLocation;
  let root: string;
  let store: ServiceStore;
  let hub: HubServer;
  let puller: HubPuller;
  let admin: ServiceActor;
  let ann: ServiceActor;
  let ended: string[];
  let logged: string[];

  const openStore = () =>
    openServiceStore({
      location,
      node: 'gw_test',
      ...STORE_OPTIONS,
      machine: machine({ dataRoots: [root] }),
    });
  const openPuller = (parts: Partial<HubSystem> = {}, more: Partial<HubPullerOptions> = {}) => {
    const system = testSystem({ HF_ENDPOINT: hub.url, HF_TOKEN: 'hf_of_the_service' }, parts);
    const write = (fields: object, message: string) => void logged.push(JSON.stringify(fields) + message);
    return new HubPuller({
      store,
      dataRoots: [root],
      node: 'gw_test',
      log: { info: write, warn: write },
      onEnd: (id) => void ended.push(id),
      pull: ({ model: name, ...options }, { onListing, ...hooks }) =>
        pullWith(name, { ...options, ...hooks, onDownload: onListing }, system),
      saveMs: 2,
      ...more,
    });
  };
  const start = (more: object = {}, actor = admin) => store.createPull(actor, { name: 'tiny', model: NAME, ...more });
  const pulled = async (id: string) => {
    puller.notify();
    await puller.settled();
    return (await store.getDataSource(admin, id)).pull!;
  };
  const folderOf = (id: string) => path.join(root, 'hub-gw_test', id);
  const until = async (isTrue: () => boolean | Promise<boolean>) => {
    while (!(await isTrue())) await new Promise(setImmediate);
  };
  /** A download that sends half of a file, and the rest after `release`. */
  const held = (file = 'model.safetensors') => {
    let release = () => {};
    hub.fail(file, { hold: new Promise((done) => (release = done)) });
    return () => release();
  };

  /** States of all pulls, by the names of their data sources. */
  const states = async () => (await store.listDataSources(admin)).map(({ pull }) => pull!.state);
  const takeOf = async (sourceId: string) => {
    const taken: string[] = [];
    for (;;) {
      const job = (await store.takePull(taken))!;
      if (job.sourceId === sourceId) return job;
      taken.push(job.sourceId);
    }
  };
  const stop = async (id: string, release: () => void) => {
    await store.cancelPull(admin, id);
    puller.cancel(id);
    await puller.settled();
    release();
  };

  beforeEach(async () => {
    hub = new HubServer();
    await hub.start();
    root = fs.realpathSync(makeFolder());
    [ended, logged] = [[], []];
    location = await make(withAnn);
    ann = actorOf(annOf(location));
    store = await openStore();
    const account = await store.createAccount({
      email: 'root@example.com',
      name: 'R',
      password: 'correct horse battery',
    });
    admin = actorOf(account.userId, { isAdmin: true });
    puller = openPuller();
    await puller.start();
  });
  afterEach(async () => {
    await puller.close();
    await store.close();
    closeTestSystems();
    await hub.close();
    expect(hub.violations).toEqual([]);
    for (const line of logged) expect(line).not.toContain(TOKEN);
  });

  test('fill a new data source with plain files that every user can read', async () => {
    const { commit } = hub.add(NAME, FILES);
    const source = await start();
    expect(source).toMatchObject({ type: 'model', size_bytes: null, pull: { state: 'pending', model: NAME } });
    expect(await pulled(source.id)).toMatchObject({
      state: 'done',
      is_filled: true,
      error: null,
      note: null,
      commit,
      format: 'safetensors',
      done_bytes: TOTAL,
      total_bytes: TOTAL,
      has_token: false,
      ended_at: expect.any(String),
    });
    const folder = folderOf(source.id);
    expect(fs.readdirSync(folder).sort()).toEqual(Object.keys(FILES).sort());
    for (const [name, bytes] of Object.entries(FILES)) {
      expect(fs.readFileSync(path.join(folder, name)).equals(bytes)).toBe(true);
      const info = fs.lstatSync(path.join(folder, name));
      expect([info.isFile(), info.mode & 0o777]).toEqual([true, 0o644]);
    }
    expect([fs.statSync(folder).mode & 0o777, fs.statSync(path.dirname(folder)).mode & 0o777]).toEqual([0o755, 0o711]);
    expect(fs.readdirSync(path.dirname(folder))).toEqual([source.id]);
    expect(await store.findUnmeasured()).toMatchObject({ id: source.id, path: folder });
    expect(ended).toEqual([source.id]);
  });

  test('take the chosen GGUF file alone, so that the folder can be served', async () => {
    hub.add(NAME, { ...FILES, 'deep/a-Q8_0.gguf': 'eight', 'a-Q4_K_M.gguf': 'four' });
    const source = await start({ model: `hf:${NAME}:Q8_0` });
    expect(await pulled(source.id)).toMatchObject({ state: 'done', model: `${NAME}:Q8_0`, quantization: 'Q8_0' });
    expect(fs.readdirSync(folderOf(source.id))).toEqual(['a-Q8_0.gguf']);
  });

  test('show progress and speed, and can be cancelled and continued', async () => {
    hub.add(NAME, FILES);
    const release = held();
    const { id } = await start();
    puller.notify();
    const progress = async () => (await store.getDataSource(admin, id)).pull!;
    await until(async () => (await progress()).done_bytes > WEIGHTS.length / 2);
    expect(await progress()).toMatchObject({ state: 'running', total_bytes: TOTAL });
    await expect(store.pullAgain(admin, id, {})).rejects.toMatchObject({ code: 'busy' });
    expect((await store.cancelPull(admin, id)).pull).toMatchObject({ state: 'cancelled', bytes_per_second: null });
    puller.cancel(id);
    await puller.settled();
    release();
    expect(fs.existsSync(folderOf(id))).toBe(false);
    expect(await store.findUnmeasured()).toBeUndefined();
    await expect(store.cancelPull(admin, id)).rejects.toMatchObject({ code: 'wrong_state' });
    expect((await store.pullAgain(admin, id, {})).pull).toMatchObject({ state: 'pending', total_bytes: TOTAL });
    expect(await pulled(id)).toMatchObject({ state: 'done' });
    expect(hub.requests.some(({ range }) => range !== undefined)).toBe(true);
    expect(ended).toEqual([id, id]);
  });

  test('continue after a restart of the service, without the bytes that are there', async () => {
    hub.add(NAME, FILES);
    const release = held();
    const { id } = await start({ token: TOKEN });
    puller.notify();
    await until(async () => (await store.getDataSource(admin, id)).pull!.done_bytes > WEIGHTS.length / 2);
    await puller.close();
    release();
    expect((await store.getDataSource(admin, id)).pull!.state).toBe('running');
    await store.close();
    store = await openStore();
    puller = openPuller();
    await puller.start();
    await puller.settled();
    expect((await store.getDataSource(admin, id)).pull).toMatchObject({ state: 'done', has_token: true });
    expect(hub.requests.some(({ range }) => range?.startsWith('bytes='))).toBe(true);
    expect(ended).toEqual([id]);
  });

  test('survive cut connections, and refuse wrong bytes with a reason', async () => {
    hub.add(NAME, FILES);
    hub.fail('model.safetensors', { cutAfter: 500 }, { status: 503 }, { isCorrupt: true }, { isCorrupt: true });
    const { id } = await start();
    expect(await pulled(id)).toMatchObject({
      state: 'failed',
      is_filled: false,
      error: {
        code: 'download_failed',
        message: expect.stringContaining(`expected content with the hash ${sha256(WEIGHTS)}`) as string,
      },
    });
    expect(logged.at(-1)).toContain('cannot download a model');
    await store.pullAgain(admin, id, {});
    expect(await pulled(id)).toMatchObject({ state: 'done', error: null });
  });

  test('keep the error of a full disk, without paths of the machine', async () => {
    hub.add(NAME, FILES);
    const full = Object.assign(new Error('ENOSPC: no space left on device, write'), {
      code: 'ENOSPC',
      syscall: 'write',
    });
    await puller.close();
    puller = openPuller({ write: () => Promise.reject(full) });
    await puller.start();
    const { id } = await start();
    const { state, error } = await pulled(id);
    expect([state, error?.code]).toEqual(['failed', 'io_error']);
    expect(error?.message).toMatch(/to the folder of the data source\S*: the disk is full. It needs \d+ more bytes/);
    expect(error?.message).not.toContain(root);
    await puller.close();
    puller = openPuller({ freeDiskBytes: () => Promise.resolve(10) });
    await puller.start();
    await store.pullAgain(admin, id, {});
    expect((await pulled(id)).error?.message).toMatch(/needs \d+ more bytes in .*, and the disk has 10 bytes free/);
    await puller.close();
    puller = openPuller();
    await puller.start();
    await store.pullAgain(admin, id, {});
    expect(await pulled(id)).toMatchObject({ state: 'done' });
  });

  test('explain gated and missing models, and use the sealed token at the hub only', async () => {
    hub.add(NAME, FILES, { isGated: true });
    const { id } = await start();
    expect((await pulled(id)).error).toMatchObject({
      code: 'access_denied',
      message: expect.stringContaining('acme/tiny is gated: its owner grants access') as string,
    });
    expect((await store.pullAgain(admin, id, { token: TOKEN })).pull).toMatchObject({ has_token: true });
    const rows = JSON.stringify(await store.listDataSources(admin));
    expect(rows).not.toContain(TOKEN);
    expect(await pulled(id)).toMatchObject({ state: 'done' });
    expect(hub.requests.some(({ host }) => host === 'storage')).toBe(true);
    const missing = await start({ name: 'other', model: 'acme/none' });
    expect((await pulled(missing.id)).error).toMatchObject({
      code: 'model_not_found',
      message: expect.stringContaining('there is no model acme/none') as string,
    });
    expect((await store.pullAgain(admin, id, { token: null })).pull).toMatchObject({ has_token: false });
  });

  test('with a token of a lost key fail, and the others continue', async () => {
    hub.add(NAME, FILES);
    const { id } = await start({ token: TOKEN });
    const other = await start({ name: 'other' });
    await store.close();
    store = await openServiceStore({
      location,
      node: 'gw_test',
      ...STORE_OPTIONS,
      secretKey: new Uint8Array(32).fill(9),
      machine: machine({ dataRoots: [root] }),
    });
    puller = openPuller();
    await puller.start();
    expect((await pulled(id)).error).toMatchObject({
      code: 'access_denied',
      message: expect.stringMatching(/cannot decrypt a stored secret.*Pull again with the token$/) as string,
    });
    expect((await store.getDataSource(admin, other.id)).pull).toMatchObject({ state: 'done' });
    expect(ended.sort()).toEqual([id, other.id].sort());
    await store.pullAgain(admin, id, { token: TOKEN });
    expect(await pulled(id)).toMatchObject({ state: 'done' });
  });

  test('of two data sources run side by side, and a third waits', async () => {
    hub.add(NAME, FILES);
    const releases = [held(), held()];
    const ids: string[] = [];
    for (const name of ['one', 'two', 'three']) ids.push((await start({ name })).id);
    puller.notify();
    const inOrder = async () => Promise.all(ids.map(async (id) => (await store.getDataSource(admin, id)).pull!.state));
    await until(async () => (await states()).filter((state) => state === 'running').length === 2);
    expect(await inOrder()).toEqual(['running', 'running', 'pending']);
    for (const release of releases) release();
    await until(async () => (await states()).every((state) => state === 'done'));
  });

  test('replace a model only while nothing uses it, and leave no file of the old one', async () => {
    hub.add(NAME, { ...FILES, 'chat_template.jinja': 'old' });
    const { id } = await start();
    await pulled(id);
    const inUse = await store.createDeployment(admin, { name: 'chat', bindings: [{ mount: 'input0', source_id: id }] });
    await expect(store.pullAgain(admin, id, {})).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('cannot replace the model: delete the container or version') as string,
    });
    expect(inUse.id).toMatch(/^dep_/);
    const other = await start({ name: 'free' });
    await pulled(other.id);
    hub.add(NAME, FILES);
    // The old model is not served from now on.
    expect((await store.pullAgain(admin, other.id, {})).pull).toMatchObject({ is_filled: false, done_bytes: 0 });
    expect(await pulled(other.id)).toMatchObject({ state: 'done', is_filled: true });
    expect(fs.readdirSync(folderOf(other.id)).sort()).toEqual(Object.keys(FILES).sort());
    await expect(store.editDataSource(admin, other.id, { path: root })).rejects.toMatchObject({ code: 'conflict' });
  });

  test('never touch the folder of an administrator', async () => {
    fs.mkdirSync(path.join(root, 'own'));
    const { id } = await store.createDataSource(admin, { name: 'own', type: 'model', path: path.join(root, 'own') });
    await expect(store.pullAgain(admin, id, { model: NAME })).rejects.toMatchObject({ code: 'conflict' });
    expect(await store.deleteDataSource(admin, id)).toBeNull();
  });

  test('delete their folder with the data source, and that of a running download', async () => {
    hub.add(NAME, FILES);
    const release = held();
    const { id } = await start();
    puller.notify();
    await until(() => fs.existsSync(`${folderOf(id)}.part`));
    const folder = await store.deleteDataSource(admin, id);
    expect(folder).toBe(folderOf(id));
    await puller.remove(id, folder!);
    release();
    expect(fs.readdirSync(path.dirname(folder!))).toEqual([]);
  });

  test('of deleted accounts leave folders that the next start deletes', async () => {
    hub.add(NAME, FILES);
    const { id } = await start();
    await pulled(id);
    const parent = path.dirname(folderOf(id));
    for (const name of ['src_gone', 'src_gone.part', `${id}.old`]) fs.mkdirSync(path.join(parent, name));
    await puller.start();
    await puller.settled();
    expect(fs.readdirSync(parent)).toEqual([id]);
  });

  test('that wait for their turn end at once when they are cancelled', async () => {
    hub.add(NAME, FILES);
    const releases = [held(), held()];
    for (const name of ['one', 'two']) await start({ name });
    const { id } = await start({ name: 'three' });
    puller.notify();
    await until(async () => (await states()).filter((state) => state === 'running').length === 2);
    await store.cancelPull(admin, id);
    puller.cancel(id);
    expect(ended).toEqual([id]);
    for (const release of releases) release();
    await puller.settled();
    expect(await states()).toEqual(['done', 'cancelled', 'done']);
  });

  test('begin only after the start has deleted what an earlier service left', async () => {
    hub.add(NAME, FILES);
    await puller.close();
    let release = () => {};
    const isReleased = new Promise<void>((done) => (release = done));
    const listPulledSources = async () => {
      const listed = await store.listPulledSources();
      await isReleased;
      return listed;
    };
    puller = openPuller({}, { store: { ...store, listPulledSources } });
    const starting = puller.start();
    const { id } = await start();
    puller.notify();
    await puller.settled();
    expect((await store.getDataSource(admin, id)).pull!.state).toBe('pending');
    release();
    await starting;
    await puller.settled();
    expect((await store.getDataSource(admin, id)).pull!.state).toBe('done');
  });

  test('give the old model back after a crash between the two steps of an installation', async () => {
    hub.add(NAME, FILES);
    const { id } = await start();
    await pulled(id);
    fs.renameSync(folderOf(id), `${folderOf(id)}.old`);
    fs.mkdirSync(`${folderOf(id)}.new`);
    await puller.start();
    await puller.settled();
    expect(fs.readdirSync(path.dirname(folderOf(id)))).toEqual([id]);
    expect(fs.readdirSync(folderOf(id)).sort()).toEqual(Object.keys(FILES).sort());
  });

  test('install the chosen quantization only, also after another one was downloaded', async () => {
    hub.add(NAME, { ...FILES, 'a-Q8_0.gguf': 'eight', 'a-Q4_K_M.gguf': 'four' });
    await puller.close();
    const system = testSystem({ HF_ENDPOINT: hub.url });
    let isFirst = true;
    puller = openPuller(
      {},
      {
        pull: async ({ model: name, ...options }, { onListing, ...hooks }) => {
          const found = await pullWith(name, { ...options, ...hooks, onDownload: onListing }, system);
          if (!isFirst) return found;
          isFirst = false;
          throw new Error('the download thread exited');
        },
      },
    );
    await puller.start();
    const { id } = await start({ model: `${NAME}:Q8_0` });
    expect(await pulled(id)).toMatchObject({ state: 'failed' });
    await store.pullAgain(admin, id, { model: `${NAME}:Q4_K_M` });
    expect(await pulled(id)).toMatchObject({ state: 'done', quantization: 'Q4_K_M' });
    expect(fs.readdirSync(folderOf(id))).toEqual(['a-Q4_K_M.gguf']);
  });

  test('say what to do about a link in the place of their folder', async () => {
    hub.add(NAME, FILES);
    fs.mkdirSync(path.join(root, 'elsewhere'));
    fs.symlinkSync(path.join(root, 'elsewhere'), path.join(root, 'hub-gw_test'));
    const { id } = await start();
    expect((await pulled(id)).error).toEqual({
      code: 'io_error',
      message: expect.stringContaining('got a link: remove the link hub-gw_test in the data root') as string,
    });
    expect(fs.readdirSync(path.join(root, 'elsewhere'))).toEqual([]);
  });

  test('send the token only to the hub that it was given for', async () => {
    hub.add(NAME, FILES);
    const { id } = await start({ token: TOKEN });
    await pulled(id);
    const ask = (more: object) => store.readPreviewAccess(admin, { source_id: id, ...more });
    expect(await ask({})).toEqual({ hub: 'huggingface', token: TOKEN });
    expect(await ask({ hub: 'modelscope' })).toEqual({ hub: 'modelscope', token: null });
    expect(await ask({ hub: 'modelscope', token: 'ms' })).toEqual({ hub: 'modelscope', token: 'ms' });
    await puller.close();
    const again = (more: object) => store.pullAgain(admin, id, more);
    const cancelled = async () => (await store.cancelPull(admin, id)).pull;
    expect((await again({})).pull).toMatchObject({ has_token: true });
    await cancelled();
    expect((await again({ hub: 'modelscope' })).pull).toMatchObject({ hub: 'modelscope', has_token: false });
    await cancelled();
    // The hub of a preview is that of the data source.
    expect(await ask({})).toEqual({ hub: 'modelscope', token: null });
    expect((await again({ hub: 'huggingface', token: TOKEN })).pull).toMatchObject({ has_token: true });
  });

  test('of users count while they are unfinished, so that no second one exceeds the quota', async () => {
    const large = { ...FILES, 'model.safetensors': Buffer.alloc(3 * 2 ** 20, 1) };
    hub.add(NAME, large);
    await store.editQuota(admin, ann.userId, { quota_disk_mb: 6 });
    const release = held();
    const { id } = await start({}, ann);
    puller.notify();
    await until(async () => (await store.getDataSource(admin, id)).pull!.done_bytes > 2 ** 20);
    await stop(id, release);
    const refused = { code: 'quota_exceeded', message: expect.stringContaining('unfinished downloads') as string };
    hub.requests.length = 0;
    const second = await start({ name: 'second' }, ann);
    expect((await pulled(second.id)).error).toMatchObject(refused);
    // The quota is asked before the tokenizer is downloaded, and nothing stays on the disk.
    expect(hub.downloads().map((file) => path.basename(file))).toEqual(['config.json']);
    expect(fs.existsSync(`${folderOf(second.id)}.part`)).toBe(false);
    // It also counts while it waits for its next turn.
    await puller.close();
    await store.pullAgain(ann, id, {});
    await store.pullAgain(ann, second.id, {});
    const listing = {
      commit: 'c',
      format: 'safetensors',
      quantization: null,
      totalBytes: 4 * 2 ** 20,
      doneBytes: 0,
      note: null,
    };
    expect(await store.admitPull(await takeOf(second.id), listing)).toMatch(
      /needs \d+ MiB of disk with the other data and unfinished downloads/,
    );
  });

  test('of users into measured data sources count at the same time', async () => {
    hub.add(NAME, FILES);
    const ids = [(await start({ name: 'one' }, admin)).id, (await start({ name: 'two' }, admin)).id];
    for (const id of ids) await pulled(id);
    await puller.close();
    for (let source = await store.findUnmeasured(); source !== undefined; source = await store.findUnmeasured())
      await store.saveMeasure(source, { sizeBytes: 2 ** 20, numFiles: 1, digest: null, note: null });
    await store.editQuota(admin, admin.userId, { quota_disk_mb: 10 });
    const listing = {
      commit: 'c',
      format: 'safetensors',
      quantization: null,
      totalBytes: 5 * 2 ** 20,
      doneBytes: 0,
      note: null,
    };
    for (const id of ids) await store.pullAgain(admin, id, {});
    expect(await store.admitPull(await takeOf(ids[0]), listing)).toBeUndefined();
    expect(await store.admitPull(await takeOf(ids[1]), listing)).toMatch(/needs 12 MiB of disk/);
  });

  test('delete the unfinished download of another model, which no quota counts', async () => {
    hub.add('acme/large', { ...FILES, 'model.safetensors': Buffer.alloc(8 * 2 ** 20, 1) });
    hub.add(NAME, FILES);
    let release = held();
    const { id } = await start({ model: 'acme/large' });
    puller.notify();
    await until(async () => (await store.getDataSource(admin, id)).pull!.done_bytes > 3 * 2 ** 20);
    await stop(id, release);
    expect(fs.readdirSync(`${folderOf(id)}.part`)).toContain('models--acme--large');
    release = held();
    await store.pullAgain(admin, id, { model: NAME });
    hub.requests.length = 0;
    puller.notify();
    await until(() => hub.downloads().some((file) => file.includes('model.safetensors')));
    expect(fs.readdirSync(`${folderOf(id)}.part`)).not.toContain('models--acme--large');
    release();
    await puller.settled();
    expect((await store.getDataSource(admin, id)).pull).toMatchObject({ state: 'done', model: NAME });
  });

  test('of users need a disk quota, which limits them', async () => {
    hub.add(NAME, FILES);
    const refused = {
      code: 'forbidden',
      message: expect.stringContaining('an owner without a disk quota') as string,
    };
    await expect(start({}, ann)).rejects.toMatchObject(refused);
    await expect(store.readPreviewAccess(ann, {})).rejects.toMatchObject(refused);
    await store.editQuota(admin, ann.userId, { quota_disk_mb: 1 });
    expect(await store.readPreviewAccess(ann, {})).toEqual({ hub: 'huggingface', token: null });
    await expect(start({ visibility: 'public' }, ann)).rejects.toMatchObject({ code: 'forbidden' });
    await expect(start({ owner: { type: 'user', id: admin.userId } }, ann)).rejects.toMatchObject({
      code: 'not_found',
    });
    await expect(start({}, { ...ann, canWrite: false })).rejects.toMatchObject({ code: 'forbidden' });
    const { id } = await start({}, ann);
    expect((await pulled(id)).state).toBe(TOTAL > 2 ** 20 ? 'failed' : 'done');
    await store.editQuota(admin, ann.userId, { quota_disk_mb: 0 });
    const second = await start({ name: 'second' }, ann);
    expect((await pulled(second.id)).error).toMatchObject({
      code: 'quota_exceeded',
      message: expect.stringMatching(
        /needs \d+ MiB of disk with the other data and .*, but the quota of the owner is 0 MiB/,
      ) as string,
    });
    expect(hub.downloads().filter((file) => file.includes('model.safetensors')).length).toBe(2);
    expect(await store.deleteDataSource(ann, second.id)).toBe(folderOf(second.id));
    await expect(store.pullAgain({ ...ann, userId: 'usr_other' }, id, {})).rejects.toMatchObject({ code: 'not_found' });
  });

  test('name what is not checked, and that this version cannot run the model', async () => {
    const config = JSON.stringify({ model_type: 'nobody-knows', architectures: ['X'] });
    hub.add(NAME, { ...FILES, 'config.json': config }, { hasHashes: false });
    const { id } = await start();
    const { state, note } = await pulled(id);
    expect(state).toBe('done');
    expect(note).toMatch(/this version cannot run the model: config\.json: expected one of the architectures .* got X/);
    expect(note).toMatch(/the mirror gives no hashes, so the content of these files is not checked/);
  });

  test.each([
    [{ model: '../../etc' }, /model: expected a name on the hub/],
    [{ token: 'two words' }, /token: expected a token of printable ASCII/],
  ])('with %j are refused', async (more, message) => {
    await expect(start(more)).rejects.toMatchObject({
      code: 'invalid_argument',
      message: expect.stringMatching(message),
    });
  });
});
