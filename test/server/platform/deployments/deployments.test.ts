import fs from 'node:fs';
import path from 'node:path';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import type { ServiceActor } from '../../../../server/platform/accounts/actor';
import { openServiceDatabase } from '../../../../server/platform/store/change';
import type { Machine } from '../../../../server/platform/deployments/machine';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { DEFAULT_CONTROL_POLICY } from '../../../../server/platform/control/records';
import { overBackends, makeFolder } from '../../access/support';
import { actorOf, annOf, machine, STORE_OPTIONS, withAnn } from '../support';

const PASSWORD = 'correct horse battery';

overBackends((make) => {
  let location: DatabaseLocation;
  let store: ServiceStore;
  let ann: ServiceActor;

  const open = async (of: Machine = machine()) => {
    location = await make(withAnn);
    ann = actorOf(annOf(location));
    store = await openServiceStore({ location, ...STORE_OPTIONS, machine: of });
  };
  const createUser = async (email: string, more: Partial<ServiceActor> = {}) =>
    actorOf((await store.createAccount({ email, name: email, password: PASSWORD })).userId, more);
  /** Adds a member to an organization of Ann's. */
  const member = async (orgId: string, role: 'viewer' | 'developer' | 'admin') => {
    const email = `${role}@example.com`;
    const actor = await createUser(email);
    const { token } = await store.invite(ann, orgId, { email, role });
    await store.acceptInvitation(actor, token);
    return actor;
  };
  const dump = async () => {
    const db = await openServiceDatabase(location);
    const tables = [
      'deployment_versions',
      'containers',
      'events',
      'audit_events',
      'replicas',
      'deployment_settings',
    ] as const;
    const rows = await Promise.all(tables.map((table) => db.selectFrom(table).selectAll().execute()));
    await db.destroy();
    return JSON.stringify(rows);
  };

  afterEach(async () => {
    await store.close();
  });

  test('encrypts secret values, never shows them, and passes them on to the next version', async () => {
    await open();
    const { id } = await store.createDeployment(ann, {
      name: 'chat',
      env: { MODE: 'fast' },
      secret_env: { TOKEN: 'hush-hush', OTHER: 'silent' },
    });
    const container = await store.createContainer(ann, { name: 'train', secret_env: { TOKEN: 'hush-hush' } });
    const shown = async (number: number) => (await store.getVersion(ann, id, number)).spec.env;
    expect(await shown(1)).toEqual({ MODE: 'fast', TOKEN: null, OTHER: null });
    await store.activateVersion(ann, id, 1).catch(() => {});
    await store.applyIntent(ann, id, 'stop');
    await store.createVersion(ann, id, { env: { OTHER: 'now in the open' } });
    expect(await shown(2)).toEqual({ OTHER: 'now in the open', TOKEN: null });
    await store.createVersion(ann, id, { secret_env: {} });
    expect(await shown(3)).toEqual({ OTHER: 'now in the open' });
    const everything = await dump();
    for (const secret of ['hush-hush', 'silent']) expect(everything).not.toContain(secret);
    expect(
      JSON.stringify([
        container,
        await store.pageVersions(ann, id, { limit: 10 }),
        await store.previewDeploy(ann, container.id),
      ]),
    ).not.toContain('hush');
    await expect(
      store.createDeployment(ann, { name: 'x', env: { A: '1' }, secret_env: { A: '2' } }),
    ).rejects.toMatchObject({ code: 'invalid_argument' });
    for (const name of ['PLATFORM_SERVING_PRODUCTION', 'CAPSTAN_REPLICA_SECRET'])
      await expect(store.createDeployment(ann, { name: 'x', env: { [name]: '1' } })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining(name),
      });
  });

  test('keeps variables with the names of members of objects', async () => {
    await open();
    const { id } = await store.createDeployment(ann, { name: 'chat', env: { constructor: 'a', valueOf: 'b' } });
    await store.activateVersion(ann, id, 1).catch(() => {});
    await store.applyIntent(ann, id, 'stop');
    await store.createVersion(ann, id, { note: 'again', secret_env: { toString: 'c' } });
    const { env } = (await store.getVersion(ann, id, 2)).spec;
    expect(env).toEqual({ constructor: 'a', valueOf: 'b', toString: null });
  });

  test('names and aliases are unique among the deployments of an owner, and kept by a failed change', async () => {
    await open();
    const bob = await createUser('bob@example.com');
    const { id, aliases } = await store.createDeployment(ann, { name: 'chat', aliases: [' gpt-4o ', 'Qwen/Qwen3'] });
    expect(aliases).toEqual(['gpt-4o', 'Qwen/Qwen3']);
    const other = await store.createDeployment(ann, { name: 'other', aliases: ['small'] });
    // Another owner may use the same names.
    await store.createDeployment(bob, { name: 'small', aliases: ['chat'] });
    const clashes: [name: string, aliases: string[]][] = [
      ['gpt-4o', []],
      ['new', ['chat']],
      ['new', ['fine', 'gpt-4o']],
      ['chat/model', []],
      ['new', ['chat/model']],
      ['Qwen', []],
      ['new', ['Qwen/Qwen3/adapter']],
      ['new', ['new']],
      ['new', ['twice', 'twice']],
    ];
    for (const [name, more] of clashes) {
      await expect(store.createDeployment(ann, { name, aliases: more })).rejects.toMatchObject({ code: 'conflict' });
      if (name !== 'new' || more[0] !== 'new')
        await expect(store.editDeployment(ann, other.id, { name, aliases: more })).rejects.toMatchObject({
          code: 'conflict',
        });
    }
    for (const alias of ['', 'a\u0000', 'x'.repeat(101)])
      await expect(store.editDeployment(ann, id, { aliases: [alias] })).rejects.toMatchObject({
        code: 'invalid_argument',
      });
    expect((await store.getDeployment(ann, other.id)).aliases).toEqual(['small']);
    // An alias may begin with the name of its deployment, and an alias may become the name.
    const edited = await store.editDeployment(ann, id, { name: 'gpt-4o', aliases: ['chat', 'gpt-4o/best'] });
    expect([edited.name, edited.aliases]).toEqual(['gpt-4o', ['chat', 'gpt-4o/best']]);
    await expect(store.editDeployment(ann, id, { name: 'chat' })).rejects.toMatchObject({ code: 'conflict' });
    expect((await store.editDeployment(ann, other.id, { min_replicas: 2 })).aliases).toEqual(['small']);
    expect((await store.pageDeployments(ann, { limit: 10 })).data.map((row) => row.aliases)).toEqual([
      ['small'],
      ['chat', 'gpt-4o/best'],
    ]);
    expect((await store.editDeployment(ann, id, { aliases: [] })).aliases).toEqual([]);
    await store.editDeployment(ann, other.id, { name: 'Qwen' });
  });

  test('fallbacks are other deployments of the owner, and go with them', async () => {
    await open();
    const bob = await createUser('bob@example.com');
    const foreign = await store.createDeployment(bob, { name: 'foreign' });
    const spare = await store.createDeployment(ann, { name: 'spare' });
    const last = await store.createDeployment(ann, { name: 'last' });
    const { id, fallbacks } = await store.createDeployment(ann, {
      name: 'chat',
      fallbacks: ['spare', last.id],
      fallback_after_s: 30,
    });
    expect(fallbacks).toEqual(['spare', 'last']);
    for (const refused of [['foreign'], [foreign.id], ['chat'], ['spare', spare.id], ['nothing']])
      await expect(store.editDeployment(ann, id, { fallbacks: refused })).rejects.toMatchObject({
        code: 'invalid_argument',
      });
    await store.editDeployment(ann, spare.id, { name: 'renamed' });
    expect(await store.getDeployment(ann, id)).toMatchObject({ fallbacks: ['renamed', 'last'], fallback_after_s: 30 });
    expect(await store.editDeployment(ann, id, { fallback_after_s: null })).toMatchObject({
      fallbacks: ['renamed', 'last'],
      fallback_after_s: null,
    });
    await store.editDeployment(ann, id, { fallbacks: ['last', 'renamed'] });
    expect((await store.getDeployment(ann, id)).fallbacks).toEqual(['last', 'renamed']);
  });

  test('cannot decrypt secrets with another key', async () => {
    await open();
    const { id } = await store.createDeployment(ann, { name: 'chat', secret_env: { TOKEN: 'hush' } });
    const other = await openServiceStore({ location, secretKey: new Uint8Array(32).fill(9), machine: machine() });
    await expect(other.createVersion(ann, id, { note: 'x' })).rejects.toMatchObject({ name: 'ServiceError' });
    await other.close();
  });

  test('hides objects from strangers, and refuses changes by viewers and read-only tokens', async () => {
    await open();
    const org = await store.createOrganization(ann, { slug: 'lab', name: 'Lab' });
    const owner = { type: 'org', id: org.id } as const;
    const { id, rev } = await store.createDeployment(ann, { name: 'chat', owner });
    const container = await store.createContainer(ann, { name: 'train', owner });
    const [bob, viewer, developer] = [
      await createUser('bob@example.com', { isAdmin: true }),
      await member(org.id, 'viewer'),
      await member(org.id, 'developer'),
    ];
    const reads = (actor: ServiceActor) => [
      () => store.getDeployment(actor, id),
      () => store.pageVersions(actor, id, { limit: 1 }),
      () => store.getVersion(actor, id, 1),
      () => store.pageDeploymentEvents(actor, id, { limit: 1 }),
      () => store.readDeploymentEvents(actor, id, 0, 1),
      () => store.getContainer(actor, container.id),
      () => store.previewDeploy(actor, container.id),
      () => store.pageDeployments(actor, { owner, limit: 1 }),
      () => store.pageContainers(actor, { owner, limit: 1 }),
    ];
    const changes = (actor: ServiceActor) => [
      () => store.editDeployment(actor, id, { name: 'x' }, rev),
      () => store.applyIntent(actor, id, 'stop'),
      () => store.switchAccessControl(actor, id, true),
      () => store.discardDeployment(actor, id),
      () => store.createVersion(actor, id, {}),
      () => store.activateVersion(actor, id, 1),
      () => store.deleteVersion(actor, id, 1),
      () => store.createDeployment(actor, { name: 'theirs', owner }),
      () => store.editContainer(actor, container.id, {}),
      () => store.commandContainer(actor, container.id, 'start'),
      () => store.removeContainer(actor, container.id),
      () => store.createContainer(actor, { name: 'theirs', owner }),
      () => store.deployContainer(actor, container.id, { name: 'theirs' }),
    ];
    // An administrator of the service has no access to objects of other owners.
    for (const asked of [...reads(bob), ...changes(bob)])
      await expect(asked()).rejects.toMatchObject({ code: 'not_found' });
    for (const read of reads(viewer)) await expect(read()).resolves.toBeDefined();
    for (const change of [...changes(viewer), ...changes({ ...developer, canWrite: false })])
      await expect(change()).rejects.toMatchObject({ code: 'forbidden' });
    expect((await store.pageDeployments(bob, { limit: 10 })).data).toEqual([]);
    expect((await store.pageDeployments(developer, { limit: 10 })).data).toMatchObject([
      { id, owner: { type: 'org', name: 'lab' } },
    ]);
    await expect(store.editDeployment(developer, id, { name: 'better' }, rev)).resolves.toMatchObject({
      name: 'better',
    });
    await expect(store.editDeployment(developer, id, { name: 'best' }, rev)).rejects.toMatchObject({ code: 'stale' });
    expect(await store.verifyAudit()).toBeUndefined();
  });

  test('refuses the second of two changes of one revision as stale', async () => {
    await open();
    const { id, rev } = await store.createDeployment(ann, { name: 'chat' });
    const results = await Promise.allSettled([
      store.editDeployment(ann, id, { name: 'one' }, rev),
      store.editDeployment(ann, id, { max_replicas: 4 }, rev),
    ]);
    expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
    expect((results.find(({ status }) => status === 'rejected') as PromiseRejectedResult).reason).toMatchObject({
      code: 'stale',
    });
  });

  test('refuses names that look like ids', async () => {
    await open();
    const { id } = await store.createDeployment(ann, { name: 'chat' });
    const container = await store.createContainer(ann, { name: 'train' });
    for (const attempt of [
      () => store.createDeployment(ann, { name: 'dep_chat' }),
      () => store.createDeployment(ann, { name: id }),
      () => store.editDeployment(ann, id, { name: 'dep_chat' }),
      () => store.createContainer(ann, { name: 'con_train' }),
      () => store.editContainer(ann, container.id, { name: container.id }),
    ])
      await expect(attempt()).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringMatching(/^name: expected a name that does not start with (dep|con)_/),
      });
    expect(await store.editDeployment(ann, id, { name: 'dependable' })).toMatchObject({ name: 'dependable' });
  });

  test('enforces quotas on deployments and GPUs', async () => {
    await open(machine({ gpus: 4 }));
    const org = await store.createOrganization(ann, { slug: 'lab', name: 'Lab' });
    const root = { ...ann, isAdmin: true };
    expect(await store.editQuota(root, org.id, { quota_deployments: 2, quota_gpu: 2 })).toMatchObject({
      quotas: { quota_deployments: 2, quota_gpu: 2, quota_versions: null },
      used: { used_deployments: 0, used_gpu: 0 },
    });
    await expect(store.editQuota(ann, org.id, { quota_gpu: 4 })).rejects.toMatchObject({ code: 'forbidden' });
    for (const wrong of [{ quota_gpu: -1 }, { quota_deployments: 1.5 }, { quota_gpu: 1_000_000_001 }])
      await expect(store.editQuota(root, org.id, wrong)).rejects.toMatchObject({ code: 'invalid_argument' });
    const owner = { type: 'org', id: org.id } as const;
    await expect(store.createDeployment(ann, { name: 'a', owner, compute: { gpu_count: 3 } })).rejects.toMatchObject({
      code: 'quota_exceeded',
    });
    await expect(
      store.createDeployment(ann, { name: 'a', owner, compute: { gpu_count: 1 }, min_replicas: 3 }),
    ).rejects.toMatchObject({ code: 'quota_exceeded' });
    const { id } = await store.createDeployment(ann, { name: 'a', owner, compute: { gpu_count: 2 } });
    await store.createDeployment(ann, { name: 'b', owner });
    await expect(store.createDeployment(ann, { name: 'c', owner })).rejects.toMatchObject({ code: 'quota_exceeded' });
    expect(await store.findQuota(root, org.id)).toMatchObject({ used: { used_deployments: 2 } });
    await store.discardDeployment(ann, id);
    await expect(store.createDeployment(ann, { name: 'c', owner })).resolves.toMatchObject({ name: 'c' });
    await expect(store.createDeployment(ann, { name: 'mine', compute: { gpu_count: 4 } })).resolves.toMatchObject({
      name: 'mine',
    });
    await store.editQuota(root, ann.userId, { quota_deployments: 1 });
    await expect(store.createDeployment(ann, { name: 'more' })).rejects.toMatchObject({ code: 'quota_exceeded' });
    await expect(store.deleteOrganization(ann, org.id)).rejects.toMatchObject({ code: 'conflict' });
  });

  test('gives a minimum of 0 an idle timeout of 15 minutes, unless the request sets one or never', async () => {
    await open();
    const create = (name: string, scale: object) => store.createDeployment(ann, { name, ...scale });
    const edit = (id: string, scale: object) => store.editDeployment(ann, id, scale);
    expect(await create('a', { min_replicas: 0 })).toMatchObject({ idle_timeout_s: 900 });
    expect(await create('b', { min_replicas: 0, idle_timeout_s: 60 })).toMatchObject({ idle_timeout_s: 60 });
    const never = await create('c', { min_replicas: 0, idle_timeout_s: null });
    expect(never).toMatchObject({ min_replicas: 0, idle_timeout_s: null });
    expect(await edit(never.id, { min_replicas: 0, max_replicas: 2 })).toMatchObject({ idle_timeout_s: null });
    const one = await create('d', { idle_timeout_s: null });
    expect(one).toMatchObject({ min_replicas: 1, idle_timeout_s: null });
    expect(await edit(one.id, { min_replicas: 0 })).toMatchObject({ idle_timeout_s: 900 });
    expect(await edit(one.id, { idle_timeout_s: null })).toMatchObject({ min_replicas: 0, idle_timeout_s: null });
  });

  test('enforces quotas on CPU, memory and versions', async () => {
    await open();
    const root = { ...ann, isAdmin: true };
    const compute = { cpu_millis: 1_000, memory_mb: 1_024 };
    const create = (name: string, min_replicas = 1) => store.createDeployment(ann, { name, compute, min_replicas });
    await store.editQuota(root, ann.userId, { quota_cpu_millis: 1_999, quota_memory_mb: null });
    await expect(create('a', 2)).rejects.toMatchObject({
      code: 'quota_exceeded',
      message: 'needs 2 CPU cores, but the quota of the owner is 1.999 CPU cores. An administrator can change it',
    });
    await store.editQuota(root, ann.userId, { quota_cpu_millis: null, quota_memory_mb: 2_047 });
    await expect(create('a', 2)).rejects.toMatchObject({
      code: 'quota_exceeded',
      message:
        'needs 2048 MiB of memory, but the quota of the owner is 2047 MiB of memory. An administrator can change it',
    });
    await store.editQuota(root, ann.userId, { quota_memory_mb: null, quota_versions: 3 });
    const { id } = await create('a', 1);
    await store.applyIntent(ann, id, 'stop');
    await store.createVersion(ann, id, {});
    await store.createVersion(ann, id, {});
    expect(await store.findQuota(root, ann.userId)).toMatchObject({ used: { used_versions: 3 } });
    const refused = {
      code: 'quota_exceeded',
      message: expect.stringMatching(
        /^needs 4 versions of all deployments, but the quota of the owner is 3 versions of /,
      ),
    };
    await expect(store.createVersion(ann, id, {})).rejects.toMatchObject(refused);
    await expect(create('b')).rejects.toMatchObject(refused);
    await store.deleteVersion(ann, id, 2);
    expect(await store.createVersion(ann, id, {})).toMatchObject({ number: 4 });
    // A deployment that is being deleted counts no more.
    await store.discardDeployment(ann, id);
    expect(await store.findQuota(root, ann.userId)).toMatchObject({ used: { used_versions: 0, used_deployments: 0 } });
    await create('b');
  });

  test('enforces a quota on the disk: data sources, and a copy of the home folder for each version', async () => {
    const root = makeFolder();
    fs.mkdirSync(path.join(root, 'home'));
    await open(machine({ dataRoots: [root] }));
    const admin = { ...ann, isAdmin: true };
    const source = await store.createDataSource(admin, {
      name: 'home',
      type: 'workspace',
      path: path.join(root, 'home'),
    });
    const waiting = (await store.findUnmeasured())!;
    await store.saveMeasure(waiting, { sizeBytes: 10 * 2 ** 20, numFiles: 1, digest: null, message: null } as never);
    const use = async () => (await store.findQuota(admin, ann.userId)).used.used_disk_mb;
    expect(await use()).toBe(10);
    await store.editQuota(admin, ann.userId, { quota_disk_mb: 29 });
    const bindings = [{ mount: 'home' as const, source_id: source.id }];
    await store.createDeployment(ann, { name: 'a', bindings });
    expect(await use()).toBe(20);
    await expect(store.createDeployment(ann, { name: 'b', bindings })).rejects.toMatchObject({
      code: 'quota_exceeded',
      message: 'needs 30 MiB of disk, but the quota of the owner is 29 MiB of disk. An administrator can change it',
    });
    await store.createDeployment(ann, { name: 'c' });
    await store.editQuota(admin, ann.userId, { quota_disk_mb: 19 });
    await expect(store.createDeployment(ann, { name: 'd' })).rejects.toMatchObject({ code: 'quota_exceeded' });
  });

  test('the limit of a prefix cache on the disk counts once for each deployment', async () => {
    await open();
    const admin = { ...ann, isAdmin: true };
    const use = async () => (await store.findQuota(admin, ann.userId)).used.used_disk_mb;
    const cache = (megabytes: number | null) => ({ runtime: { prefix_cache_disk_mb: megabytes } });
    const refused = (needed: number) => ({
      code: 'quota_exceeded',
      message: `needs ${needed} MiB of disk, but the quota of the owner is 30 MiB of disk. An administrator can change it`,
    });
    await store.editQuota(admin, ann.userId, { quota_disk_mb: 30 });
    const { id } = await store.createDeployment(ann, { name: 'a', ...cache(10) });
    expect(await use()).toBe(10);
    await expect(store.createDeployment(ann, { name: 'b', ...cache(21) })).rejects.toMatchObject(refused(31));
    // A start script has no prefix cache.
    await store.createDeployment(admin, { name: 'c', start_command: 'sleep 1', ...cache(1000) });
    await store.applyIntent(ann, id, 'stop');
    await expect(store.createVersion(ann, id, cache(31))).rejects.toMatchObject(refused(31));
    await store.createVersion(ann, id, cache(25));
    expect(await use()).toBe(25);
    await store.createVersion(ann, id, cache(null));
    expect(await use()).toBe(0);
    await store.createDeployment(ann, { name: 'd', ...cache(20) });
    await expect(store.activateVersion(ann, id, 2)).rejects.toMatchObject(refused(45));
    expect(await use()).toBe(20);
  });

  test('filters and pages lists', async () => {
    await open();
    for (let i = 0; i < 7; i++) await store.createDeployment(ann, { name: `chat ${i}` });
    const first = await store.pageDeployments(ann, { limit: 5 });
    expect(first.data.map(({ name }) => name)).toEqual([6, 5, 4, 3, 2].map((i) => `chat ${i}`));
    const rest = await store.pageDeployments(ann, { limit: 5, after: first.next ?? '' });
    expect([rest.data.map(({ name }) => name), rest.next]).toEqual([['chat 1', 'chat 0'], null]);
    expect((await store.pageDeployments(ann, { limit: 5, q: 'CHAT 3' })).data).toHaveLength(1);
    expect((await store.pageDeployments(ann, { limit: 5, q: '%' })).data).toHaveLength(0);
    expect((await store.pageDeployments(ann, { limit: 5, states: ['running', 'failed'] })).data).toEqual([]);
    expect((await store.pageDeployments(ann, { limit: 1, states: ['pending'] })).data).toHaveLength(1);
  });

  describe('images and start scripts', () => {
    test('has the built-in runtime, refuses container images, and needs a script for images without a runtime', async () => {
      await open();
      const admin = { ...ann, isAdmin: true };
      const images = await store.listImages();
      expect(images.map(({ name, version, type }) => [name, version, type]).sort()).toEqual([
        ['capstan', '1.0.0', 'builtin-runtime'],
        ['host', '1', 'host-env'],
      ]);
      await expect(store.createImage(ann, { name: 'x', version: '1', type: 'host-env' })).rejects.toMatchObject({
        code: 'forbidden',
      });
      await expect(store.createImage(admin, { name: 'x', version: '1', type: 'oci' })).rejects.toMatchObject({
        code: 'invalid_argument',
      });
      const made = await store.createImage(admin, {
        name: 'python',
        version: '3',
        type: 'host-env',
        default_start: 'python3 serve.py',
      });
      await expect(store.createImage(admin, { name: 'python', version: '3', type: 'host-env' })).rejects.toMatchObject({
        code: 'conflict',
      });
      const host = images.find(({ type }) => type === 'host-env')?.id;
      await expect(store.createDeployment(ann, { name: 'x', image_id: host })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining('start_command'),
      });
      const { id } = await store.createDeployment(ann, { name: 'y', image_id: made.id });
      expect((await store.getVersion(ann, id, 1)).spec.start_command).toBe('python3 serve.py');
      await store.deleteImage(admin, made.id);
      await expect(store.createDeployment(ann, { name: 'z', image_id: made.id })).rejects.toMatchObject({
        code: 'invalid_argument',
      });
      // Deployments of the deleted image keep it.
      await store.applyIntent(ann, id, 'stop');
      await expect(store.createVersion(ann, id, { env: { A: '1' } })).resolves.toMatchObject({
        number: 2,
        spec: { start_command: 'python3 serve.py' },
      });
      const empty = await store.createContainer(ann, { name: 'c', image_id: host });
      await expect(store.previewDeploy(ann, empty.id)).rejects.toMatchObject({ code: 'conflict' });
      await expect(store.deployContainer(ann, empty.id, { name: 'd' })).rejects.toMatchObject({ code: 'conflict' });
    });

    test.each([
      ['L1', false, true, 'forbidden'],
      ['L0', true, false, 'forbidden'],
      ['L0', true, true, undefined],
      ['L2', false, false, undefined],
    ] as const)(
      'a script at level %s, allowed: %s, by an administrator: %s',
      async (level, allowsUnisolated, isAdmin, code) => {
        await open(machine({ isolation: { level, reason: 'a test' }, allowsUnisolated }));
        const asked = store.createDeployment({ ...ann, isAdmin }, { name: 'x', start_command: 'python3 serve.py' });
        if (code === undefined) await expect(asked).resolves.toBeDefined();
        else
          await expect(asked).rejects.toMatchObject({ code, message: expect.stringContaining('--allow-unisolated') });
        await expect(store.createDeployment(ann, { name: 'builtin' })).resolves.toBeDefined();
      },
    );

    test('at level L2 a deployment may name adapters in its data', async () => {
      await open(machine({ isolation: { level: 'L2', reason: 'a test' } }));
      const env = { CAPSTAN_LORA_MODULES: 'sql=/data/sql' };
      await expect(store.createDeployment(ann, { name: 'x', env })).resolves.toBeDefined();
    });

    test('below level L2 refuses variables that load code into the built-in runtime, and names them', async () => {
      await open(machine({ isolation: { level: 'L1', reason: 'a test' } }));
      const { id } = await store.createDeployment(ann, { name: 'x' });
      const refused = (name: string) => ({ code: 'invalid_argument', message: expect.stringContaining(name) });
      const loading = 'NODE_OPTIONS LD_PRELOAD PATH BASH_ENV CAPSTAN_ADDON CAPSTAN_CUDA_LIBRARY CAPSTAN_NCCL_LIBRARY';
      const files = 'CAPSTAN_SANDBOX CAPSTAN_CONFIG CAPSTAN_LORA_MODULES CAPSTAN_KEYS_DB CAPSTAN_PORT PLATFORM_HOME';
      for (const name of `${loading} ${files} CAPSTAN_CHAT_TEMPLATE`.split(' ')) {
        const value = { [name]: '--import=data:text/javascript,' };
        await expect(store.createDeployment(ann, { name: 'y', env: value })).rejects.toMatchObject(refused(name));
        await expect(store.createVersion(ann, id, { secret_env: value })).rejects.toMatchObject(refused(name));
        await expect(store.createContainer(ann, { name: 'y', env: value })).rejects.toMatchObject(refused(name));
      }
      const env = { HF_HOME: '/x', TZ: 'UTC', LC_ALL: 'C', OMP_NUM_THREADS: '1', CAPSTAN_MAX_NUM_SEQS: '8' };
      await expect(store.createDeployment(ann, { name: 'z', env })).resolves.toBeDefined();
    });

    test('names a draft model at level L2 only', async () => {
      const env = { CAPSTAN_SPECULATIVE_CONFIG: '{"model": "/platform/input/input0", "num_speculative_tokens": 4}' };
      await open(machine({ isolation: { level: 'L2', reason: 'a test' } }));
      await expect(store.createDeployment(ann, { name: 'x', env })).resolves.toBeDefined();
      await open(machine({ isolation: { level: 'L1', reason: 'a test' } }));
      await expect(store.createDeployment(ann, { name: 'y', env })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining('CAPSTAN_SPECULATIVE_CONFIG cannot be set: it names a draft model'),
      });
      const table = { CAPSTAN_MODELS: '{"a": {"model": "demo", "speculative-config": {"model": "/etc"}}}' };
      await expect(store.createDeployment(ann, { name: 'y', env: table })).rejects.toMatchObject({
        message: expect.stringContaining('CAPSTAN_MODELS cannot be set: it names models and files'),
      });
      const lookUp = { CAPSTAN_SPECULATIVE_CONFIG: '{"method": "ngram", "num_speculative_tokens": 4}' };
      await expect(store.createDeployment(ann, { name: 'z', env: lookUp })).resolves.toBeDefined();
    });

    test('below level L2 a start script takes all variables but those of Node.js, the linker and the service', async () => {
      await open(machine({ isolation: { level: 'L0', reason: 'a test' }, allowsUnisolated: true }));
      const admin = { ...ann, isAdmin: true };
      const script = { start_command: 'python3 serve.py' };
      for (const name of ['NODE_OPTIONS', 'LD_LIBRARY_PATH', 'PATH', 'PLATFORM_HOME', 'CAPSTAN_MAX_NUM_SEQS'])
        await expect(
          store.createDeployment(admin, { name: 'y', ...script, env: { [name]: 'x' } }),
        ).rejects.toMatchObject({ code: 'invalid_argument', message: expect.stringContaining(name) });
      await expect(
        store.createDeployment(admin, { name: 'z', ...script, env: { PYTHONPATH: 'x', ANY: 'y' } }),
      ).resolves.toBeDefined();
    });

    test('below level L2 checks isolation for every new version, not only for a new script', async () => {
      await open(machine({ isolation: { level: 'L1', reason: 'a test' }, allowsUnisolated: true }));
      const admin = { ...ann, isAdmin: true };
      const { id } = await store.createDeployment(admin, { name: 'x', start_command: 'python3 serve.py' });
      await expect(store.createVersion(ann, id, { env: { A: '1' } })).rejects.toMatchObject({ code: 'forbidden' });
      await expect(store.createVersion(admin, id, { env: { A: '1' } })).resolves.toBeDefined();
    });

    test('accepts as model only demo, a name on the hub or a bound folder', async () => {
      const root = makeFolder();
      fs.mkdirSync(path.join(root, 'weights'));
      await open(machine({ dataRoots: [root] }));
      const source = await store.createDataSource(
        { ...ann, isAdmin: true },
        { name: 'w', type: 'model', path: path.join(root, 'weights') },
      );
      const createWith = (model: string, bound = false) =>
        store.createDeployment(ann, {
          name: model,
          runtime: { model },
          bindings: bound ? [{ mount: 'input1', source_id: source.id }] : [],
        });
      await expect(createWith('demo')).resolves.toBeDefined();
      await expect(createWith('/platform/input/input1/x', true)).resolves.toBeDefined();
      for (const model of [
        '/platform/input/input1',
        '/platform/input/input1/../input2',
        '/etc',
        'meta/llama/x',
        '/platform/input/input9',
      ])
        await expect(createWith(model)).rejects.toMatchObject({ code: 'invalid_argument' });
      const bob = await createUser('bob@example.com');
      await expect(
        store.createDeployment(bob, { name: 'x', bindings: [{ mount: 'input0', source_id: source.id }] }),
      ).rejects.toMatchObject({ code: 'invalid_argument' });
      expect(await store.listDataSources(bob)).toEqual([]);
      expect(JSON.stringify(await store.listDataSources(ann))).not.toContain(root);
      await expect(
        store.createDeployment(ann, {
          name: 'twice',
          bindings: [
            { mount: 'input0', source_id: source.id },
            { mount: 'input0', source_id: source.id },
          ],
        }),
      ).rejects.toMatchObject({ code: 'invalid_argument' });
    });
  });

  test('reports whether a key exists when access control is enabled, and adopts a name that keys used before', async () => {
    await open();
    const { id } = await store.createDeployment(ann, { name: 'chat' });
    expect(await store.switchAccessControl(ann, id, true)).toMatchObject({
      hasKey: false,
      deployment: { access_control: true },
    });
    const owner = { type: 'user', name: 'ann@example.com' } as const;
    await store.createKey({ name: 'k', type: 'deployment-level', owner, deployments: ['chat', 'later'] });
    expect(await store.switchAccessControl(ann, id, true)).toMatchObject({ hasKey: true });
    const later = await store.createDeployment(ann, { name: 'later', access_control: true });
    expect((await store.getKey('k')).deployments.map((deployment) => deployment.id).sort()).toEqual(
      [id, later.id].sort(),
    );
    await expect(store.createDeployment(ann, { name: 'later' })).rejects.toMatchObject({ code: 'conflict' });
    await store.discardDeployment(ann, later.id);
    // It has no replicas, so the next step can delete it.
    await store.reconcileDeployment(
      { epoch: 0, startedAt: 0 },
      later.id,
      [],
      { numOpen: 0, lastAt: 0, minOpen: 0, maxOpen: 0 },
      DEFAULT_CONTROL_POLICY,
    );
    expect(await store.removeDeployment(0, later.id)).toHaveLength(1);
    expect((await store.getKey('k')).deployments.map((deployment) => deployment.id)).toEqual([id]);
  });
});
