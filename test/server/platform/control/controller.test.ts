import fs from 'node:fs';
import path from 'node:path';
import { DriverError, type ReplicaSpec } from '../../../../server/platform/driver/driver';
import type { Target } from '../../../../server/platform/gateway/targets';
import { DEFAULT_CONTROL_POLICY } from '../../../../server/platform/control/records';
import { overBackends, makeFolder } from '../../access/support';
import { GPU, type Harness, machine, openHarness, withAnn } from '../support';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;

overBackends((make) => {
  let h: Harness;

  const open = async (...args: Parameters<typeof openHarness> extends [unknown, unknown, ...infer R] ? R : never) => {
    h = await openHarness(await make(withAnn), makeFolder(), ...args);
  };
  afterEach(async () => {
    await h.close();
  });

  const get = (id: string) => h.store.getDeployment(h.actor, id);
  const version = (id: string, number: number) => h.store.getVersion(h.actor, id, number);
  const create = async (request: Partial<Parameters<Harness['store']['createDeployment']>[1]> = {}) => {
    const made = await h.store.createDeployment(h.actor, { name: 'chat', ...request });
    await h.controller.reconcile(made.id);
    await h.settle();
    return made;
  };
  /** Waits for a user's change and for the steps that follow it. */
  const settleAfter = async (id: string, changing: Promise<unknown>) => {
    await changing;
    await h.controller.reconcile(id);
    await h.settle();
  };
  const target = (slug: string): Target => h.targets.find(slug) as Target;
  const running = (): ReplicaSpec[] => [...h.world.running.values()].map(({ spec }) => spec);
  const events = async (id: string) =>
    (await h.store.readDeploymentEvents(h.actor, id, 0, 1000)).map(({ type }) => type);
  const start = async (request?: Parameters<typeof create>[0]) => {
    const made = await create(request);
    expect(await get(made.id)).toMatchObject({ state: 'running' });
    return made;
  };

  test('starts and routes to the built-in runtime with the embedded model when only a name is given', async () => {
    await open();
    h.driver.answers = () => false;
    const made = await h.store.createDeployment(h.actor, { name: 'chat' });
    expect(made).toMatchObject({
      state: 'pending',
      active_version: 1,
      target_version: null,
      access_control: false,
      owner: { type: 'user', name: 'ann@example.com' },
    });
    expect(made.slug).toMatch(/^[0-9a-hjkmnp-tv-z]{12}$/);
    await h.controller.reconcile(made.id);
    // The gateway knows the address before the replica is ready.
    expect(target(made.slug)).toMatchObject({
      deploymentId: made.id,
      state: 'pending',
      replicas: [],
      ownerId: h.actor.userId,
    });
    await h.settle();
    expect(await version(made.id, 1)).toMatchObject({
      state: 'starting',
      is_active: true,
      replicas: [{ ordinal: 0, state: 'starting' }],
    });
    const [spec] = running();
    expect(spec).toMatchObject({
      isProduction: true,
      startCommand: null,
      runtimeArgs: ['demo', '--device', 'cpu'],
      cpuMillis: 1_000,
      memoryMb: 1_024,
      gpuUuids: [],
      healthPath: '/v1/models',
      home: null,
      inputs: [],
    });
    h.driver.emit({ type: 'ready', replicaId: spec.id });
    await h.settle();
    expect(await get(made.id)).toMatchObject({ state: 'running', ready_replicas: 1, reason: null });
    expect(target(made.slug)).toMatchObject({
      state: 'running',
      replicas: [{ id: spec.id, secret: spec.secret, isBuiltin: true, address: { type: 'tcp' } }],
    });
    expect(await events(made.id)).toEqual(
      expect.arrayContaining([
        'deployment.created',
        'version.queued',
        'version.preparing',
        'version.starting',
        'version.running',
        'deployment.running',
      ]),
    );
  });

  test('fails a start after its deadline with the reason and the last log lines', async () => {
    await open();
    h.driver.answers = () => false;
    const { id, slug } = await create({ start_deadline_s: 60, start_command: 'python3 serve.py' });
    const [spec] = running();
    h.logs.set(
      spec.logId,
      Array.from({ length: 250 }, (_, i) => `line ${i}`),
    );
    h.driver.emit({ type: 'misplaced', replicaId: spec.id, reason: 'wrong_port', message: 'listens on 8080' });
    await h.settle();
    // The reason is shown at once, while the start may still succeed.
    expect(await version(id, 1)).toMatchObject({
      state: 'starting',
      reason: { code: 'wrong_port', message: 'listens on 8080' },
    });
    await h.advance(59 * SECOND);
    expect((await get(id)).state).toBe('pending');
    await h.advance(SECOND);
    const { reason } = await get(id);
    expect(await get(id)).toMatchObject({ state: 'failed', reason: { code: 'wrong_port' } });
    expect(reason?.last_lines).toHaveLength(200);
    expect(reason?.last_lines[199]).toBe('line 249');
    expect(running()).toEqual([]);
    expect(target(slug)).toMatchObject({ state: 'failed', replicas: [] });
    await settleAfter(id, h.store.applyIntent(h.actor, id, 'start'));
    expect(await version(id, 1)).toMatchObject({ state: 'starting', reason: null });
    await h.advance(MINUTE);
    expect(await get(id)).toMatchObject({ state: 'failed', reason: { code: 'start_timeout' } });
  });

  test('reports a failing health check while starting, and a crash instead when the replica exits', async () => {
    await open();
    h.driver.answers = () => false;
    const { id } = await create({ start_deadline_s: 60, start_command: 'python3 serve.py' });
    const failing = { reason: 'health_check_failed' as const, message: '/v1/models answers 404' };
    h.driver.emit({ type: 'misplaced', replicaId: running()[0].id, ...failing });
    await h.settle();
    expect(await version(id, 1)).toMatchObject({
      state: 'starting',
      reason: { code: failing.reason, message: failing.message },
    });
    h.driver.exit(running()[0].id, 7);
    await h.settle();
    expect(await version(id, 1)).toMatchObject({ state: 'backoff', reason: { code: 'crash_loop', exit_code: 7 } });
    await h.advance(10 * SECOND);
    h.driver.emit({ type: 'misplaced', replicaId: running()[0].id, ...failing });
    await h.settle();
    await h.advance(MINUTE);
    expect(await get(id)).toMatchObject({ state: 'failed', reason: { code: failing.reason } });
  });

  test('a flag that the runtime refuses fails a version at once, one of a start script does not', async () => {
    await open();
    h.driver.answers = () => false;
    const builtin = await create();
    h.driver.exit(running()[0].id, 2, { refusedFlag: true });
    await h.settle();
    expect(await get(builtin.id)).toMatchObject({
      state: 'failed',
      reason: { code: 'crash_loop', message: expect.stringMatching(/^exited once: /), exit_code: 2 },
    });
    const script = await create({ name: 'script', start_command: 'python3 serve.py' });
    h.driver.exit(running()[0].id, 2, { refusedFlag: true });
    await h.settle();
    expect(await version(script.id, 1)).toMatchObject({ state: 'backoff' });
  });

  test('a flag that is refused after the version was ready is tried again', async () => {
    await open();
    const { id } = await create();
    h.driver.exit(running()[0].id, 2, { refusedFlag: true });
    await h.settle();
    expect(await version(id, 1)).toMatchObject({ state: 'backoff' });
  });

  test('restarts a crashing replica with exponential backoff until the limit', async () => {
    await open();
    h.driver.answers = () => false;
    const { id } = await create();
    const delays: number[] = [];
    for (let exits = 1; exits < 5; exits++) {
      h.driver.exit(running()[0].id, 7);
      await h.settle();
      const { state, retry_at: retryAt, reason } = await version(id, 1);
      expect([state, reason]).toEqual([
        'backoff',
        {
          code: 'crash_loop',
          exit_code: 7,
          message: expect.stringMatching(exits === 1 ? /^exited once: / : `^exited ${exits} times: `),
          last_lines: [],
        },
      ]);
      expect(await get(id)).toMatchObject({ state: 'pending', reason });
      delays.push(Date.parse(retryAt ?? '') - h.clock.now());
      await h.advance(delays[exits - 1]);
      expect(await version(id, 1)).toMatchObject({ state: 'starting', reason: null, replicas: [{ restarts: exits }] });
    }
    expect(delays).toEqual([10, 20, 40, 80].map((seconds) => seconds * SECOND));
    h.driver.exit(running()[0].id, 7);
    await h.settle();
    expect(await get(id)).toMatchObject({
      state: 'failed',
      reason: { code: 'crash_loop', exit_code: 7, message: expect.stringContaining('exit code 7') },
    });
    expect(new Set(h.world.started.map((spec) => spec.id)).size).toBe(5);
    expect((await version(id, 1)).replicas).toEqual([]);
  });

  test.each(['out_of_memory', 'gpu_out_of_memory', 'disk_full'] as const)(
    'reports an exit because of %s with that code',
    async (code) => {
      await open(undefined, {
        ...DEFAULT_CONTROL_POLICY,
        crash: { firstDelayMs: 1, longestDelayMs: 1, healthyMs: MINUTE, maxExits: 1 },
      });
      const { id } = await start();
      h.driver.exit(running()[0].id, null, { cause: code });
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'failed', reason: { code } });
    },
  );

  test('retries while the disk is full if the version ran before, and fails a new version', async () => {
    await open(undefined, {
      ...DEFAULT_CONTROL_POLICY,
      crash: { firstDelayMs: SECOND, longestDelayMs: SECOND, healthyMs: MINUTE, maxExits: 2 },
    });
    const { id } = await start();
    h.driver.beforeEnsure = () => Promise.reject(new DriverError('disk_full', 'no space left'));
    h.driver.exit(running()[0].id, 1);
    await h.settle();
    for (let i = 0; i < 5; i++) {
      await h.advance(SECOND);
      expect(await get(id)).toMatchObject({
        state: 'degraded',
        reason: { code: 'disk_full', message: expect.stringContaining('no space left') },
      });
    }
    const { id: late } = await create({ name: 'late' });
    expect(await get(late)).toMatchObject({ state: 'failed', reason: { code: 'disk_full' } });
    h.driver.beforeEnsure = () => Promise.resolve();
    await h.advance(SECOND);
    expect(await get(id)).toMatchObject({ state: 'running', reason: null });
  });

  test('refuses to start a script when replicas are no longer isolated', async () => {
    const script = { start_command: 'python3 serve.py' };
    await open();
    const { id } = await create(script);
    const { id: loading } = await create({ name: 'loading', env: { NODE_OPTIONS: '--import=data:,' } });
    expect(await get(id)).toMatchObject({ state: 'running' });
    Object.assign(h.driver.isolation, { level: 'L1', reason: 'the machine forbids it' });
    await settleAfter(id, h.store.applyIntent(h.actor, id, 'restart'));
    expect(await get(id)).toMatchObject({
      state: 'failed',
      reason: { code: 'not_isolated', message: expect.stringContaining('the machine forbids it') },
    });
    const { id: builtin } = await create({ name: 'builtin' });
    expect(await get(builtin)).toMatchObject({ state: 'running' });
    await settleAfter(loading, h.store.applyIntent(h.actor, loading, 'restart'));
    expect(await get(loading)).toMatchObject({
      state: 'failed',
      reason: { code: 'not_isolated', message: expect.stringContaining('NODE_OPTIONS') },
    });
  });

  test('fails a version that the driver cannot start, with its reason', async () => {
    await open();
    h.driver.beforeEnsure = () => Promise.reject(new DriverError('image_missing', 'there is no runtime'));
    const { id } = await create();
    expect(await get(id)).toMatchObject({
      state: 'failed',
      reason: { code: 'image_missing', message: 'there is no runtime' },
    });
    expect((await version(id, 1)).replicas).toEqual([]);
  });

  describe('roll-out', () => {
    test('starts the new version beside the old one, which serves until then and drains afterwards', async () => {
      await open();
      const { id, slug } = await start();
      const [old] = running();
      h.driver.answers = () => false;
      await settleAfter(id, h.store.createVersion(h.actor, id, { env: { A: '1' }, note: 'second' }));
      expect(await get(id)).toMatchObject({ state: 'updating', active_version: 1, target_version: 2 });
      expect(target(slug).replicas.map((replica) => replica.id)).toEqual([old.id]);
      await expect(h.store.createVersion(h.actor, id, {})).rejects.toMatchObject({ code: 'busy' });
      const fresh = running().find((spec) => spec.id !== old.id) as ReplicaSpec;
      expect(fresh.env).toEqual({ A: '1' });
      h.controller.onOpenRequests(id, old.id, 2);
      h.driver.emit({ type: 'ready', replicaId: fresh.id });
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2, target_version: null });
      // New requests go to the new version at once. The old one stops after its last request.
      expect(target(slug).replicas.map((replica) => replica.id)).toEqual([fresh.id]);
      expect(await version(id, 1)).toMatchObject({ state: 'stopping' });
      h.controller.onOpenRequests(id, old.id, 0);
      await h.settle();
      expect(await version(id, 1)).toMatchObject({ state: 'stopped', replicas: [] });
      expect(running().map((spec) => spec.id)).toEqual([fresh.id]);
    });

    test('a replica knows the largest limit of the versions that share the prefix cache on the disk', async () => {
      await open();
      const { id } = await start({ runtime: { prefix_cache_disk_mb: 640 } });
      h.driver.answers = () => false;
      await settleAfter(id, h.store.createVersion(h.actor, id, { runtime: { prefix_cache_disk_mb: 64 } }));
      expect(running().map(({ cache }) => [cache?.maxMb, cache?.sharedMb])).toEqual([
        [640, 640],
        [64, 640],
      ]);
    });

    test('drains for at most the grace period', async () => {
      await open();
      const { id } = await start({ grace_s: 5 });
      const [old] = running();
      await settleAfter(id, Promise.resolve(h.controller.onOpenRequests(id, old.id, 1)));
      await settleAfter(id, h.store.createVersion(h.actor, id, {}));
      await h.advance(4_999);
      expect(h.world.running.has(old.id)).toBe(true);
      await h.advance(1);
      expect(h.world.running.has(old.id)).toBe(false);
      expect(await version(id, 1)).toMatchObject({ state: 'stopped' });
    });

    test('keeps the old version serving when the new one fails, until the failure is dismissed', async () => {
      await open();
      const { id, slug } = await start();
      const [old] = running();
      h.driver.answers = () => false;
      await settleAfter(id, h.store.createVersion(h.actor, id, { start_deadline_s: 10 }));
      await h.advance(10 * SECOND);
      expect(await get(id)).toMatchObject({
        state: 'update_failed',
        active_version: 1,
        target_version: 2,
        reason: { code: 'start_timeout' },
      });
      expect(target(slug).replicas.map((replica) => replica.id)).toEqual([old.id]);
      await settleAfter(id, h.store.activateVersion(h.actor, id, 1));
      expect(await get(id)).toMatchObject({ state: 'running', target_version: null, reason: null });
      await expect(h.store.activateVersion(h.actor, id, 1)).rejects.toMatchObject({ code: 'conflict' });
      expect(await version(id, 2)).toMatchObject({ state: 'error' });
    });

    test('replaces the old version when there is no capacity for both', async () => {
      await open(machine({ gpus: 1 }));
      const { id, slug } = await start({ compute: { gpu_count: 1 } });
      const [old] = running();
      expect(old.gpuUuids).toEqual([GPU(0).uuid]);
      h.driver.answers = () => false;
      await settleAfter(id, h.store.createVersion(h.actor, id, {}));
      const fresh = running()[0];
      expect(fresh.id).not.toBe(old.id);
      expect(fresh.gpuUuids).toEqual([GPU(0).uuid]);
      expect(await get(id)).toMatchObject({ state: 'updating' });
      expect(
        (await h.store.readDeploymentEvents(h.actor, id, 0, 1000)).filter(({ type }) => type === 'rollout.replace'),
      ).toMatchObject([
        {
          data: {
            version: 2,
            message: expect.stringContaining('not enough capacity for both: needs 1 free GPU, 0 available'),
          },
        },
      ]);
      expect(target(slug).replicas).toEqual([]);
      h.driver.emit({ type: 'ready', replicaId: fresh.id });
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2 });
    });

    test('starts the old version again when its replacement fails', async () => {
      await open(machine({ gpus: 1 }));
      const { id } = await start({ compute: { gpu_count: 1 } });
      h.driver.answers = ({ env }) => !('BROKEN' in env);
      await settleAfter(id, h.store.createVersion(h.actor, id, { env: { BROKEN: '1' }, start_deadline_s: 10 }));
      expect(await version(id, 1)).toMatchObject({ state: 'stopped' });
      await h.advance(10 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'update_failed', active_version: 1, ready_replicas: 1 });
      expect(running()[0].env).toEqual({});
    });

    test('waits for capacity with the strategy surge, and fails at the queue deadline', async () => {
      await open(machine({ gpus: 1 }));
      const { id } = await start({ compute: { gpu_count: 1 }, strategy: 'surge' });
      await settleAfter(id, h.store.createVersion(h.actor, id, {}));
      expect(await version(id, 2)).toMatchObject({ state: 'queued' });
      expect(await version(id, 1)).toMatchObject({ state: 'running' });
      await h.advance(30 * MINUTE);
      expect(await version(id, 2)).toMatchObject({
        state: 'error',
        reason: { code: 'insufficient_gpu', message: expect.stringContaining('needs 1 free GPU, 0 available') },
      });
      expect(await get(id)).toMatchObject({ state: 'update_failed' });
    });

    test('activates an earlier version and never reuses version numbers', async () => {
      await open();
      const { id } = await start();
      await settleAfter(id, h.store.createVersion(h.actor, id, { env: { A: '2' } }));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2 });
      await settleAfter(id, h.store.activateVersion(h.actor, id, 1));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 1 });
      expect(running().map(({ env }) => env)).toEqual([{}]);
      await expect(h.store.deleteVersion(h.actor, id, 1)).rejects.toMatchObject({ code: 'conflict' });
      await h.store.deleteVersion(h.actor, id, 2);
      await expect(version(id, 2)).rejects.toMatchObject({ code: 'not_found' });
      await settleAfter(id, h.store.createVersion(h.actor, id, {}));
      expect(await get(id)).toMatchObject({ active_version: 3 });
    });
  });

  describe('stopping and starting', () => {
    test('stays stopped until it is started, whatever requests arrive', async () => {
      await open();
      const { id, slug } = await start();
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'stop'));
      expect(await get(id)).toMatchObject({ state: 'paused', ready_replicas: 0 });
      expect(running()).toEqual([]);
      h.controller.wake(id);
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'paused', replicas: [] });
      await expect(h.store.applyIntent(h.actor, id, 'stop')).rejects.toMatchObject({ code: 'wrong_state' });
      await expect(h.store.applyIntent(h.actor, id, 'restart')).rejects.toMatchObject({ code: 'wrong_state' });
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'start'));
      expect(await get(id)).toMatchObject({ state: 'running' });
      await expect(h.store.applyIntent(h.actor, id, 'start')).rejects.toMatchObject({ code: 'wrong_state' });
    });

    test('restarts the same version', async () => {
      await open();
      const { id } = await start();
      const [old] = running();
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'restart'));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 1 });
      expect(running().map((spec) => spec.id)).not.toContain(old.id);
    });

    test('cancels the roll-out when stopped', async () => {
      await open();
      const { id } = await start();
      h.driver.answers = () => false;
      await settleAfter(id, h.store.createVersion(h.actor, id, {}));
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'stop'));
      expect(await get(id)).toMatchObject({ state: 'paused', active_version: 1, target_version: null });
      expect(running()).toEqual([]);
      // A version created while paused is the one that starts next.
      h.driver.answers = () => true;
      await settleAfter(id, h.store.createVersion(h.actor, id, {}));
      expect(await get(id)).toMatchObject({ state: 'paused', active_version: 3 });
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'start'));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 3 });
    });
  });

  describe('scale', () => {
    test('never scales to zero by itself with idle_timeout_s null and a minimum of 0', async () => {
      await open();
      const { id } = await start({ min_replicas: 0, idle_timeout_s: null });
      await h.advance(24 * 60 * MINUTE);
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 1 });
    });

    test('scales to zero after the idle timeout and wakes on the first request', async () => {
      await open();
      const { id, slug } = await start({ idle_timeout_s: 60 });
      const [replica] = running();
      await h.advance(30 * SECOND);
      h.controller.onOpenRequests(id, replica.id, 1);
      await h.advance(2 * MINUTE);
      expect(await get(id)).toMatchObject({ state: 'running' });
      h.controller.onOpenRequests(id, replica.id, 0);
      await h.advance(59 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'running' });
      await h.advance(SECOND);
      expect(await get(id)).toMatchObject({ state: 'scaled_to_zero', ready_replicas: 0 });
      expect(running()).toEqual([]);
      h.driver.answers = () => false;
      for (let i = 0; i < 5; i++) h.controller.wake(id);
      await h.settle();
      // The gateway holds requests until the replica is ready.
      expect(target(slug).state).toBe('scaled_to_zero');
      expect(running()).toHaveLength(1);
      h.driver.emit({ type: 'ready', replicaId: running()[0].id });
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'running', replicas: [{}] });
    });

    test('scales to zero on command, and after the default idle timeout with min_replicas 0', async () => {
      await open();
      const { id } = await start({ min_replicas: 0 });
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'scaleToZero'));
      expect(await get(id)).toMatchObject({ state: 'scaled_to_zero' });
      await expect(h.store.applyIntent(h.actor, id, 'scaleToZero')).rejects.toMatchObject({ code: 'wrong_state' });
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'start'));
      expect(await get(id)).toMatchObject({ state: 'running' });
      await h.advance(15 * MINUTE);
      expect(await get(id)).toMatchObject({ state: 'scaled_to_zero' });
    });

    test('is degraded after an exit until the replica restarts on the same GPU', async () => {
      await open(machine({ gpus: 2 }));
      const { id, slug } = await start({ min_replicas: 2, max_replicas: 2, compute: { gpu_count: 1 } });
      const [first, second] = running();
      expect(await get(id)).toMatchObject({ ready_replicas: 2 });
      h.driver.exit(first.id);
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'degraded', ready_replicas: 1 });
      expect(target(slug).replicas.map((replica) => replica.id)).toEqual([second.id]);
      await h.advance(10 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 2 });
      const again = running().find((spec) => spec.id !== second.id) as ReplicaSpec;
      expect([again.gpuUuids, again.ordinal]).toEqual([first.gpuUuids, first.ordinal]);
    });

    test('does not route to an unready replica, and restarts it after the deadline', async () => {
      await open();
      const { id, slug } = await start();
      const [replica] = running();
      h.driver.emit({ type: 'unready', replicaId: replica.id, message: 'no answer' });
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'degraded', replicas: [] });
      h.driver.emit({ type: 'ready', replicaId: replica.id });
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'running', replicas: [{ id: replica.id }] });
      h.driver.emit({ type: 'unready', replicaId: replica.id, message: 'no answer' });
      await h.settle();
      await h.advance(5 * MINUTE + 10 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(running().map((spec) => spec.id)).not.toContain(replica.id);
    });

    test('follows the number of open requests within its bounds and the capacity', async () => {
      await open(machine({ gpus: 3 }));
      const { id } = await start({ min_replicas: 1, max_replicas: 5, compute: { gpu_count: 1 } });
      const [first] = running();
      h.controller.onOpenRequests(id, first.id, 16);
      await h.advance(4 * SECOND);
      expect(running()).toHaveLength(1);
      await h.advance(3 * SECOND);
      expect(running()).toHaveLength(2);
      h.controller.onOpenRequests(id, first.id, 100);
      await h.advance(10 * SECOND);
      expect(running()).toHaveLength(3);
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 3 });
      h.controller.onOpenRequests(id, first.id, 0);
      await h.advance(4 * MINUTE);
      expect(running()).toHaveLength(3);
      await h.advance(2 * MINUTE);
      expect(running().map((spec) => spec.id)).toEqual([first.id]);
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 1 });
    });

    test('applies changed bounds to running replicas', async () => {
      await open();
      const { id, rev } = await start();
      await settleAfter(id, h.store.editDeployment(h.actor, id, { min_replicas: 3 }, rev));
      expect(await get(id)).toMatchObject({ ready_replicas: 3, max_replicas: 3 });
      await settleAfter(id, h.store.editDeployment(h.actor, id, { min_replicas: 1 }));
      await h.advance(6 * MINUTE);
      expect(running()).toHaveLength(1);
      await expect(h.store.editDeployment(h.actor, id, { name: 'other' }, rev)).rejects.toMatchObject({
        code: 'stale',
      });
      await expect(h.store.editDeployment(h.actor, id, { max_replicas: 2, min_replicas: 3 })).rejects.toMatchObject({
        code: 'invalid_argument',
      });
    });
  });

  describe('capacity', () => {
    test('starts a waiting deployment when a GPU becomes free', async () => {
      await open(machine({ gpus: 1 }));
      const { id: first } = await start({ compute: { gpu_count: 1 } });
      const { id: second } = await create({ name: 'other', compute: { gpu_count: 1 } });
      expect(await get(second)).toMatchObject({ state: 'pending' });
      expect(await version(second, 1)).toMatchObject({
        state: 'queued',
        replicas: [],
        reason: { code: 'insufficient_gpu', message: 'needs 1 free GPU, 0 available' },
      });
      await settleAfter(first, h.store.applyIntent(h.actor, first, 'stop'));
      expect(await get(second)).toMatchObject({ state: 'running' });
      expect(await h.store.readCapacity(h.actor)).toMatchObject({
        free: { gpu_count: 0, memory_mb: 64_000 - 1_024 },
        gpus: [{ uuid: GPU(0).uuid, free: false }],
      });
    });

    test('starts a waiting deployment when the quota is raised', async () => {
      await open(machine({ gpus: 2 }));
      const root = { ...h.actor, isAdmin: true };
      await h.store.editQuota(root, h.actor.userId, { quota_gpu: 1 });
      await start({ compute: { gpu_count: 1 } });
      const { id: second } = await create({ name: 'other', compute: { gpu_count: 1 } });
      expect(await version(second, 1)).toMatchObject({ state: 'queued', reason: { code: 'quota_exceeded' } });
      expect(await h.store.findQuota(root, h.actor.userId)).toMatchObject({
        quotas: { quota_gpu: 1 },
        used: { used_gpu: 1, used_deployments: 2 },
      });
      await h.store.editQuota(root, h.actor.userId, { quota_gpu: 2 });
      await h.controller.capacityFreed();
      await h.settle();
      expect(await get(second)).toMatchObject({ state: 'running' });
    });

    test.each([
      ['quota_cpu_millis', 1_500, "needs 1 CPU core, 0.5 CPU cores left of the owner's quota of 1.5 CPU cores"],
      [
        'quota_memory_mb',
        1_500,
        "needs 1024 MiB of memory, 476 MiB of memory left of the owner's quota of 1500 MiB of memory",
      ],
    ] as const)(
      'waits while %s is used up, and counts replicas until they have exited',
      async (column, quota, message) => {
        await open(machine());
        const root = { ...h.actor, isAdmin: true };
        await h.store.editQuota(root, h.actor.userId, { [column]: quota });
        const compute = { cpu_millis: 1_000, memory_mb: 1_024 };
        const { id: first } = await start({ compute });
        const { id: second } = await create({ name: 'other', compute });
        expect(await version(second, 1)).toMatchObject({
          state: 'queued',
          reason: { code: 'quota_exceeded', message },
        });
        expect(await h.store.findQuota(root, h.actor.userId)).toMatchObject({
          used: { used_cpu_millis: 1_000, used_memory_mb: 1_024 },
        });
        await settleAfter(first, h.store.applyIntent(h.actor, first, 'stop'));
        await h.settle();
        expect(await get(second)).toMatchObject({ state: 'running' });
        expect(await h.store.findQuota(root, h.actor.userId)).toMatchObject({
          used: { used_cpu_millis: 1_000, used_memory_mb: 1_024 },
        });
      },
    );

    test('runs one rank on each leased GPU', async () => {
      await open(machine({ gpus: 4 }));
      await start({ compute: { gpu_count: 2 } });
      expect(running()[0]).toMatchObject({
        runtimeArgs: ['demo', '--device', 'cuda:0,1'],
        gpuUuids: [GPU(0).uuid, GPU(1).uuid],
      });
      const createWith = (gpus: number, ranks: number | null) =>
        h.store.createDeployment(h.actor, {
          name: `${gpus} and ${ranks}`,
          compute: { gpu_count: gpus },
          runtime: { tensor_parallel_size: ranks },
        });
      await expect(createWith(2, 1)).rejects.toMatchObject({
        code: 'invalid_argument',
        message: 'runtime.tensor_parallel_size: expected 2 (compute.gpu_count) or null, got 1',
      });
      await createWith(2, 2);
      await createWith(2, null);
      await createWith(0, 2);
    });

    test('passes the task of the model to its replicas', async () => {
      await open();
      await start({ runtime: { task: 'embed', served_name: 'minilm' } });
      expect(running()[0].runtimeArgs).toEqual([
        'demo',
        '--served-model-name',
        'minilm',
        '--task',
        'embed',
        '--device',
        'cpu',
      ]);
    });

    test('refuses what does not fit on this machine', async () => {
      await open(machine({ gpus: 1 }));
      const createWith = (compute: object) => h.store.createDeployment(h.actor, { name: 'x', compute });
      await expect(createWith({ gpu_count: 2 })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining('gpu_count'),
      });
      await expect(createWith({ gpu_count: 1, gpu_type: 'B200' })).rejects.toMatchObject({ code: 'invalid_argument' });
      await expect(createWith({ memory_mb: 65_000 })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining('memory_mb'),
      });
      await expect(createWith({ cpu_millis: 17_000 })).rejects.toMatchObject({ code: 'invalid_argument' });
    });
  });

  describe('deleting', () => {
    test('stops everything and frees the name but never the slug', async () => {
      await open();
      const { id, slug } = await start();
      h.driver.answers = () => false;
      await settleAfter(id, h.store.createVersion(h.actor, id, {}));
      const deleting = h.store.discardDeployment(h.actor, id);
      await deleting;
      await expect(h.store.createVersion(h.actor, id, {})).rejects.toMatchObject({ code: 'not_found' });
      await h.controller.reconcile(id);
      expect(h.targets.find(slug)).toBeUndefined();
      await h.settle();
      expect(running()).toEqual([]);
      await expect(get(id)).rejects.toMatchObject({ code: 'not_found' });
      const again = await create();
      expect(again.slug).not.toBe(slug);
    });

    test('waits until the replicas have stopped', async () => {
      await open();
      const { id } = await start();
      h.controller.onOpenRequests(id, running()[0].id, 1);
      await settleAfter(id, h.store.discardDeployment(h.actor, id));
      expect(await get(id)).toMatchObject({ state: 'deleting' });
      await expect(h.store.createDeployment(h.actor, { name: 'chat' })).rejects.toMatchObject({ code: 'conflict' });
      await h.advance(30 * SECOND);
      await expect(get(id)).rejects.toMatchObject({ code: 'not_found' });
    });
  });

  describe('after kill -9', () => {
    test('adopts running replicas unchanged', async () => {
      await open();
      const { id, slug } = await start({ min_replicas: 2 });
      const before = await version(id, 1);
      const known = target(slug);
      await h.killAndRestart();
      expect(await version(id, 1)).toEqual(before);
      expect(target(slug)).toEqual(known);
      expect(h.world.started).toHaveLength(2);
      h.driver.exit(running()[0].id);
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'degraded' });
    });

    test('starts a pending replica exactly once', async () => {
      await open();
      // The row is saved, and whether the process exists is unknown.
      let release = () => {};
      h.driver.beforeEnsure = () =>
        new Promise<void>((resolve) => {
          release = resolve;
        });
      const { id } = await create();
      expect(await version(id, 1)).toMatchObject({ state: 'preparing' });
      release();
      await h.killAndRestart();
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(h.world.started).toHaveLength(1);
    });

    test('restarts replicas that are gone at once, without counting a crash', async () => {
      await open();
      const { id } = await start();
      const [lost] = running();
      h.world.running.clear();
      await h.killAndRestart();
      await h.advance(1);
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(running().map((spec) => spec.id)).not.toContain(lost.id);
      expect((await version(id, 1)).replicas).toMatchObject([{ restarts: 0 }]);
    });

    test('completes pending stops and deletions', async () => {
      await open();
      const { id: first } = await start();
      const { id: second } = await start({ name: 'other' });
      await h.store.applyIntent(h.actor, first, 'stop');
      await h.store.discardDeployment(h.actor, second);
      await h.killAndRestart();
      expect(await get(first)).toMatchObject({ state: 'paused' });
      await expect(get(second)).rejects.toMatchObject({ code: 'not_found' });
      expect(running()).toEqual([]);
    });
  });

  describe('data', () => {
    test('copies the home when a version is created, mounts inputs in place, and refuses folders outside the roots', async () => {
      const root = makeFolder();
      for (const name of ['home', 'weights']) fs.mkdirSync(path.join(root, name));
      fs.writeFileSync(path.join(root, 'home', 'serve.py'), 'one');
      await open(machine({ dataRoots: [root] }));
      const admin = { ...h.actor, isAdmin: true };
      await expect(
        h.store.createDataSource(h.actor, { name: 'w', type: 'workspace', path: root }),
      ).rejects.toMatchObject({ code: 'forbidden' });
      for (const outside of ['/etc', path.join(root, '..'), path.join(root, 'nothing')])
        await expect(
          h.store.createDataSource(admin, { name: 'w', type: 'workspace', path: outside }),
        ).rejects.toMatchObject({ code: 'invalid_argument' });
      fs.symlinkSync('/etc', path.join(root, 'out'));
      await expect(
        h.store.createDataSource(admin, { name: 'w', type: 'workspace', path: path.join(root, 'out') }),
      ).rejects.toMatchObject({ code: 'invalid_argument' });
      const home = await h.store.createDataSource(admin, {
        name: 'work',
        type: 'workspace',
        path: path.join(root, 'home'),
      });
      const weights = await h.store.createDataSource(admin, {
        name: 'weights',
        type: 'model',
        path: path.join(root, 'weights'),
      });
      const { id } = await create({
        bindings: [
          { mount: 'home', source_id: home.id },
          { mount: 'input0', source_id: weights.id },
        ],
        runtime: { model: '/platform/input/input0' },
      });
      const [first] = running();
      expect(first.inputs).toEqual([{ mount: 'input0', path: path.join(root, 'weights') }]);
      expect(first.home).toMatchObject({ mode: 'copy' });
      // The name of the deployment is that of its model. The folder's name still works.
      expect(first.runtimeArgs).toEqual([
        '/platform/input/input0',
        '--device',
        'cpu',
        '--served-model-name=chat',
        '--served-model-name=input0',
      ]);
      expect(fs.readFileSync(path.join(first.home?.path ?? '', 'serve.py'), 'utf8')).toBe('one');
      fs.writeFileSync(path.join(root, 'home', 'serve.py'), 'two');
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'restart'));
      expect(fs.readFileSync(path.join(running()[0].home?.path ?? '', 'serve.py'), 'utf8')).toBe('one');
      expect((await version(id, 1)).spec.bindings).toEqual([
        { mount: 'home', source_id: home.id, source_name: 'work', source_digest: null, mode: 'copy' },
        { mount: 'input0', source_id: weights.id, source_name: 'weights', source_digest: null, mode: 'ro' },
      ]);
      await expect(h.store.deleteDataSource(admin, home.id)).rejects.toMatchObject({ code: 'conflict' });
      fs.rmdirSync(path.join(root, 'weights'));
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'restart'));
      expect(await get(id)).toMatchObject({
        state: 'failed',
        reason: { code: 'data_binding_missing', message: expect.stringContaining('input0') },
      });
    });
  });

  describe('training containers', () => {
    test('run until they exit, are routed to, and can be deployed', async () => {
      await open(machine({ gpus: 1 }));
      const made = await h.store.createContainer(h.actor, {
        name: 'train',
        compute: { gpu_count: 1 },
        env: { A: '1' },
        secret_env: { TOKEN: 'hush' },
        start_command: 'python3 train.py',
      });
      expect(made).toMatchObject({ state: 'stopped', env: { A: '1', TOKEN: null }, slug: null });
      await settleAfter(made.id, h.store.commandContainer(h.actor, made.id, 'start'));
      const slug = made.id.replace('_', '-');
      expect(await h.store.getContainer(h.actor, made.id)).toMatchObject({ state: 'running', slug });
      const [spec] = running();
      expect(h.targets.find(slug)).toMatchObject({
        isContainer: true,
        ownerId: h.actor.userId,
        accessControl: true,
        replicas: [
          {
            id: spec.id,
            address: { type: 'tcp', host: '127.0.0.1', port: 1000 },
            secret: spec.secret,
            isBuiltin: false,
          },
        ],
      });
      expect(h.targets.deployments()).toEqual([]);
      expect(spec).toMatchObject({
        isProduction: false,
        logId: made.id,
        env: { A: '1', TOKEN: 'hush' },
        gpuUuids: [GPU(0).uuid],
      });
      await expect(h.store.removeContainer(h.actor, made.id)).rejects.toMatchObject({ code: 'wrong_state' });
      const preview = await h.store.previewDeploy(h.actor, made.id);
      expect(preview).toMatchObject({
        name: 'train',
        spec: { start_command: 'python3 train.py', compute: { gpu_count: 1 }, env: { A: '1', TOKEN: null } },
        warnings: ['container_holds_gpus'],
      });
      const deployment = await h.store.deployContainer(h.actor, made.id, { name: 'served' });
      expect(deployment).toMatchObject({ source_container_id: made.id, state: 'pending' });
      await h.controller.reconcile(deployment.id);
      await h.settle();
      expect(await version(deployment.id, 1)).toMatchObject({ state: 'queued' });
      h.driver.exit(spec.id, 0);
      await h.settle();
      expect(await h.store.getContainer(h.actor, made.id)).toMatchObject({ state: 'stopped', slug: null });
      expect(h.targets.find(slug)).toBeUndefined();
      expect(await get(deployment.id)).toMatchObject({ state: 'running' });
      expect(running()).toMatchObject([
        { isProduction: true, env: { A: '1', TOKEN: 'hush' }, startCommand: 'python3 train.py' },
      ]);
      await h.store.removeContainer(h.actor, made.id);
    });

    test('report why they failed, and stop on command', async () => {
      await open();
      const { id } = await h.store.createContainer(h.actor, { name: 'train' });
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'start'));
      h.driver.exit(running()[0].id, 3);
      await h.settle();
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({
        state: 'error',
        reason: 'it ended with exit code 3',
      });
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'start'));
      await h.killAndRestart();
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({ state: 'running' });
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'stop'));
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({ state: 'stopped' });
      expect(running()).toEqual([]);
    });
  });
});
