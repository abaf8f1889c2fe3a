/** Canaries from the version to the roll-back: store, controller, the gateway's choice and the watcher. */
import { CanaryWatcher } from '../../../../server/platform/canary/canary-watcher';
import { chooseVariant } from '../../../../server/platform/gateway/canary-share';
import type { GatewayRecord } from '../../../../server/platform/gateway/gateway';
import type { Target } from '../../../../server/platform/gateway/targets';
import { overBackends, makeFolder } from '../../access/support';
import { random } from '../control/random';
import { type Harness, openHarness, withAnn } from '../support';

overBackends((make) => {
  let h: Harness;
  let watcher: CanaryWatcher;
  let id: string;
  let slug: string;
  let next: () => number;

  const openWatcher = () =>
    new CanaryWatcher({
      store: h.store,
      targets: h.targets,
      reconcile: (deploymentId) => h.controller.reconcile(deploymentId),
      log: { info: () => {}, warn: (_fields, message) => void h.warnings.push(message) },
      clock: h.clock,
    });

  beforeEach(async () => {
    h = await openHarness(await make(withAnn), makeFolder());
    watcher = openWatcher();
    ({ next } = random(7));
    ({ id, slug } = await h.store.createDeployment(h.actor, { name: 'chat', min_replicas: 2, max_replicas: 4 }));
    await h.controller.reconcile(id);
    await h.settle();
    expect(await h.store.getDeployment(h.actor, id)).toMatchObject({ state: 'running', ready_replicas: 2 });
  });
  afterEach(async () => {
    await watcher.close();
    await h.close();
  });

  const target = (): Target => h.targets.find(slug) as Target;
  const canary = async () => (await h.store.getCanary(h.actor, id))!;
  const settleAfter = async (changing: Promise<unknown>) => {
    await changing;
    await h.controller.reconcile(id);
    await h.settle();
  };
  const begin = (split: object = { percent: 10 }) =>
    settleAfter(h.store.createVersion(h.actor, id, { note: 'new', canary: { percent: 0, ...split } }));
  const events = async () => (await h.store.readDeploymentEvents(h.actor, id, 0, 1000)).map(({ type }) => type);
  const versionOf = (replicaIds: readonly string[]) =>
    Promise.all(
      [1, 2].map(async (number) => {
        const { replicas } = await h.store.getVersion(h.actor, id, number);
        return replicas.some((replica) => replicaIds.includes(replica.id)) ? number : 0;
      }),
    ).then((numbers) => numbers.filter((number) => number > 0));

  /** Sends a request as the gateway does, and returns the version that gets it. */
  const send = async (
    fails: { stable: number; canary: number },
    { headers = [], keyId, fallback }: { headers?: [string, string][]; keyId?: string; fallback?: string } = {},
  ): Promise<'stable' | 'canary' | undefined> => {
    const { served } = chooseVariant(target(), { headers }, keyId, next);
    const isError = next() < fails[served?.variant ?? 'stable'];
    watcher.record({
      deploymentId: id,
      slug,
      status: isError && fallback === undefined ? 500 : 200,
      ...(isError && fallback !== undefined ? { fallbackId: fallback } : {}),
      replicaMs: 50 + 20 * next(),
      failures: [],
      ...(served === undefined ? {} : { served }),
    } as unknown as GatewayRecord);
    await watcher.settled();
    await h.settle();
    return served?.variant;
  };

  test('one replica of the new version gets its share, and the old version serves the rest', async () => {
    await begin();
    expect(await h.store.getDeployment(h.actor, id)).toMatchObject({
      state: 'updating',
      active_version: 1,
      target_version: 2,
    });
    expect(await versionOf(target().replicas.map((replica) => replica.id))).toEqual([1]);
    expect(await versionOf(target().canary!.replicas.map((replica) => replica.id))).toEqual([2]);
    expect([target().replicas.length, target().canary!.replicas.length]).toEqual([2, 1]);
    const variants = [];
    for (let i = 0; i < 300; i++) variants.push(await send({ stable: 0, canary: 0 }));
    const share = variants.filter((variant) => variant === 'canary').length / 300;
    expect(share).toBeGreaterThan(0.05);
    expect(share).toBeLessThan(0.16);
    await watcher.save();
    const view = await canary();
    expect(view).toMatchObject({ version: 2, percent: 10, state: 'running', reason: null });
    expect(view.stable.requests + view.canary.requests).toBe(300);
    expect(view.canary).toMatchObject({ errors: 0, first_token_ms: expect.any(Number) });
    // It stays for days, and the loop does not spin.
    await h.advance(48 * 3_600_000);
    expect((await canary()).state).toBe('running');
  });

  test('a canary whose failures another deployment hides from the clients is rolled back, too', async () => {
    await begin({ percent: 30 });
    for (let i = 0; i < 400 && target().canary !== undefined; i++)
      await send({ stable: 0, canary: 0.5 }, { fallback: 'other' });
    expect(target().canary).toBeUndefined();
    expect((await canary()).state).toBe('rolled_back');
  });

  const record = (variant: 'stable' | 'canary', fields: object): Promise<void> => {
    const { versionId } = target().canary!;
    watcher.record({
      deploymentId: id,
      slug,
      status: 200,
      failures: [],
      served: { versionId, variant },
      ...fields,
    } as unknown as GatewayRecord);
    return watcher.settled();
  };

  test('mistakes of clients count neither as errors nor as successes', async () => {
    await begin({ percent: 30 });
    for (let i = 0; i < 200; i++) {
      await record('canary', { status: [400, 404, 429, 501][i % 4], firstByteMs: 1, replicaMs: 1 });
      await record('stable', { status: 501 });
    }
    // Time before the request is sent to the replica is not the replica's.
    for (let i = 0; i < 30; i++) {
      await record('stable', { firstByteMs: 10, replicaMs: 10 });
      await record('canary', { firstByteMs: 60_000, replicaMs: 10 });
    }
    await watcher.save();
    expect(await canary()).toMatchObject({
      state: 'running',
      stable: { requests: 30, errors: 0, first_token_ms: 10 },
      canary: { requests: 30, errors: 0, first_token_ms: 10 },
    });
  });

  test('a roll-back that cannot be saved is tried again without a request', async () => {
    await begin({ percent: 30 });
    const saving = jest.spyOn(h.store, 'failCanary').mockRejectedValueOnce(new Error('the disk is full'));
    for (let i = 0; i < 10; i++) await record('canary', { status: 500 });
    expect([saving.mock.calls.length, (await canary()).state]).toEqual([1, 'running']);
    await h.advance(6_000);
    await watcher.settled();
    await h.settle();
    expect([saving.mock.calls.length, (await canary()).state]).toEqual([2, 'rolled_back']);
    saving.mockRestore();
  });

  test('a roll-back that was not saved before a restart follows from the saved score', async () => {
    await begin({ percent: 30 });
    const saving = jest.spyOn(h.store, 'failCanary').mockRejectedValueOnce(new Error('the disk is full'));
    for (let i = 0; i < 10; i++) await record('canary', { status: 500 });
    saving.mockRestore();
    await h.killAndRestart();
    watcher = openWatcher();
    await record('stable', {});
    await h.settle();
    expect((await canary()).state).toBe('rolled_back');
  });

  test('a canary that fails 20 % of its requests is back within 50 of them', async () => {
    await begin({ percent: 30 });
    let numCanary = 0;
    for (let i = 0; i < 500 && target().canary !== undefined; i++)
      if ((await send({ stable: 0, canary: 0.2 })) === 'canary') numCanary++;
    expect(numCanary).toBeLessThanOrEqual(50);
    expect(await canary()).toMatchObject({
      state: 'rolled_back',
      reason: expect.stringMatching(/^errors: \d+ of \d+ requests, and 0 of \d+ of the active version$/),
      canary: { requests: numCanary },
    });
    expect(await h.store.getDeployment(h.actor, id)).toMatchObject({
      state: 'running',
      active_version: 1,
      target_version: null,
    });
    await h.advance(60_000);
    expect((await h.store.getVersion(h.actor, id, 2)).state).toBe('stopped');
    expect(await events()).toContain('rollout.rolled_back');
    expect(await send({ stable: 0, canary: 1 })).toBeUndefined();
    // The next version starts a new canary.
    await begin({ percent: 50 });
    expect(await canary()).toMatchObject({ version: 3, state: 'running', canary: { requests: 0 } });
  });

  test('a healthy canary stays, and a user promotes it', async () => {
    await begin({ percent: 50 });
    for (let i = 0; i < 400; i++) await send({ stable: 0.01, canary: 0.01 });
    expect((await canary()).state).toBe('running');
    await settleAfter(h.store.decideCanary(h.actor, id, 'promoting'));
    await h.settle();
    expect(await h.store.getDeployment(h.actor, id)).toMatchObject({
      state: 'running',
      active_version: 2,
      target_version: null,
      ready_replicas: 2,
    });
    expect(await canary()).toMatchObject({ state: 'promoted', reason: null });
    expect(target().canary).toBeUndefined();
    expect(await versionOf(target().replicas.map((replica) => replica.id))).toEqual([2]);
    expect((await events()).filter((type) => type.startsWith('rollout.promote'))).toEqual([
      'rollout.promote',
      'rollout.promoted',
    ]);
    await expect(h.store.decideCanary(h.actor, id, 'promoting')).rejects.toThrow('the canary is promoted');
  });

  test('a promoted canary replaces the old version only when all its replicas are ready', async () => {
    await begin();
    h.driver.answers = () => false;
    await settleAfter(h.store.decideCanary(h.actor, id, 'promoting'));
    expect((await h.store.getDeployment(h.actor, id)).active_version).toBe(1);
    const { replicas } = await h.store.getVersion(h.actor, id, 2);
    expect(replicas.map(({ state }) => state).sort()).toEqual(['ready', 'starting']);
    h.driver.emit({ type: 'ready', replicaId: replicas.find(({ state }) => state === 'starting')!.id });
    await h.settle();
    expect((await h.store.getDeployment(h.actor, id)).active_version).toBe(2);
  });

  test('chooses by header and by key', async () => {
    const { key } = await h.store.createKey({
      owner: { type: 'user', name: 'ann@example.com' },
      name: 'canary',
      type: 'user-level',
    });
    const keyId = key.id;
    await begin({ header: 'X-Canary: yes', keys: [keyId] });
    const none = { stable: 0, canary: 0 };
    expect(await send(none)).toBe('stable');
    expect(await send(none, { headers: [['x-canary', 'yes']] })).toBe('canary');
    expect(await send(none, { headers: [['x-canary', 'no']] })).toBe('stable');
    expect(await send(none, { keyId })).toBe('canary');
    await settleAfter(h.store.editCanary(h.actor, id, { percent: 100, header: null }));
    expect(await canary()).toMatchObject({ percent: 100, header: null, keys: [keyId] });
    expect(await send(none)).toBe('canary');
    await expect(h.store.editCanary(h.actor, id, { percent: 0, keys: [] })).rejects.toThrow('percent: expected more');
    await expect(h.store.editCanary(h.actor, id, { percent: 1, header: 'no colon' })).rejects.toThrow('header: ');
    await expect(h.store.editCanary(h.actor, id, { percent: 1, keys: ['key_x'] })).rejects.toThrow('keys: ');
  });

  test('a user rolls back, another activation cancels, a stop cancels, and a canary that crashes is back', async () => {
    await begin();
    await settleAfter(h.store.decideCanary(h.actor, id, 'rolling_back'));
    expect(await canary()).toMatchObject({ state: 'rolled_back', reason: 'a user rolled it back' });
    await h.advance(60_000);

    await begin();
    await settleAfter(h.store.activateVersion(h.actor, id, 1));
    expect((await canary()).state).toBe('cancelled');
    await h.advance(60_000);

    await begin();
    await settleAfter(h.store.applyIntent(h.actor, id, 'stop'));
    expect((await canary()).state).toBe('cancelled');
    expect((await h.store.getDeployment(h.actor, id)).active_version).toBe(1);
    await h.advance(60_000);
    await expect(h.store.createVersion(h.actor, id, { canary: { percent: 5 } })).rejects.toThrow('canary: expected');
    await settleAfter(h.store.applyIntent(h.actor, id, 'start'));
    await h.settle();

    h.driver.answers = () => false;
    await begin();
    expect(target().canary).toBeUndefined();
    await h.advance(3_600_000);
    expect(await canary()).toMatchObject({
      state: 'rolled_back',
      reason: expect.stringMatching(/^the version failed: /),
    });
    expect((await h.store.getDeployment(h.actor, id)).active_version).toBe(1);
  });

  test('statistics and the roll-back survive a restart of the service', async () => {
    await begin({ percent: 50 });
    for (let i = 0; i < 40; i++) await send({ stable: 0, canary: 0 });
    await watcher.save();
    const before = await canary();
    await h.killAndRestart();
    watcher = openWatcher();
    expect(target().canary).toBeDefined();
    await send({ stable: 0, canary: 0 });
    await watcher.save();
    const after = await canary();
    expect(after.stable.requests + after.canary.requests).toBe(before.stable.requests + before.canary.requests + 1);
  });
});
