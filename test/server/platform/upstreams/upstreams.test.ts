/** Deployments that forward to a server elsewhere, in the store: versions, sealed keys, and what the gateway gets. */
import type { DatabaseLocation } from '../../../../server/access/store/location';
import type { ServiceActor } from '../../../../server/platform/accounts/actor';
import { DEFAULT_CONTROL_POLICY } from '../../../../server/platform/control/records';
import { targetOf } from '../../../../server/platform/deployments/target';
import { openServiceDatabase } from '../../../../server/platform/store/change';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { overBackends } from '../../access/support';
import { actorOf, annOf, machine, STORE_OPTIONS, withAnn } from '../support';

const KEY = 'sk-upstream-hush';
const URL_A = 'https://api.a.example/v1';
const NO_ACTIVITY = { numOpen: 0, lastAt: 0, minOpen: 0, maxOpen: 0 };

overBackends((make) => {
  let location: DatabaseLocation;
  let store: ServiceStore;
  let ann: ServiceActor;

  beforeEach(async () => {
    location = await make(withAnn);
    ann = actorOf(annOf(location));
    store = await openServiceStore({ location, ...STORE_OPTIONS, machine: machine() });
  });
  afterEach(async () => {
    await store.close();
  });

  const published = async (id: string) => {
    const reconciled = await store.reconcileDeployment(
      { epoch: 0, startedAt: 0 },
      id,
      [],
      NO_ACTIVITY,
      DEFAULT_CONTROL_POLICY,
    );
    return reconciled === undefined ? undefined : targetOf(reconciled);
  };
  const dump = async () => {
    const db = await openServiceDatabase(location);
    const tables = ['deployment_upstreams', 'events', 'audit_events', 'deployment_settings', 'deployments'] as const;
    const rows = await Promise.all(tables.map((table) => db.selectFrom(table).selectAll().execute()));
    await db.destroy();
    return JSON.stringify(rows);
  };

  test('serves at once, needs a key by default, and never shows the secret', async () => {
    const created = await store.createDeployment(ann, { name: 'cloud', upstream: { url: URL_A, secret: KEY } });
    expect(created).toMatchObject({
      state: 'running',
      access_control: true,
      active_version: null,
      upstream: { version: 1, url: URL_A, model: null, interfaces: ['chat'], has_secret: true },
    });
    const target = await published(created.id);
    expect(target?.hasStorage).toBe(true);
    expect(target).toMatchObject({
      state: 'running',
      accessControl: true,
      replicas: [
        {
          address: { type: 'url', url: URL_A },
          secret: KEY,
          isBuiltin: false,
          upstream: { url: URL_A, model: null, interfaces: ['chat'] },
        },
      ],
    });
    const { access_control: isRestricted } = await store.createDeployment(ann, {
      name: 'open',
      access_control: false,
      upstream: { url: 'https://b.example' },
    });
    expect(isRestricted).toBe(false);
    expect(JSON.stringify([created, await store.listUpstreamVersions(ann, created.id)]) + (await dump())).not.toContain(
      'hush',
    );
  });

  test('each change is a version, and an earlier one is restored with its key', async () => {
    const { id } = await store.createDeployment(ann, { name: 'cloud', upstream: { url: URL_A, secret: KEY } });
    const first = (await published(id))?.replicas[0];
    const change = (upstream: Parameters<ServiceStore['editDeployment']>[2]['upstream']) =>
      store.editDeployment(ann, id, { upstream });
    // The key stays with its host.
    await expect(change({ url: 'https://api.b.example/v1' })).rejects.toMatchObject({
      code: 'invalid_argument',
      message: expect.stringContaining('secret') as string,
    });
    await expect(change({ url: 'http://api.a.example/v1' })).rejects.toMatchObject({ code: 'invalid_argument' });
    expect((await change({ url: 'https://api.a.example/v2' })).upstream).toMatchObject({
      version: 2,
      has_secret: true,
    });
    const moved = await change({
      url: 'https://api.b.example/',
      secret: 'sk-other-hush',
      model: 'large',
      interfaces: ['messages', 'chat'],
    });
    expect(moved.upstream).toEqual({
      version: 3,
      url: 'https://api.b.example/v1',
      model: 'large',
      interfaces: ['chat', 'messages'],
      has_secret: true,
    });
    const third = (await published(id))?.replicas[0];
    expect([third?.secret, third?.id === first?.id]).toEqual(['sk-other-hush', false]);
    expect((await change({ secret: null })).upstream).toMatchObject({ version: 4, has_secret: false });
    expect((await change({ version: 1 })).upstream).toMatchObject({ version: 5, url: URL_A, has_secret: true });
    expect((await published(id))?.replicas[0].secret).toBe(KEY);
    const versions = await store.listUpstreamVersions(ann, id);
    expect(versions.map(({ version, url }) => `${version} ${url}`)).toEqual([
      `5 ${URL_A}`,
      '4 https://api.b.example/v1',
      '3 https://api.b.example/v1',
      '2 https://api.a.example/v2',
      `1 ${URL_A}`,
    ]);
    for (const upstream of [{ version: 5 }, { version: 9 }, { version: 1, model: 'x' }])
      await expect(change(upstream)).rejects.toMatchObject({ code: 'invalid_argument' });
    const { rev } = await store.getDeployment(ann, id);
    await expect(store.editDeployment(ann, id, { upstream: { model: 'x' } }, rev - 1)).rejects.toMatchObject({
      code: 'stale',
    });
    expect(await dump()).not.toContain('hush');
  });

  test('keeps the last 50 versions', async () => {
    const { id } = await store.createDeployment(ann, { name: 'cloud', upstream: { url: URL_A } });
    for (let i = 2; i <= 52; i++) await store.editDeployment(ann, id, { upstream: { model: `m${i}` } });
    const versions = await store.listUpstreamVersions(ann, id);
    expect([versions.length, versions[0].version, versions.at(-1)?.version]).toEqual([50, 52, 3]);
  });

  test('is stopped, started, renamed and deleted, and has no replicas', async () => {
    const { id } = await store.createDeployment(ann, { name: 'cloud', upstream: { url: URL_A } });
    expect((await store.applyIntent(ann, id, 'stop')).state).toBe('paused');
    expect((await published(id))?.state).toBe('paused');
    expect((await store.applyIntent(ann, id, 'start')).state).toBe('running');
    for (const intent of ['start', 'restart', 'scaleToZero'] as const)
      await expect(store.applyIntent(ann, id, intent)).rejects.toMatchObject({ code: 'wrong_state' });
    await expect(store.createVersion(ann, id, {})).rejects.toMatchObject({ code: 'wrong_state' });
    await expect(store.editDeployment(ann, id, { min_replicas: 0 })).rejects.toMatchObject({ code: 'wrong_state' });
    expect((await store.editDeployment(ann, id, { name: 'sky', aliases: ['gpt'] })).name).toBe('sky');
    expect(await published(id)).toMatchObject({ name: 'sky', aliases: ['gpt'] });
    await store.discardDeployment(ann, id);
    expect(await published(id)).toBeUndefined();
    expect(await store.removeDeployment(0, id)).toEqual([]);
    expect(await dump()).not.toContain('api.a.example/v1"');
  });

  test('bad settings have clear errors, and change nothing', async () => {
    const { id } = await store.createDeployment(ann, { name: 'local' });
    await expect(store.editDeployment(ann, id, { upstream: { url: URL_A } })).rejects.toMatchObject({
      code: 'wrong_state',
    });
    for (const upstream of [
      { url: 'ftp://a.example' },
      { url: 'nonsense' },
      { url: 'https://user:password@a.example' },
      { url: 'https://a.example/v1?key=1' },
      { url: 'https://a.example/v1#x' },
      { url: 'https://a.example/a%2fb' },
      { url: URL_A, secret: 'two\nlines' },
      { url: URL_A, secret: 'späce' },
      { url: URL_A, secret: '' },
      { url: URL_A, model: 'a\u0000' },
      { url: URL_A, interfaces: [] },
      { url: URL_A, interfaces: ['responses'] as const },
    ])
      await expect(store.createDeployment(ann, { name: 'cloud', upstream })).rejects.toMatchObject({
        code: 'invalid_argument',
      });
    for (const more of [{ min_replicas: 1 }, { start_command: 'x' }, { runtime: { model: 'm' } }, { note: 'n' }])
      await expect(
        store.createDeployment(ann, { name: 'cloud', upstream: { url: URL_A }, ...more }),
      ).rejects.toMatchObject({ code: 'invalid_argument' });
    expect((await store.pageDeployments(ann, { limit: 10 })).data.map(({ name }) => name)).toEqual(['local']);
  });
});
