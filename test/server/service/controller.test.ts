import fs from 'node:fs';
import path from 'node:path';
import { DriverError, type ReplicaSpec } from '../../../server/driver/driver';
import type { Target } from '../../../server/gateway/targets';
import { DEFAULT_CONTROL_POLICY } from '../../../server/service/work';
import { BACKENDS, makeFolder, removeFolders } from '../access/support';
import { GPU, type Harness, machine, openHarness } from './support';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;

afterAll(() => removeFolders());

describe.each(BACKENDS)('over $name', ({ isHere, make, dispose }) => {
  const on = isHere ? test : test.skip;
  let h: Harness;

  const open = async (...args: Parameters<typeof openHarness> extends [unknown, unknown, ...infer R] ? R : never) => {
    h = await openHarness(await make(), makeFolder(), ...args);
  };
  afterEach(async () => {
    if (!isHere) return;
    await h.close();
    await dispose();
  });

  const get = (id: string) => h.store.getDeployment(h.actor, id);
  const version = (id: string, number: number) => h.store.getVersion(h.actor, id, number);
  const create = async (wish: Partial<Parameters<Harness['store']['createDeployment']>[1]> = {}) => {
    const made = await h.store.createDeployment(h.actor, { name: 'chat', ...wish });
    await h.controller.changed(made.id);
    await h.settle();
    return made;
  };
  /** A person's change, and what follows. */
  const then = async (id: string, changing: Promise<unknown>) => {
    await changing;
    await h.controller.changed(id);
    await h.settle();
  };
  const target = (slug: string): Target => h.targets.find(slug) as Target;
  const running = (): ReplicaSpec[] => [...h.world.running.values()].map(({ spec }) => spec);
  const events = async (id: string) =>
    (await h.store.readDeploymentEvents(h.actor, id, 0, 1000)).map(({ type }) => type);
  const start = async (wish?: Parameters<typeof create>[0]) => {
    const made = await create(wish);
    expect(await get(made.id)).toMatchObject({ state: 'running' });
    return made;
  };

  on('a name is enough: the built-in runtime on the embedded model comes up and is routed to', async () => {
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
    await h.controller.changed(made.id);
    // Its address is known before it answers.
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
    h.driver.tell({ type: 'ready', replicaId: spec.id });
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

  on('a start that takes too long ends with what is known of it, and with its last lines', async () => {
    await open();
    h.driver.answers = () => false;
    const { id, slug } = await create({ start_deadline_s: 60, start_command: 'python3 serve.py' });
    const [spec] = running();
    h.logs.set(
      spec.logId,
      Array.from({ length: 250 }, (_, i) => `line ${i}`),
    );
    h.driver.tell({ type: 'misplaced', replicaId: spec.id, reason: 'wrong_port', message: 'listens on 8080' });
    await h.settle();
    // Shown at once; it may still come right.
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
    await then(id, h.store.wishDeployment(h.actor, id, 'start'));
    expect(await version(id, 1)).toMatchObject({ state: 'starting', reason: null });
    await h.advance(MINUTE);
    expect(await get(id)).toMatchObject({ state: 'failed', reason: { code: 'start_timeout' } });
  });

  on(
    'what answers its health path with an error says so while it starts; that it crashed goes before that',
    async () => {
      await open();
      h.driver.answers = () => false;
      const { id } = await create({ start_deadline_s: 60, start_command: 'python3 serve.py' });
      const told = { reason: 'health_check_failed' as const, message: '/v1/models answers 404' };
      h.driver.tell({ type: 'misplaced', replicaId: running()[0].id, ...told });
      await h.settle();
      expect(await version(id, 1)).toMatchObject({
        state: 'starting',
        reason: { code: told.reason, message: told.message },
      });
      h.driver.exit(running()[0].id, 7);
      await h.settle();
      expect(await version(id, 1)).toMatchObject({ state: 'backoff', reason: { code: 'crash_loop', exit_code: 7 } });
      await h.advance(10 * SECOND);
      h.driver.tell({ type: 'misplaced', replicaId: running()[0].id, ...told });
      await h.settle();
      await h.advance(MINUTE);
      expect(await get(id)).toMatchObject({ state: 'failed', reason: { code: told.reason } });
    },
  );

  on('one that crashes is started again after longer and longer, and then no more', async () => {
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
          message: expect.stringMatching(exits === 1 ? /^ended once: / : `^ended ${exits} times: `),
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

  on.each(['out_of_memory', 'gpu_out_of_memory', 'disk_full'] as const)('%s is told apart', async (code) => {
    await open(undefined, {
      ...DEFAULT_CONTROL_POLICY,
      crash: { firstDelayMs: 1, longestDelayMs: 1, healthyMs: MINUTE, maxExits: 1 },
    });
    const { id } = await start();
    h.driver.exit(running()[0].id, null, { cause: code });
    await h.settle();
    expect(await get(id)).toMatchObject({ state: 'failed', reason: { code } });
  });

  on('what finds no room on the disk is started again until there is some, and a new one is an error', async () => {
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

  on('a start script is not started where replicas are no longer isolated, unless that is allowed', async () => {
    const script = { start_command: 'python3 serve.py' };
    await open();
    const { id } = await create(script);
    expect(await get(id)).toMatchObject({ state: 'running' });
    Object.assign(h.driver.isolation, { level: 'L1', reason: 'the machine forbids it' });
    await then(id, h.store.wishDeployment(h.actor, id, 'restart'));
    expect(await get(id)).toMatchObject({
      state: 'failed',
      reason: { code: 'not_isolated', message: expect.stringContaining('the machine forbids it') },
    });
    const { id: builtin } = await create({ name: 'builtin' });
    expect(await get(builtin)).toMatchObject({ state: 'running' });
  });

  on('what the driver cannot start is an error with its reason', async () => {
    await open();
    h.driver.beforeEnsure = () => Promise.reject(new DriverError('image_missing', 'there is no runtime'));
    const { id } = await create();
    expect(await get(id)).toMatchObject({
      state: 'failed',
      reason: { code: 'image_missing', message: 'there is no runtime' },
    });
    expect((await version(id, 1)).replicas).toEqual([]);
  });

  describe('a new version', () => {
    on('comes up beside the old one, which serves until then and drains after', async () => {
      await open();
      const { id, slug } = await start();
      const [old] = running();
      h.driver.answers = () => false;
      await then(id, h.store.createVersion(h.actor, id, { env: { A: '1' }, note: 'second' }));
      expect(await get(id)).toMatchObject({ state: 'updating', active_version: 1, target_version: 2 });
      expect(target(slug).replicas.map((replica) => replica.id)).toEqual([old.id]);
      await expect(h.store.createVersion(h.actor, id, {})).rejects.toMatchObject({ code: 'busy' });
      const fresh = running().find((spec) => spec.id !== old.id) as ReplicaSpec;
      expect(fresh.env).toEqual({ A: '1' });
      h.controller.onOpenRequests(id, old.id, 2);
      h.driver.tell({ type: 'ready', replicaId: fresh.id });
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2, target_version: null });
      // New requests go to the new one at once; the old one ends when its last request has.
      expect(target(slug).replicas.map((replica) => replica.id)).toEqual([fresh.id]);
      expect(await version(id, 1)).toMatchObject({ state: 'stopping' });
      h.controller.onOpenRequests(id, old.id, 0);
      await h.settle();
      expect(await version(id, 1)).toMatchObject({ state: 'stopped', replicas: [] });
      expect(running().map((spec) => spec.id)).toEqual([fresh.id]);
    });

    on('waits for open requests no longer than its grace', async () => {
      await open();
      const { id } = await start({ grace_s: 5 });
      const [old] = running();
      await then(id, Promise.resolve(h.controller.onOpenRequests(id, old.id, 1)));
      await then(id, h.store.createVersion(h.actor, id, {}));
      await h.advance(4_999);
      expect(h.world.running.has(old.id)).toBe(true);
      await h.advance(1);
      expect(h.world.running.has(old.id)).toBe(false);
      expect(await version(id, 1)).toMatchObject({ state: 'stopped' });
    });

    on('that fails leaves the old one serving; activating the old one forgets it', async () => {
      await open();
      const { id, slug } = await start();
      const [old] = running();
      h.driver.answers = () => false;
      await then(id, h.store.createVersion(h.actor, id, { start_deadline_s: 10 }));
      await h.advance(10 * SECOND);
      expect(await get(id)).toMatchObject({
        state: 'update_failed',
        active_version: 1,
        target_version: 2,
        reason: { code: 'start_timeout' },
      });
      expect(target(slug).replicas.map((replica) => replica.id)).toEqual([old.id]);
      await then(id, h.store.activateVersion(h.actor, id, 1));
      expect(await get(id)).toMatchObject({ state: 'running', target_version: null, reason: null });
      await expect(h.store.activateVersion(h.actor, id, 1)).rejects.toMatchObject({ code: 'conflict' });
      expect(await version(id, 2)).toMatchObject({ state: 'error' });
    });

    on('takes the place of the old one where there is no room for both', async () => {
      await open(machine({ gpus: 1 }));
      const { id, slug } = await start({ compute: { gpu_count: 1 } });
      const [old] = running();
      expect(old.gpuUuids).toEqual([GPU(0).uuid]);
      h.driver.answers = () => false;
      await then(id, h.store.createVersion(h.actor, id, {}));
      const fresh = running()[0];
      expect(fresh.id).not.toBe(old.id);
      expect(fresh.gpuUuids).toEqual([GPU(0).uuid]);
      expect(await get(id)).toMatchObject({ state: 'updating' });
      expect(
        (await h.store.readDeploymentEvents(h.actor, id, 0, 1000)).filter(({ type }) => type === 'rollout.replace'),
      ).toMatchObject([
        { data: { version: 2, message: expect.stringContaining('no room for both: needs 1 free GPU') } },
      ]);
      expect(target(slug).replicas).toEqual([]);
      h.driver.tell({ type: 'ready', replicaId: fresh.id });
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2 });
    });

    on('that took the place of the old one and failed gives it back', async () => {
      await open(machine({ gpus: 1 }));
      const { id } = await start({ compute: { gpu_count: 1 } });
      h.driver.answers = ({ env }) => !('BROKEN' in env);
      await then(id, h.store.createVersion(h.actor, id, { env: { BROKEN: '1' }, start_deadline_s: 10 }));
      expect(await version(id, 1)).toMatchObject({ state: 'stopped' });
      await h.advance(10 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'update_failed', active_version: 1, ready_replicas: 1 });
      expect(running()[0].env).toEqual({});
    });

    on('with the strategy surge waits for room, and is in error when none comes', async () => {
      await open(machine({ gpus: 1 }));
      const { id } = await start({ compute: { gpu_count: 1 }, strategy: 'surge' });
      await then(id, h.store.createVersion(h.actor, id, {}));
      expect(await version(id, 2)).toMatchObject({ state: 'queued' });
      expect(await version(id, 1)).toMatchObject({ state: 'running' });
      await h.advance(30 * MINUTE);
      expect(await version(id, 2)).toMatchObject({
        state: 'error',
        reason: { code: 'insufficient_gpu', message: expect.stringContaining('there are 0') },
      });
      expect(await get(id)).toMatchObject({ state: 'update_failed' });
    });

    on('of before is activated like any other', async () => {
      await open();
      const { id } = await start();
      await then(id, h.store.createVersion(h.actor, id, { env: { A: '2' } }));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2 });
      await then(id, h.store.activateVersion(h.actor, id, 1));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 1 });
      expect(running().map(({ env }) => env)).toEqual([{}]);
      await expect(h.store.deleteVersion(h.actor, id, 1)).rejects.toMatchObject({ code: 'conflict' });
      await h.store.deleteVersion(h.actor, id, 2);
      await expect(version(id, 2)).rejects.toMatchObject({ code: 'not_found' });
      await then(id, h.store.createVersion(h.actor, id, {}));
      // Numbers are not given again.
      expect(await get(id)).toMatchObject({ active_version: 3 });
    });
  });

  describe('stopping and starting', () => {
    on('a stopped one stays so, whoever calls, until it is started', async () => {
      await open();
      const { id, slug } = await start();
      await then(id, h.store.wishDeployment(h.actor, id, 'stop'));
      expect(await get(id)).toMatchObject({ state: 'paused', ready_replicas: 0 });
      expect(running()).toEqual([]);
      h.controller.wake(id);
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'paused', replicas: [] });
      await expect(h.store.wishDeployment(h.actor, id, 'stop')).rejects.toMatchObject({ code: 'wrong_state' });
      await expect(h.store.wishDeployment(h.actor, id, 'restart')).rejects.toMatchObject({ code: 'wrong_state' });
      await then(id, h.store.wishDeployment(h.actor, id, 'start'));
      expect(await get(id)).toMatchObject({ state: 'running' });
      await expect(h.store.wishDeployment(h.actor, id, 'start')).rejects.toMatchObject({ code: 'wrong_state' });
    });

    on('a restart is a new start of the same version', async () => {
      await open();
      const { id } = await start();
      const [old] = running();
      await then(id, h.store.wishDeployment(h.actor, id, 'restart'));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 1 });
      expect(running().map((spec) => spec.id)).not.toContain(old.id);
    });

    on('stopping while a version is rolled out ends the rollout', async () => {
      await open();
      const { id } = await start();
      h.driver.answers = () => false;
      await then(id, h.store.createVersion(h.actor, id, {}));
      await then(id, h.store.wishDeployment(h.actor, id, 'stop'));
      expect(await get(id)).toMatchObject({ state: 'paused', active_version: 1, target_version: null });
      expect(running()).toEqual([]);
      // What is made meanwhile is what starts next.
      h.driver.answers = () => true;
      await then(id, h.store.createVersion(h.actor, id, {}));
      expect(await get(id)).toMatchObject({ state: 'paused', active_version: 3 });
      await then(id, h.store.wishDeployment(h.actor, id, 'start'));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 3 });
    });
  });

  describe('scale', () => {
    on('to zero after idleness, and up again with the first request', async () => {
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
      // Requests are held all the way up.
      expect(target(slug).state).toBe('scaled_to_zero');
      expect(running()).toHaveLength(1);
      h.driver.tell({ type: 'ready', replicaId: running()[0].id });
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'running', replicas: [{}] });
    });

    on('to zero by hand, and by itself where none has to run', async () => {
      await open();
      const { id } = await start({ min_replicas: 0 });
      await then(id, h.store.wishDeployment(h.actor, id, 'scaleToZero'));
      expect(await get(id)).toMatchObject({ state: 'scaled_to_zero' });
      await expect(h.store.wishDeployment(h.actor, id, 'scaleToZero')).rejects.toMatchObject({ code: 'wrong_state' });
      await then(id, h.store.wishDeployment(h.actor, id, 'start'));
      expect(await get(id)).toMatchObject({ state: 'running' });
      await h.advance(15 * MINUTE);
      expect(await get(id)).toMatchObject({ state: 'scaled_to_zero' });
    });

    on('a lost replica is degraded service until it is there again, on the same GPU', async () => {
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

    on('one that lives and does not answer is not routed to, and ended in the end', async () => {
      await open();
      const { id, slug } = await start();
      const [replica] = running();
      h.driver.tell({ type: 'unready', replicaId: replica.id, message: 'no answer' });
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'degraded', replicas: [] });
      h.driver.tell({ type: 'ready', replicaId: replica.id });
      await h.settle();
      expect(target(slug)).toMatchObject({ state: 'running', replicas: [{ id: replica.id }] });
      h.driver.tell({ type: 'unready', replicaId: replica.id, message: 'no answer' });
      await h.settle();
      await h.advance(5 * MINUTE + 10 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(running().map((spec) => spec.id)).not.toContain(replica.id);
    });

    on('follows the requests that are open, within its bounds and the room there is', async () => {
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

    on('a change of its bounds applies to what runs', async () => {
      await open();
      const { id, rev } = await start();
      await then(id, h.store.editDeployment(h.actor, id, { min_replicas: 3 }, rev));
      expect(await get(id)).toMatchObject({ ready_replicas: 3, max_replicas: 3 });
      await then(id, h.store.editDeployment(h.actor, id, { min_replicas: 1 }));
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

  describe('room', () => {
    on('who waits for a GPU gets it when it is free', async () => {
      await open(machine({ gpus: 1 }));
      const { id: first } = await start({ compute: { gpu_count: 1 } });
      const { id: second } = await create({ name: 'other', compute: { gpu_count: 1 } });
      expect(await get(second)).toMatchObject({ state: 'pending' });
      expect(await version(second, 1)).toMatchObject({
        state: 'queued',
        replicas: [],
        reason: { code: 'insufficient_gpu', message: 'needs 1 free GPU; there are 0' },
      });
      await then(first, h.store.wishDeployment(h.actor, first, 'stop'));
      expect(await get(second)).toMatchObject({ state: 'running' });
      expect(await h.store.readCapacity(h.actor)).toMatchObject({
        free: { gpu_count: 0, memory_mb: 64_000 - 1_024 },
        gpus: [{ uuid: GPU(0).uuid, free: false }],
      });
    });

    on('who waits for a quota goes on when it is greater', async () => {
      await open(machine({ gpus: 2 }));
      const root = { ...h.actor, isAdmin: true };
      await h.store.editQuota(root, h.actor.userId, { quotaGpu: 1 });
      await start({ compute: { gpu_count: 1 } });
      const { id: second } = await create({ name: 'other', compute: { gpu_count: 1 } });
      expect(await version(second, 1)).toMatchObject({ state: 'queued', reason: { code: 'quota_exceeded' } });
      expect(await h.store.findQuota(root, h.actor.userId)).toMatchObject({
        quotaGpu: 1,
        usedGpu: 1,
        usedDeployments: 2,
      });
      await h.store.editQuota(root, h.actor.userId, { quotaGpu: 2 });
      await h.controller.roomMade();
      await h.settle();
      expect(await get(second)).toMatchObject({ state: 'running' });
    });

    on('what leases GPUs runs on them, a rank on each', async () => {
      await open(machine({ gpus: 4 }));
      await start({ compute: { gpu_count: 2 } });
      expect(running()[0]).toMatchObject({
        runtimeArgs: ['demo', '--device', 'cuda:0,1'],
        gpuUuids: [GPU(0).uuid, GPU(1).uuid],
      });
      const wish = (gpus: number, ranks: number | null) =>
        h.store.createDeployment(h.actor, {
          name: `${gpus} and ${ranks}`,
          compute: { gpu_count: gpus },
          runtime: { tensor_parallel_size: ranks },
        });
      await expect(wish(2, 1)).rejects.toMatchObject({
        code: 'invalid_argument',
        message: 'runtime.tensor_parallel_size: expected 2, which compute.gpu_count is, or null, got 1',
      });
      await wish(2, 2);
      await wish(2, null);
      await wish(0, 2);
    });

    on('what this machine could never run is refused', async () => {
      await open(machine({ gpus: 1 }));
      const wish = (compute: object) => h.store.createDeployment(h.actor, { name: 'x', compute });
      await expect(wish({ gpu_count: 2 })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining('gpu_count'),
      });
      await expect(wish({ gpu_count: 1, gpu_type: 'B200' })).rejects.toMatchObject({ code: 'invalid_argument' });
      await expect(wish({ memory_mb: 65_000 })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining('memory_mb'),
      });
      await expect(wish({ cpu_millis: 17_000 })).rejects.toMatchObject({ code: 'invalid_argument' });
    });
  });

  describe('deleting', () => {
    on('ends a rollout and all that runs; the name is free, the slug never again', async () => {
      await open();
      const { id, slug } = await start();
      h.driver.answers = () => false;
      await then(id, h.store.createVersion(h.actor, id, {}));
      const deleting = h.store.discardDeployment(h.actor, id);
      await deleting;
      await expect(h.store.createVersion(h.actor, id, {})).rejects.toMatchObject({ code: 'not_found' });
      await h.controller.changed(id);
      expect(h.targets.find(slug)).toBeUndefined();
      await h.settle();
      expect(running()).toEqual([]);
      await expect(get(id)).rejects.toMatchObject({ code: 'not_found' });
      const again = await create();
      expect(again.slug).not.toBe(slug);
    });

    on('waits for what still ends', async () => {
      await open();
      const { id } = await start();
      h.controller.onOpenRequests(id, running()[0].id, 1);
      await then(id, h.store.discardDeployment(h.actor, id));
      expect(await get(id)).toMatchObject({ state: 'deleting' });
      await expect(h.store.createDeployment(h.actor, { name: 'chat' })).rejects.toMatchObject({ code: 'conflict' });
      await h.advance(30 * SECOND);
      await expect(get(id)).rejects.toMatchObject({ code: 'not_found' });
    });
  });

  describe('after kill -9', () => {
    on('what runs is taken over as it is', async () => {
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

    on('what was about to start is started, what started meanwhile is found, and none twice', async () => {
      await open();
      // The row is written; whether the process came to be is not known.
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

    on('what is gone with the machine starts again at once', async () => {
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

    on('what was to stop stops, and what was to be deleted is', async () => {
      await open();
      const { id: first } = await start();
      const { id: second } = await start({ name: 'other' });
      await h.store.wishDeployment(h.actor, first, 'stop');
      await h.store.discardDeployment(h.actor, second);
      await h.killAndRestart();
      expect(await get(first)).toMatchObject({ state: 'paused' });
      await expect(get(second)).rejects.toMatchObject({ code: 'not_found' });
      expect(running()).toEqual([]);
    });
  });

  describe('data', () => {
    on(
      'home is copied when the version is made, inputs are read where they lie, and what leads out is refused',
      async () => {
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
        // The copy is a real one.
        while (running().length === 0) {
          await new Promise((resolve) => {
            setTimeout(resolve, 10);
          });
          await h.settle();
        }
        const [first] = running();
        expect(first.inputs).toEqual([{ mount: 'input0', path: path.join(root, 'weights') }]);
        expect(first.home).toMatchObject({ mode: 'copy' });
        expect(fs.readFileSync(path.join(first.home?.path ?? '', 'serve.py'), 'utf8')).toBe('one');
        fs.writeFileSync(path.join(root, 'home', 'serve.py'), 'two');
        await then(id, h.store.wishDeployment(h.actor, id, 'restart'));
        expect(fs.readFileSync(path.join(running()[0].home?.path ?? '', 'serve.py'), 'utf8')).toBe('one');
        expect((await version(id, 1)).spec.bindings).toEqual([
          { mount: 'home', source_id: home.id, source_name: 'work', source_digest: null, mode: 'copy' },
          { mount: 'input0', source_id: weights.id, source_name: 'weights', source_digest: null, mode: 'ro' },
        ]);
        await expect(h.store.deleteDataSource(admin, home.id)).rejects.toMatchObject({ code: 'conflict' });
        fs.rmdirSync(path.join(root, 'weights'));
        await then(id, h.store.wishDeployment(h.actor, id, 'restart'));
        expect(await get(id)).toMatchObject({
          state: 'failed',
          reason: { code: 'data_binding_missing', message: expect.stringContaining('input0') },
        });
      },
    );
  });

  describe('training containers', () => {
    on('run until they end or are stopped, serve on 8080, and deploy with one click', async () => {
      await open(machine({ gpus: 1 }));
      const made = await h.store.createContainer(h.actor, {
        name: 'train',
        compute: { gpu_count: 1 },
        env: { A: '1' },
        secret_env: { TOKEN: 'hush' },
        start_command: 'python3 train.py',
      });
      expect(made).toMatchObject({ state: 'stopped', env: { A: '1', TOKEN: null }, slug: null });
      await then(made.id, h.store.commandContainer(h.actor, made.id, 'start'));
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
      await h.controller.changed(deployment.id);
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

    on('that fail say why; stopping waits for the end', async () => {
      await open();
      const { id } = await h.store.createContainer(h.actor, { name: 'train' });
      await then(id, h.store.commandContainer(h.actor, id, 'start'));
      h.driver.exit(running()[0].id, 3);
      await h.settle();
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({
        state: 'error',
        reason: 'it ended with exit code 3',
      });
      await then(id, h.store.commandContainer(h.actor, id, 'start'));
      await h.killAndRestart();
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({ state: 'running' });
      await then(id, h.store.commandContainer(h.actor, id, 'stop'));
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({ state: 'stopped' });
      expect(running()).toEqual([]);
    });
  });
});
