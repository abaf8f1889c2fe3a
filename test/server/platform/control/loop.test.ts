/** What the control loop does while the driver is slow or wrong, the database fails and the clock is set. */
import fs from 'node:fs';
import path from 'node:path';
import type { ReplicaSpec } from '../../../../server/platform/driver/driver';
import { makeFolder, overSampleOfBackends } from '../../access/support';
import { GPU, type Harness, machine, openHarness, withAnn } from '../support';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const NEVER = () => new Promise<void>(() => {});

overSampleOfBackends((make) => {
  let h: Harness;
  const open = async (...args: Parameters<typeof openHarness> extends [unknown, unknown, ...infer R] ? R : never) => {
    h = await openHarness(await make(withAnn), makeFolder(), ...args);
  };
  afterEach(async () => {
    h.storeFault = () => undefined;
    await h.close();
    expect(h.world.conflicts).toEqual([]);
  });

  const get = (id: string) => h.store.getDeployment(h.actor, id);
  const version = (id: string, number = 1) => h.store.getVersion(h.actor, id, number);
  const create = async (request: Partial<Parameters<Harness['store']['createDeployment']>[1]> = {}) => {
    const made = await h.store.createDeployment(h.actor, { name: 'chat', ...request });
    await h.controller.reconcile(made.id);
    await h.settle();
    return made;
  };
  const settleAfter = async (id: string, changing: Promise<unknown>) => {
    await changing;
    await h.controller.reconcile(id);
    await h.settle();
  };
  const running = (): ReplicaSpec[] => [...h.world.running.values()].map(({ spec }) => spec);
  const routed = (slug: string) => (h.targets.find(slug)?.replicas ?? []).map(({ id }) => id);
  const freeGpus = async () => (await h.store.readCapacity(h.actor)).free.gpu_count;
  /** Starts a container and returns its id. */
  const launchContainer = async () => {
    const { id } = await h.store.createContainer(h.actor, { name: 'train' });
    await settleAfter(id, h.store.commandContainer(h.actor, id, 'start')).catch(() => {});
    return id;
  };
  /** Returns a promise and the function that resolves it. */
  const gate = () => {
    let release = () => {};
    const opened = new Promise<void>((resolve) => {
      release = resolve;
    });
    return { opened, release };
  };

  test('a deployment that is stopped between two starts frees its GPU for one that waits', async () => {
    await open(machine({ gpus: 1 }));
    const { id: first } = await create({ compute: { gpu_count: 1 } });
    const { id: second } = await create({ name: 'other', compute: { gpu_count: 1 } });
    h.driver.exit(running()[0].id, 7);
    await h.settle();
    expect([await version(first), await version(second)]).toMatchObject([{ state: 'backoff' }, { state: 'queued' }]);
    await settleAfter(first, h.store.applyIntent(h.actor, first, 'stop'));
    expect(await version(second)).toMatchObject({ state: 'running' });
  });

  describe('a launch that hangs', () => {
    test('fails at the start deadline and frees its resources', async () => {
      await open(machine({ gpus: 1 }));
      h.driver.beforeEnsure = NEVER;
      const { id } = await create({ start_deadline_s: 60, compute: { gpu_count: 1 } });
      await h.advance(59 * SECOND);
      expect(await version(id)).toMatchObject({ state: 'preparing' });
      expect(await freeGpus()).toBe(0);
      await h.advance(SECOND);
      expect(await get(id)).toMatchObject({
        state: 'failed',
        reason: { code: 'start_timeout', message: 'no process was started within 60 s' },
      });
      expect(await freeGpus()).toBe(1);
      expect(h.world.started).toEqual([]);
    });

    test('can be stopped and deleted', async () => {
      await open(machine({ gpus: 1 }));
      h.driver.beforeEnsure = NEVER;
      const { id } = await create({ compute: { gpu_count: 1 } });
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'stop'));
      expect(await get(id)).toMatchObject({ state: 'paused' });
      expect(await freeGpus()).toBe(1);
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'start'));
      expect(await version(id)).toMatchObject({ state: 'preparing' });
      await settleAfter(id, h.store.discardDeployment(h.actor, id)).catch(() => {});
      await expect(get(id)).rejects.toMatchObject({ code: 'not_found' });
      expect(await freeGpus()).toBe(1);
      expect(h.world.started).toEqual([]);
    });

    test('ends with its container: on command, and at the deadline', async () => {
      await open();
      h.driver.beforeEnsure = NEVER;
      const { id } = await h.store.createContainer(h.actor, { name: 'train' });
      const state = async () => (await h.store.getContainer(h.actor, id)).state;
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'start'));
      expect(await state()).toBe('preparing');
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'stop'));
      expect(await state()).toBe('stopped');
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'start'));
      await h.advance(20 * MINUTE - 1);
      expect(await state()).toBe('preparing');
      await h.advance(1);
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({
        state: 'error',
        reason: 'no process was started within 1200 s',
      });
    });

    test('does not delay the end of the service, and is repeated by the next one', async () => {
      await open();
      h.driver.beforeEnsure = NEVER;
      const { id } = await create();
      await h.controller.close({ stopsReplicas: true });
      await h.killAndRestart();
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(h.world.started).toHaveLength(1);
    });

    test('a replica that cannot be stopped does not keep the others at the end of the service', async () => {
      await open();
      await create({ min_replicas: 2 });
      const [broken] = running();
      h.driver.beforeStop = (id) => (id === broken.id ? Promise.reject(new Error('stuck')) : Promise.resolve());
      await h.controller.close({ stopsReplicas: true });
      expect(running()).toEqual([broken]);
    });

    test('of a further replica is replaced at the start deadline', async () => {
      await open();
      const { id } = await create({ start_deadline_s: 60, max_replicas: 2 });
      h.driver.beforeEnsure = NEVER;
      await settleAfter(id, h.store.editDeployment(h.actor, id, { min_replicas: 2 }));
      expect(running()).toHaveLength(1);
      h.driver.beforeEnsure = () => Promise.resolve();
      await h.advance(70 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 2 });
    });
  });

  describe('the timers of the loop', () => {
    test('of a container end with its start, its stop and its deletion', async () => {
      await open();
      const before = h.clock.numTimers;
      h.driver.beforeEnsure = NEVER;
      const id = await launchContainer();
      expect(h.clock.numTimers).toBe(before + 1);
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'stop'));
      expect(h.clock.numTimers).toBe(before);
      h.driver.beforeEnsure = () => Promise.resolve();
      await settleAfter(id, h.store.commandContainer(h.actor, id, 'start'));
      expect(await h.store.getContainer(h.actor, id)).toMatchObject({ state: 'running' });
      expect(h.clock.numTimers).toBe(before);
    });

    test('end with the service, also those of drains, of failing stops and of steps that cannot be saved', async () => {
      await open();
      const { id: draining } = await create({ name: 'draining', compute: { cpu_millis: 100 } });
      const { id: stuck } = await create({ name: 'stuck', idle_timeout_s: 600 });
      const [first, second] = running();
      h.driver.beforeStop = (id) => (id === second.id ? Promise.reject(new Error('stuck')) : Promise.resolve());
      h.controller.onOpenRequests(draining, first.id, 1);
      for (const id of [draining, stuck]) await settleAfter(id, h.store.applyIntent(h.actor, id, 'stop'));
      expect(h.clock.numTimers).toBeGreaterThan(1);
      const numStops = h.driver.stops.length;
      let closing: Promise<void> | undefined;
      h.storeFault = () => {
        closing ??= h.controller.close();
        return 'before';
      };
      await expect(h.controller.reconcile(stuck)).rejects.toThrow('the control step is not saved yet');
      await closing;
      expect(h.clock.numTimers).toBe(0);
      await h.clock.advance(HOUR, () => Promise.resolve());
      expect(h.driver.stops).toHaveLength(numStops);
      expect(h.world.running.has(first.id)).toBe(true);
    });
  });

  describe('a replica that runs is not lost', () => {
    test.each(['readLaunch', 'adopt'])('when %s fails after a restart', async (failing) => {
      await open();
      const { id, slug } = await create();
      const [{ id: replica }] = running();
      if (failing === 'readLaunch') h.storeFault = (method) => (method === failing ? 'before' : undefined);
      await h.killAndRestart(failing === 'adopt' ? { beforeAdopt: () => Promise.reject(new Error('EMFILE')) } : {});
      await h.advance(20 * SECOND);
      expect(routed(slug)).toEqual([replica]);
      expect(h.driver.stops).toEqual([]);
      h.storeFault = () => undefined;
      h.driver.beforeAdopt = () => Promise.resolve();
      await h.advance(5 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 1 });
      // It is observed again.
      h.driver.emit({ type: 'unready', replicaId: replica, message: 'm' });
      await h.settle();
      expect(routed(slug)).toEqual([]);
    });

    test('when its data root is not mounted after a restart', async () => {
      const root = makeFolder();
      const weights = path.join(root, 'weights');
      fs.mkdirSync(weights);
      await open(machine({ dataRoots: [root] }));
      const source = await h.store.createDataSource(
        { ...h.actor, isAdmin: true },
        { name: 'weights', type: 'model', path: weights },
      );
      const { id, slug } = await create({ bindings: [{ mount: 'input0', source_id: source.id }] });
      const [{ id: replica }] = running();
      fs.rmdirSync(weights);
      await h.killAndRestart();
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(routed(slug)).toEqual([replica]);
      expect(h.driver.stops).toEqual([]);
    });

    test('and a start waits for the database instead of failing', async () => {
      await open();
      h.storeFault = (method) => (method === 'readLaunch' ? 'before' : undefined);
      const { id } = await create();
      expect(await version(id)).toMatchObject({ state: 'preparing' });
      h.storeFault = () => undefined;
      await h.advance(5 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'running' });
    });
  });

  describe('a GPU', () => {
    const startOnGpu = async () => {
      await open(machine({ gpus: 1 }));
      const made = await create({ compute: { gpu_count: 1 } });
      return { ...made, old: running()[0].id };
    };

    test('is not used again before a replica that lost its readiness has ended', async () => {
      const { id, old } = await startOnGpu();
      const { opened, release } = gate();
      h.driver.beforeStop = () => opened;
      h.driver.emit({ type: 'unready', replicaId: old, message: 'm' });
      await h.settle();
      await h.advance(5 * MINUTE);
      expect(await version(id)).toMatchObject({ state: 'backoff' });
      await h.advance(HOUR);
      expect(running().map((spec) => spec.id)).toEqual([old]);
      release();
      await h.settle();
      await h.advance(SECOND);
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(running()).toMatchObject([{ gpuUuids: [GPU(0).uuid] }]);
      expect(running()[0].id).not.toBe(old);
    });

    test('is not used again before a replica that the driver calls lost has ended', async () => {
      const { id, old } = await startOnGpu();
      const { opened, release } = gate();
      const { world } = h;
      const handle = world.running.get(old)!.handle;
      Object.assign(handle, { reference: 'another process' });
      await h.killAndRestart({ beforeStop: () => opened });
      await h.advance(HOUR);
      expect(running().map((spec) => spec.id)).toEqual([old]);
      release();
      await h.settle();
      await h.advance(SECOND);
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 1 });
      expect((await version(id)).replicas).toMatchObject([{ restarts: 0 }]);
    });

    test('stays taken when the service is killed while the old replica stops', async () => {
      const { id, old } = await startOnGpu();
      const { id: other } = await create({ name: 'other', compute: { gpu_count: 1 } });
      h.driver.beforeStop = NEVER;
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'stop'));
      await h.killAndRestart({ beforeStop: NEVER });
      await h.advance(MINUTE);
      expect(running().map((spec) => spec.id)).toEqual([old]);
      await h.killAndRestart();
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'paused' });
      expect(await get(other)).toMatchObject({ state: 'running' });
    });

    test('is free at once when a crashed replica stops for good', async () => {
      const { id, old } = await startOnGpu();
      h.driver.exit(old, 1);
      await h.settle();
      expect(await freeGpus()).toBe(0);
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'stop'));
      expect(await freeGpus()).toBe(1);
      expect((await version(id)).replicas).toEqual([]);
    });
  });

  describe('kill -9 between the spawn and its row', () => {
    test('starts no second process', async () => {
      await open();
      // The process runs, but the step that would save it never does.
      let spawned = false;
      h.driver.beforeEnsure = () => {
        spawned = true;
        return Promise.resolve();
      };
      h.storeFault = (method) => (spawned && method === 'reconcileDeployment' ? 'before' : undefined);
      const made = await h.store.createDeployment(h.actor, { name: 'chat' });
      await h.controller.reconcile(made.id);
      await h.settle();
      expect(running()).toHaveLength(1);
      expect(await version(made.id)).toMatchObject({ state: 'preparing', replicas: [{ state: 'created' }] });
      h.storeFault = () => undefined;
      await h.killAndRestart();
      expect(await get(made.id)).toMatchObject({ state: 'running' });
      expect(h.world.started).toHaveLength(1);
    });

    test('keeps a healthy process although the service was down for longer than the start deadline', async () => {
      await open();
      h.driver.beforeEnsure = () => {
        h.storeFault = (method) => (method.startsWith('reconcile') ? 'before' : undefined);
        return Promise.resolve();
      };
      const made = await h.store.createDeployment(h.actor, { name: 'chat', start_deadline_s: 60 });
      await h.controller.reconcile(made.id);
      await h.settle();
      const [{ id: replicaId }] = running();
      const container = await launchContainer();
      await h.advance(HOUR);
      h.storeFault = () => undefined;
      await h.killAndRestart();
      expect(await get(made.id)).toMatchObject({ state: 'running' });
      expect(await h.store.getContainer(h.actor, container)).toMatchObject({ state: 'running' });
      expect(running().map(({ id }) => id)).toContain(replicaId);
      expect(h.driver.stops).toEqual([]);
      expect(h.world.started).toHaveLength(2);
    });

    test('leaves nothing behind when the deployment is deleted meanwhile', async () => {
      await open();
      let spawned = false;
      h.driver.beforeEnsure = () => {
        spawned = true;
        return Promise.resolve();
      };
      h.storeFault = (method) => (spawned && method === 'reconcileDeployment' ? 'before' : undefined);
      const made = await h.store.createDeployment(h.actor, { name: 'chat' });
      await h.controller.reconcile(made.id);
      await h.settle();
      await h.store.discardDeployment(h.actor, made.id);
      h.storeFault = () => undefined;
      await h.killAndRestart();
      await expect(get(made.id)).rejects.toMatchObject({ code: 'not_found' });
      expect(running()).toEqual([]);
    });
  });

  describe('the time in which the service is down counts for no deadline', () => {
    const restartAfterAnHour = async () => {
      h.storeFault = () => 'before';
      await h.advance(HOUR);
      h.storeFault = () => undefined;
      await h.killAndRestart();
    };

    test('of a start: it has the whole deadline from the restart on', async () => {
      await open();
      h.driver.answers = () => false;
      const { id } = await create({ start_deadline_s: 60 });
      const [{ id: replicaId }] = running();
      await restartAfterAnHour();
      await h.advance(59 * SECOND);
      expect(await version(id)).toMatchObject({ state: 'starting' });
      h.driver.emit({ type: 'ready', replicaId });
      await h.settle();
      expect(await get(id)).toMatchObject({ state: 'running' });
      expect(h.world.started).toHaveLength(1);
    });

    test('of a start that is not ready after the restart either: it fails then', async () => {
      await open();
      h.driver.answers = () => false;
      const { id } = await create({ start_deadline_s: 60 });
      await restartAfterAnHour();
      await h.advance(MINUTE);
      expect(await get(id)).toMatchObject({ state: 'failed', reason: { code: 'start_timeout' } });
    });

    test('of a replica that fails its health checks', async () => {
      await open();
      const { id } = await create();
      h.driver.emit({ type: 'unready', replicaId: running()[0].id, message: 'm' });
      await h.settle();
      h.driver.answers = () => false;
      await restartAfterAnHour();
      await h.advance(5 * MINUTE - 1);
      expect(await version(id)).toMatchObject({ state: 'degraded' });
      await h.advance(1);
      expect(await version(id)).toMatchObject({ state: 'backoff', reason: { code: 'readiness_lost' } });
    });

    test('of a further replica that starts', async () => {
      await open();
      const { id } = await create({ start_deadline_s: 60, max_replicas: 2 });
      h.driver.answers = () => false;
      await settleAfter(id, h.store.editDeployment(h.actor, id, { min_replicas: 2 }));
      const second = running()[1].id;
      await restartAfterAnHour();
      expect(h.driver.stops).toEqual([]);
      h.driver.emit({ type: 'ready', replicaId: second });
      await h.settle();
      expect(h.world.started).toHaveLength(2);
    });

    test('of the queue', async () => {
      await open(machine({ gpus: 1 }));
      await create({ compute: { gpu_count: 1 } });
      const { id } = await create({ name: 'second', compute: { gpu_count: 1 } });
      await restartAfterAnHour();
      expect(await version(id)).toMatchObject({ state: 'queued' });
      await h.advance(30 * MINUTE);
      expect(await version(id)).toMatchObject({ state: 'error', reason: { code: 'insufficient_gpu' } });
    });

    test('of a roll-out that waits for the rest of its replicas', async () => {
      await open();
      const { id } = await create({ min_replicas: 2, max_replicas: 2, start_deadline_s: 60 });
      let numReady = 0;
      h.driver.answers = () => numReady++ === 0;
      await settleAfter(id, h.store.createVersion(h.actor, id, { note: 'second' }));
      expect(await get(id)).toMatchObject({ state: 'updating', active_version: 1 });
      await restartAfterAnHour();
      expect(await get(id)).toMatchObject({ state: 'updating', active_version: 1 });
      await h.advance(MINUTE);
      expect(await get(id)).toMatchObject({ active_version: 2 });
    });
  });

  describe('a deployment that was scaled up by its load', () => {
    /** Five replicas, with 40 open requests at the first. */
    const scaleUp = async (gpus: number) => {
      await open(machine({ gpus }));
      const made = await create({ max_replicas: 5, compute: { gpu_count: 1 } });
      h.controller.onOpenRequests(made.id, running()[0].id, 40);
      await h.advance(10 * SECOND);
      expect(await get(made.id)).toMatchObject({ ready_replicas: 5 });
      return made;
    };

    test('rolls out with as many replicas as run now', async () => {
      const { id, slug } = await scaleUp(10);
      const old = routed(slug);
      h.driver.answers = () => false;
      await settleAfter(id, h.store.createVersion(h.actor, id, { env: { A: '1' } }));
      const fresh = running().filter((spec) => !old.includes(spec.id));
      expect(fresh).toHaveLength(5);
      for (const { id: replicaId } of fresh.slice(0, 4)) h.driver.emit({ type: 'ready', replicaId });
      await h.settle();
      expect(routed(slug)).toEqual(old);
      h.driver.emit({ type: 'ready', replicaId: fresh[4].id });
      await h.settle();
      expect(routed(slug).sort()).toEqual(fresh.map((spec) => spec.id).sort());
      await h.advance(MINUTE);
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2, ready_replicas: 5 });
    });

    test('takes over with as many as fit, and adds the others when the old ones have stopped', async () => {
      const { id, slug } = await scaleUp(8);
      const old = routed(slug);
      for (const replicaId of old) h.controller.onOpenRequests(id, replicaId, 8);
      await settleAfter(id, h.store.createVersion(h.actor, id, { env: { A: '1' } }));
      expect(await get(id)).toMatchObject({ active_version: 2 });
      expect(routed(slug)).toHaveLength(3);
      for (const replicaId of old) h.controller.onOpenRequests(id, replicaId, 0);
      await h.advance(MINUTE);
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2, ready_replicas: 5 });
    });

    test('keeps its number when the old version stops first, and when that fails', async () => {
      const { id, slug } = await scaleUp(5);
      h.controller.onOpenRequests(id, routed(slug)[0], 0);
      await settleAfter(id, h.store.createVersion(h.actor, id, { env: { A: '1' } }));
      expect(await get(id)).toMatchObject({ state: 'running', active_version: 2, ready_replicas: 5 });
      h.driver.answers = ({ env }) => !('BROKEN' in env);
      await settleAfter(id, h.store.createVersion(h.actor, id, { env: { BROKEN: '1' }, start_deadline_s: 10 }));
      await h.advance(10 * SECOND);
      expect(await get(id)).toMatchObject({ state: 'update_failed', active_version: 2, ready_replicas: 5 });
    });

    test('keeps its number over a restart, and starts with the minimum after a pause', async () => {
      const { id, slug } = await scaleUp(5);
      h.controller.onOpenRequests(id, routed(slug)[0], 0);
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'restart'));
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 5 });
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'stop'));
      await settleAfter(id, h.store.applyIntent(h.actor, id, 'start'));
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 1 });
    });
  });

  describe('when the system clock is set', () => {
    test.each([HOUR, -HOUR])('by %i ms, deadlines stay as they are', async (jumpMs) => {
      await open();
      const { id: serving } = await create({ name: 'serving', idle_timeout_s: 600 });
      h.driver.answers = () => false;
      const { id: starting } = await create({ name: 'starting', start_deadline_s: 60 });
      h.driver.emit({ type: 'unready', replicaId: running()[0].id, message: 'm' });
      await h.settle();
      h.clock.jump(jumpMs);
      await h.controller.reconcile(serving);
      await h.controller.reconcile(starting);
      // A version that is queued after the jump waits as long as one before it.
      const { id: late } = await create({ name: 'late', start_deadline_s: 60 });
      await h.advance(59 * SECOND);
      expect(await get(serving)).toMatchObject({ state: 'degraded' });
      for (const id of [starting, late]) expect(await get(id)).toMatchObject({ state: 'pending' });
      await h.advance(SECOND);
      for (const id of [starting, late])
        expect(await get(id)).toMatchObject({ state: 'failed', reason: { code: 'start_timeout' } });
      await h.advance(4 * MINUTE);
      expect((await version(serving)).state).toBe('backoff');
    });

    test.each([HOUR, -HOUR])('by %i ms, the queue and the backoff keep their times', async (jumpMs) => {
      await open(machine({ gpus: 1 }));
      const { id: first } = await create({ compute: { gpu_count: 1 } });
      h.clock.jump(jumpMs);
      const { id: second } = await create({ name: 'second', compute: { gpu_count: 1 } });
      h.driver.exit(running()[0].id, 1);
      await h.settle();
      await h.advance(9 * SECOND);
      expect(await version(first)).toMatchObject({ state: 'backoff' });
      await h.advance(SECOND);
      expect(await version(first)).toMatchObject({ state: 'running' });
      await h.advance(30 * MINUTE - 11 * SECOND);
      expect(await version(second)).toMatchObject({ state: 'queued' });
      await h.advance(SECOND);
      expect(await version(second)).toMatchObject({ state: 'error', reason: { code: 'insufficient_gpu' } });
    });
  });
});
