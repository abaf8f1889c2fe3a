import { newSeed, random } from './random';
import { makeFolder, overSampleOfBackends } from '../../access/support';
import { numCases } from '../../../fakes/sample';
import { ServiceError } from '../../../../server/platform/store/errors';
import { isInactive, isServing } from '../../../../server/platform/deployments/version-state';
import { type Harness, machine, openHarness, withAnn } from '../support';

const SECOND = 1_000;
const NUM_GPUS = 3;
const RUNS = numCases(6, 3);
const STEPS = 40;

overSampleOfBackends((make) => {
  /** Random commands of users and random events of replicas, with invariants checked after each step. */
  describe('invariants under random commands and events', () => {
    let h: Harness;
    afterEach(() => h.close());

    const names = ['a', 'b', 'c'];

    test.each(Array.from({ length: RUNS }, (_, i) => newSeed(i)))(
      'with the seed %i',
      async (seed) => {
        const { pick, chance, integer } = random(seed);
        h = await openHarness(await make(withAnn), makeFolder(), machine({ gpus: NUM_GPUS }));
        h.driver.answers = () => chance(0.7);
        const slugs = new Map<string, string>();

        /** Commands may be refused, and only with these codes. */
        const attempt = async (asking: Promise<unknown>) => {
          await asking.catch((error: unknown) => {
            if (!(error instanceof ServiceError)) throw error;
            expect(['conflict', 'wrong_state', 'busy', 'not_found', 'stale', 'invalid_argument']).toContain(error.code);
          });
        };
        const list = async () => (await h.store.pageDeployments(h.actor, { limit: 100 })).data;
        const changed = async () => {
          for (const { id } of await list()) await h.controller.reconcile(id);
        };
        const someReplica = () => pick([...h.world.running.keys()]);

        const commands: (() => Promise<void>)[] = [
          () =>
            attempt(
              h.store.createDeployment(h.actor, {
                name: pick(names),
                compute: { gpu_count: integer(0, 2) },
                min_replicas: integer(0, 2),
                max_replicas: integer(1, 3),
                strategy: pick(['auto', 'surge', 'replace']),
                start_deadline_s: 30,
                grace_s: integer(0, 20),
                idle_timeout_s: chance(0.3) ? 60 : null,
              }),
            ),
          ...['start', 'stop', 'restart', 'scaleToZero'].map((intent) => async () => {
            for (const { id } of await list())
              if (chance(0.4)) await attempt(h.store.applyIntent(h.actor, id, intent as 'start'));
          }),
          async () => {
            for (const { id } of await list())
              if (chance(0.5))
                await attempt(
                  h.store.createVersion(h.actor, id, {
                    compute: { gpu_count: integer(0, 2) },
                    env: { N: String(integer(0, 9)) },
                  }),
                );
          },
          async () => {
            for (const { id, active_version: active } of await list())
              if (chance(0.5)) await attempt(h.store.activateVersion(h.actor, id, integer(1, (active ?? 1) + 1)));
          },
          async () => {
            for (const { id } of await list())
              if (chance(0.3)) await attempt(h.store.deleteVersion(h.actor, id, integer(1, 4)));
          },
          // Two concurrent edits of one revision.
          async () => {
            for (const { id, rev } of await list())
              await Promise.all([
                attempt(h.store.editDeployment(h.actor, id, { min_replicas: integer(0, 3) }, rev)),
                attempt(h.store.editDeployment(h.actor, id, { max_replicas: integer(1, 3) }, rev)),
              ]);
          },
          async () => {
            for (const { id } of await list()) if (chance(0.15)) await attempt(h.store.discardDeployment(h.actor, id));
          },
        ];
        const events: (() => Promise<void> | void)[] = [
          () => {
            const id = someReplica();
            if (id !== undefined) h.driver.exit(id, integer(0, 2));
          },
          () => {
            const id = someReplica();
            if (id !== undefined) h.driver.emit({ type: 'ready', replicaId: id });
          },
          () => {
            const id = someReplica();
            if (id !== undefined) h.driver.emit({ type: 'unready', replicaId: id, message: 'm' });
          },
          async () => {
            for (const { id, slug } of await list()) {
              h.controller.wake(id);
              for (const replica of h.targets.find(slug)?.replicas ?? [])
                h.controller.onOpenRequests(id, replica.id, integer(0, 20));
            }
          },
          async () => {
            for (const { id } of await list())
              for (const replica of h.world.running.keys()) h.controller.onOpenRequests(id, replica, 0);
          },
          () => h.killAndRestart(),
          () => h.advance(pick([1, 15, 90, 700]) * SECOND),
        ];

        const check = async () => {
          const running = [...h.world.running.values()].map(({ spec }) => spec);
          const uuids = running.flatMap(({ gpuUuids }) => gpuUuids);
          // No GPU belongs to two replicas.
          expect(new Set(uuids).size).toBe(uuids.length);
          const deployments = await list();
          const known = new Set<string>();
          for (const {
            id,
            slug,
            state,
            active_version: active,
            target_version: target,
            max_replicas: max,
          } of deployments) {
            if (slugs.has(slug)) expect(slugs.get(slug)).toBe(id);
            slugs.set(slug, id);
            const versions = (await h.store.pageVersions(h.actor, id, { limit: 100 })).data;
            expect(versions.filter(({ is_active: isActive }) => isActive).map(({ number }) => number)).toEqual([
              active,
            ]);
            for (const version of versions) {
              for (const replica of version.replicas) known.add(replica.id);
              // Only the active and the target version have replicas that are not stopping.
              if (version.number !== active && version.number !== target)
                expect([version.state, version.replicas.filter((replica) => replica.state !== 'stopping')]).toEqual([
                  version.state,
                  [],
                ]);
              if (isInactive(version.state))
                expect(version.replicas.filter((replica) => replica.state !== 'stopping')).toEqual([]);
              if (version.state === 'error') expect(version.reason).not.toBeNull();
              expect(version.replicas.filter((replica) => replica.state !== 'stopping').length).toBeLessThanOrEqual(
                Math.max(max, 3),
              );
            }
            const routed = h.targets.find(slug);
            if (state === 'deleting') expect(routed).toBeUndefined();
            else expect(routed?.state).toBe(state);
            const serving = versions.find(({ number }) => number === active);
            // Requests go only to ready replicas of the active version.
            const ready =
              serving !== undefined && isServing(serving.state)
                ? serving.replicas.filter((replica) => replica.state === 'ready').map((replica) => replica.id)
                : [];
            expect((routed?.replicas ?? []).map((replica) => replica.id).sort()).toEqual(
              state === 'deleting' ? [] : ready.sort(),
            );
          }
          // Every process has a row, and every route has a deployment.
          for (const { id } of running) expect(known).toContain(id);
          expect(
            h.targets
              .all()
              .map(({ slug }) => slug)
              .sort(),
          ).toEqual(
            deployments
              .filter(({ state }) => state !== 'deleting')
              .map(({ slug }) => slug)
              .sort(),
          );
        };

        for (let step = 0; step < STEPS; step++) {
          await (pick(chance(0.55) ? commands : events) as () => Promise<void>)();
          await changed();
          await h.settle();
          await check();
        }

        // Everything can be deleted, and nothing is left.
        for (const { id } of await list()) await attempt(h.store.discardDeployment(h.actor, id));
        await changed();
        await h.settle();
        await h.advance(60 * SECOND);
        expect(await list()).toEqual([]);
        expect([...h.world.running.keys()]).toEqual([]);
        expect((await h.store.readCapacity(h.actor)).free.gpu_count).toBe(NUM_GPUS);
      },
      600_000,
    );
  });
});
