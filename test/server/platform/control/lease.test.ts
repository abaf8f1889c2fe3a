/** Two services on one database: one controls the deployments, and the other waits and takes over. */
import { Access } from '../../../../server/access';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { StepError } from '../../../../server/platform/control/controller';
import { openServiceDatabase } from '../../../../server/platform/store/change';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { LeaseKeeper } from '../../../../server/platform/up/lease-keeper';
import { ALICE, makeFolder, overBackends } from '../../access/support';
import { FakeClock, GPU, type Harness, machine, openHarness, SECRET_KEY, withAnn } from '../support';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;

overBackends((make) => {
  describe('the lease of the control loop', () => {
    let location: DatabaseLocation;
    let clock: FakeClock;
    const stores: ServiceStore[] = [];
    const endings: AbortController[] = [];
    let settle: () => Promise<void>;
    let warnings: string[];

    beforeEach(async () => {
      location = await make();
      clock = new FakeClock();
      warnings = [];
      let numCalls = 0;
      opened = (store) =>
        new Proxy(store, {
          get:
            (_store, name: keyof ServiceStore) =>
            async (...args: unknown[]) => {
              numCalls++;
              try {
                return await (store[name] as (...all: unknown[]) => Promise<unknown>)(...args);
              } finally {
                numCalls--;
              }
            },
        });
      settle = async () => {
        for (let calm = 0; calm < 4; calm = numCalls === 0 ? calm + 1 : 0) await new Promise(setImmediate);
      };
    });
    let opened: (store: ServiceStore) => ServiceStore;
    afterEach(async () => {
      for (const ending of endings.splice(0)) ending.abort();
      await clock.advance(SECOND, settle);
      for (const store of stores.splice(0)) await store.close();
    });

    const keeper = async (holder: string, broken: Partial<ServiceStore> = {}, isAlone = false) => {
      const store = await openServiceStore({ location, secretKey: SECRET_KEY }, clock.now);
      stores.push(store);
      const log = { info: () => {}, warn: (_fields: object, message: string) => void warnings.push(message) };
      const kept = new LeaseKeeper({
        store: { ...opened(store), ...pick(opened(store)), ...broken },
        holder,
        isAlone,
        clock,
        log,
      });
      const ending = new AbortController();
      endings.push(ending);
      const state = { epoch: undefined as number | undefined, standbys: 0, hasLost: false };
      void kept.acquire(ending.signal, () => state.standbys++).then((epoch) => (state.epoch = epoch));
      void kept.lost.then(() => (state.hasLost = true));
      await settle();
      return { kept, state, store, ending };
    };
    const pick = ({ readLease, takeLease, renewLease, releaseLease }: ServiceStore) => ({
      readLease,
      takeLease,
      renewLease,
      releaseLease,
    });

    test('has one holder, and passes on 15 s after it has run out', async () => {
      const a = await keeper('gtw_a');
      expect(a.state).toEqual({ epoch: 1, standbys: 0, hasLost: false });
      const b = await keeper('gtw_b');
      await clock.advance(10 * MINUTE, settle);
      expect(b.state).toEqual({ epoch: undefined, standbys: 1, hasLost: false });
      expect(a.state.hasLost).toBe(false);
      // The process of the holder stops, so that the lease is no longer renewed.
      await a.kept.close();
      await clock.advance(5 * SECOND, settle);
      await clock.advance(24 * SECOND, settle);
      expect(b.state.epoch).toBeUndefined();
      await clock.advance(2 * SECOND, settle);
      expect(b.state.epoch).toBe(2);
      expect(await a.store.renewLease(1)).toBe(false);
    });

    test('is lost by a holder that slept meanwhile', async () => {
      let sleeps = false;
      const wake: (() => void)[] = [];
      const renewals: Promise<boolean>[] = [];
      const a = await keeper('gtw_a', {
        renewLease: async (epoch) => {
          if (sleeps) await new Promise<void>((resolve) => wake.push(resolve));
          renewals.push(stores[0].renewLease(epoch));
          return renewals.at(-1)!;
        },
      });
      const b = await keeper('gtw_b');
      sleeps = true;
      await clock.advance(MINUTE, settle);
      expect([a.state.hasLost, b.state.epoch]).toEqual([false, 2]);
      for (const run of wake) run();
      await settle();
      expect(await Promise.all(renewals)).toEqual([false]);
      await settle();
      expect(a.state.hasLost).toBe(true);
      const { holder, epoch } = await b.store.readLease();
      expect([holder, epoch]).toEqual(['gtw_b', 2]);
    });

    test('is kept while the database does not respond, and no standby takes it', async () => {
      let isDown = false;
      const down = <T>(run: () => Promise<T>) => (isDown ? Promise.reject(new Error('down')) : run());
      const a = await keeper('gtw_a', { renewLease: (epoch) => down(() => opened(stores[0]).renewLease(epoch)) });
      const b = await keeper('gtw_b', { readLease: () => down(() => opened(stores[1]).readLease()) });
      isDown = true;
      await clock.advance(5 * MINUTE, settle);
      expect(warnings).toEqual(Array(2).fill('cannot reach the control lease, retrying'));
      // The standby does not count the time during which the holder could not renew the lease either.
      isDown = false;
      await clock.advance(5 * MINUTE, settle);
      expect(a.state).toEqual({ epoch: 1, standbys: 0, hasLost: false });
      expect(b.state.epoch).toBeUndefined();
    });

    test('continues at once after a restart of the holder, and passes on at once when it is released', async () => {
      const a = await keeper('gtw_a');
      await a.kept.close();
      const again = await keeper('gtw_a');
      expect(again.state).toEqual({ epoch: 2, standbys: 0, hasLost: false });
      await again.kept.close({ releases: true });
      expect((await keeper('gtw_b')).state).toEqual({ epoch: 3, standbys: 0, hasLost: false });
    });

    test('is not waited for in a database that no other service can use, such as a restored one', async () => {
      await (await keeper('gtw_before_the_backup')).kept.close();
      expect((await keeper('gtw_restored', {}, true)).state).toEqual({ epoch: 2, standbys: 0, hasLost: false });
    });

    test('is taken by one of two services', async () => {
      const a = await keeper('gtw_a');
      const others = [await keeper('gtw_b'), await keeper('gtw_c')];
      await a.kept.close();
      await clock.advance(MINUTE, settle);
      expect(others.map(({ state }) => state.epoch).sort()).toEqual([2, undefined]);
    });

    test('a standby ends on its signal', async () => {
      await keeper('gtw_a');
      const b = await keeper('gtw_b');
      b.ending.abort();
      await clock.advance(MINUTE, settle);
      expect(b.state.epoch).toBeUndefined();
    });

    test('locks out neither keys nor servers that check them', async () => {
      await keeper('gtw_a');
      const keys = await openServiceStore({ location, secretKey: SECRET_KEY }, clock.now);
      const server = await Access.open({ location, owner: ALICE, now: clock.now });
      const { secret } = await server.createKey({ owner: ALICE, name: 'k', type: 'user-level' });
      expect(secret).toMatch(/^sk-cap1_/);
      await server.close();
      await keys.close();
    });
  });

  describe('a service that takes over', () => {
    let location: DatabaseLocation;
    let a: Harness;
    let b: Harness;

    beforeEach(async () => {
      location = await make(withAnn);
      a = await openHarness(location, makeFolder(), machine({ gpus: 2 }));
    });
    afterEach(async () => {
      await b.close();
      await a.close();
    });
    const takeOver = async (of = machine({ gpus: 2 })) => {
      b = await openHarness(location, makeFolder(), of, undefined, a);
      await b.settle();
    };
    const create = async (request: Partial<Parameters<Harness['store']['createDeployment']>[1]> = {}) => {
      const made = await a.store.createDeployment(a.actor, { name: 'chat', ...request });
      await a.controller.reconcile(made.id);
      await a.settle();
      return made;
    };
    const get = (id: string) => b.store.getDeployment(b.actor, id);
    const idsOf = ({ world }: Harness) => [...world.running.keys()];

    test('treats the replicas of another machine as lost, without counting an exit', async () => {
      const { id, slug } = await create({ compute: { gpu_count: 1 }, min_replicas: 2 });
      const before = idsOf(a);
      await takeOver();
      expect(await get(id)).toMatchObject({ state: 'running', ready_replicas: 2 });
      const { replicas } = await b.store.getVersion(b.actor, id, 1);
      expect(replicas).toMatchObject([{ restarts: 0 }, { restarts: 0 }]);
      expect(idsOf(b)).toHaveLength(2);
      for (const replica of idsOf(b)) expect(before).not.toContain(replica);
      expect(
        b.targets
          .find(slug)
          ?.replicas.map((replica) => replica.id)
          .sort(),
      ).toEqual(idsOf(b).sort());
      expect([...b.world.running.values()].flatMap(({ spec }) => spec.gpuUuids).sort()).toEqual([
        GPU(0).uuid,
        GPU(1).uuid,
      ]);
    });

    test('continues a roll-out, keeps what is stopped, deletes what is deleted and ends containers', async () => {
      const { id: updating } = await create({ name: 'updating' });
      a.driver.answers = () => false;
      await a.store.createVersion(a.actor, updating, { env: { A: '1' } });
      await a.controller.reconcile(updating);
      await a.settle();
      const { id: paused } = await create({ name: 'paused' });
      const { id: deleted } = await create({ name: 'deleted' });
      const { id: container } = await a.store.createContainer(a.actor, { name: 'train' });
      await a.store.commandContainer(a.actor, container, 'start');
      await a.controller.reconcile(container);
      await a.settle();
      await a.store.applyIntent(a.actor, paused, 'stop');
      await a.store.discardDeployment(a.actor, deleted);
      await takeOver();
      expect(await get(updating)).toMatchObject({ state: 'running', active_version: 2 });
      expect(await get(paused)).toMatchObject({ state: 'paused', ready_replicas: 0 });
      await expect(get(deleted)).rejects.toMatchObject({ code: 'not_found' });
      expect(await b.store.getContainer(b.actor, container)).toMatchObject({
        state: 'stopped',
        reason: 'it ran on another machine, whose service no longer controls it',
      });
      expect(idsOf(b)).toHaveLength(1);
    });

    test('waits for GPUs if this machine has none', async () => {
      const { id } = await create({ compute: { gpu_count: 1 } });
      await takeOver(machine());
      expect(await b.store.getVersion(b.actor, id, 1)).toMatchObject({
        state: 'queued',
        reason: { code: 'insufficient_gpu' },
      });
    });

    test('adopts replicas from before services had ids', async () => {
      const { id } = await create();
      const db = await openServiceDatabase(location);
      await db.updateTable('replicas').set({ node: null }).execute();
      await db.destroy();
      const running = idsOf(a);
      await a.killAndRestart();
      expect(idsOf(a)).toEqual(running);
      b = a;
      expect(await get(id)).toMatchObject({ state: 'running' });
    });

    test('fences the earlier one: it saves and ends nothing any more', async () => {
      const { id } = await create();
      const [replica] = idsOf(a);
      await takeOver();
      const before = await get(id);
      a.driver.exit(replica, 7);
      await a.settle();
      expect(a.warnings).toEqual(['lease lost']);
      await expect(a.controller.reconcile(id)).rejects.toThrow(StepError);
      a.driver.emit({ type: 'unready', replicaId: replica, message: 'm' });
      await a.settle();
      await a.advance(10 * MINUTE);
      expect(a.warnings).toEqual(['lease lost']);
      expect(a.driver.stops).toEqual([]);
      expect(await get(id)).toEqual(before);
      const epoch = 1;
      for (const write of [
        () => a.store.removeDeployment(epoch, id),
        () => a.store.saveLastLines(epoch, before.id, []),
        () => a.store.reconcileContainer({ epoch, startedAt: 0 }, 'con_x', [], undefined as never),
      ])
        await expect(write()).rejects.toMatchObject({ code: 'lease_lost' });
    });

    test('stops what it ran before another service took over, even if the list is wrong', async () => {
      const { id } = await create({ compute: { gpu_count: 1 } });
      const [stray] = idsOf(a);
      await takeOver();
      await a.killAndRestart({ listed: () => Promise.resolve([stray, 'rep_nothing', stray]) });
      expect(idsOf(a)).not.toContain(stray);
      expect(a.world.conflicts).toEqual([]);
      const [current] = idsOf(a);
      expect(await a.store.getVersion(a.actor, id, 1)).toMatchObject({ state: 'running', replicas: [{}] });
      // A list that fails or lacks a replica neither ends it nor keeps the service from starting.
      for (const listed of [() => Promise.reject(new Error('EIO')), () => Promise.resolve([])]) {
        await a.killAndRestart({ listed });
        expect(idsOf(a)).toEqual([current]);
      }
    });
  });
});
