import { apiRoutes } from '../../../../server/platform/api/routes';
import { ServiceError } from '../../../../server/platform/store/errors';
import { Service, type Person } from '../api/support';
import { makeFolder, overBackends } from '../../access/support';
import { type Harness, openHarness, type StoreFault, withAnn } from '../support';

const SECOND = 1_000;

overBackends((make) => {
  describe('a database that fails during a control step', () => {
    let h: Harness;
    let service: Service;
    let ann: Person;

    beforeEach(async () => {
      const location = await make(withAnn);
      h = await openHarness(location, makeFolder());
      service = await Service.open({}, location, apiRoutes(), h.store);
      Object.assign(service.context, { controller: h.controller });
      ann = await service.person('bea@example.com');
    });
    afterEach(async () => {
      h.storeFault = () => undefined;
      await service.access.close();
      await h.close();
    });

    const create = async (body: object = {}) => {
      const { body: made } = await ann.post('/api/v1/deployments', { name: 'chat', ...body });
      await h.settle();
      return made as { id: string; slug: string; rev: number };
    };
    const switchAccess = async (id: string, enabled: boolean) => {
      const { headers } = await ann.get(`/api/v1/deployments/${id}`);
      const reply = await ann.send(
        'PUT',
        `/api/v1/deployments/${id}/access-control`,
        { enabled },
        { 'if-match': headers.etag },
      );
      await h.settle();
      return reply;
    };
    const needsKey = (slug: string) => h.targets.find(slug)?.accessControl;
    const failing = (fault: StoreFault, method = 'reconcileDeployment') => {
      h.storeFault = (name) => (name === method ? fault : undefined);
    };

    test.each(['before', 'after'] as const)('closes the gateway when the step fails %s the save', async (fault) => {
      const { id, slug } = await create();
      expect(needsKey(slug)).toBe(false);
      failing(fault);
      const reply = await switchAccess(id, true);
      expect(reply).toMatchObject({ status: 503, body: { code: 'unavailable' } });
      expect(reply.body.detail).toMatch(/^The switch is saved, but the gateway does not follow it yet/);
      expect(needsKey(slug)).toBe(true);
      failing(undefined);
      await h.advance(SECOND);
      expect(needsKey(slug)).toBe(true);
      expect((await ann.get(`/api/v1/deployments/${id}`)).body.access_control).toBe(true);
    });

    test('keeps the gateway closed while switching off fails, and opens it later', async () => {
      const { id, slug } = await create({ access_control: true });
      expect(needsKey(slug)).toBe(true);
      failing('before');
      expect((await switchAccess(id, false)).status).toBe(503);
      expect(needsKey(slug)).toBe(true);
      failing(undefined);
      await h.advance(SECOND);
      expect(needsKey(slug)).toBe(false);
    });

    test('closes the gateway when it is unknown whether the switch was saved', async () => {
      const { id, slug } = await create();
      const { switchAccessControl } = service.store;
      const lost = jest.spyOn(service.store, 'switchAccessControl').mockImplementation(async (...args) => {
        await switchAccessControl(...args);
        throw new Error('the connection is lost');
      });
      failing('before');
      expect((await switchAccess(id, true)).status).toBe(500);
      expect(needsKey(slug)).toBe(true);
      lost.mockImplementation(() => Promise.reject(new Error('the connection is lost')));
      failing(undefined);
      await h.advance(SECOND);
      expect(needsKey(slug)).toBe(true);
      // A switch that was not saved leaves the gateway open once a step has read the setting.
      expect((await switchAccess(id, false)).status).toBe(500);
      const { id: other, slug: open } = await create({ name: 'open' });
      expect((await switchAccess(other, true)).status).toBe(500);
      expect(needsKey(open)).toBe(false);
    });

    test('a step that read the old setting does not open the gateway again', async () => {
      const { id, slug } = await create();
      const { reconcileDeployment } = h.store;
      let release = () => {};
      jest.spyOn(h.store, 'reconcileDeployment').mockImplementationOnce(async (...args) => {
        const result = await reconcileDeployment(...args);
        await new Promise<void>((resolve) => {
          release = resolve;
        });
        return result;
      });
      const slow = h.controller.reconcile(id);
      await new Promise(setImmediate);
      const switching = switchAccess(id, true);
      for (let turn = 0; turn < 100_000 && needsKey(slug) !== true; turn++) await new Promise(setImmediate);
      failing('before');
      release();
      await slow;
      expect(needsKey(slug)).toBe(true);
      expect((await switching).status).toBe(503);
      expect(needsKey(slug)).toBe(true);
    });

    test('a deletion is not confirmed while its address is open', async () => {
      const { id, slug } = await create();
      failing('before');
      const remove = () => ann.send('DELETE', `/api/v1/deployments/${id}?confirm=chat`);
      // Also when it is repeated: the rows say that it is deleted, but the gateway does not follow yet.
      for (let attempt = 0; attempt < 2; attempt++) {
        const { status, body } = await remove();
        expect([status, body.code, body.detail]).toEqual([
          503,
          'unavailable',
          'The deletion is saved, but requests still reach the deployment. The service repeats this step. ' +
            'Send the DELETE request again until it succeeds or the deployment is not found',
        ]);
        expect(h.targets.find(slug)).toBeDefined();
      }
      failing(undefined);
      h.driver.beforeStop = () => new Promise(() => {});
      await h.advance(SECOND);
      expect(h.targets.find(slug)?.replicas ?? []).toEqual([]);
      expect(await remove()).toMatchObject({ status: 202, body: { state: 'deleting' } });
      const discard = jest.spyOn(service.store, 'discardDeployment');
      discard.mockRejectedValueOnce(new ServiceError('forbidden', 'your role does not allow this'));
      expect((await remove()).status).toBe(403);
    });

    test('other commands are accepted, and carried out when the database responds', async () => {
      const { id, slug } = await create();
      failing('before');
      expect((await ann.post(`/api/v1/deployments/${id}/stop`)).status).toBe(202);
      failing(undefined);
      await h.advance(SECOND);
      expect(h.targets.find(slug)).toMatchObject({ state: 'paused', replicas: [] });
    });

    test('an old observation is never applied after a newer one', async () => {
      const { slug } = await create();
      const [replicaId] = h.world.running.keys();
      const ready = () => h.targets.find(slug)?.replicas.length;
      expect(ready()).toBe(1);
      h.driver.emit({ type: 'unready', replicaId, message: 'm' });
      await h.settle();
      expect(ready()).toBe(0);
      failing('before');
      h.driver.emit({ type: 'ready', replicaId });
      await h.settle();
      failing(undefined);
      // The replica is unready again before the retry of the step that failed.
      h.driver.emit({ type: 'unready', replicaId, message: 'm' });
      await h.settle();
      expect(ready()).toBe(0);
      await h.advance(2 * SECOND);
      expect(ready()).toBe(0);
      h.driver.emit({ type: 'ready', replicaId });
      await h.settle();
      expect(ready()).toBe(1);
    });

    test('a long outage keeps few observations and one timer, and loses no exit', async () => {
      const { id, slug } = await create();
      const [replicaId] = h.world.running.keys();
      failing('before');
      for (let i = 0; i < 50; i++) {
        h.driver.emit(i % 2 === 0 ? { type: 'unready', replicaId, message: 'm' } : { type: 'ready', replicaId });
        await h.settle();
      }
      h.driver.exit(replicaId, 7);
      await h.settle();
      h.warnings.length = 0;
      await h.advance(3 * SECOND);
      expect(h.warnings).toHaveLength(3);
      let given: readonly { type: string }[] = [];
      const { reconcileDeployment } = h.store;
      jest.spyOn(h.store, 'reconcileDeployment').mockImplementation((epoch, deploymentId, observations, ...rest) => {
        if (given.length === 0) given = observations;
        return reconcileDeployment(epoch, deploymentId, observations, ...rest);
      });
      failing(undefined);
      await h.advance(SECOND);
      expect(given.map(({ type }) => type)).toEqual(['unready', 'ready', 'exited']);
      expect(h.targets.find(slug)).toMatchObject({ state: 'degraded', replicas: [] });
      expect((await h.store.getVersion({ ...h.actor, userId: ann.userId }, id, 1)).state).toBe('backoff');
    });

    test('a failed removal of the rows of a deleted deployment is repeated', async () => {
      const { id } = await create();
      failing('before', 'removeDeployment');
      await ann.send('DELETE', `/api/v1/deployments/${id}?confirm=chat`);
      await h.advance(SECOND);
      expect((await ann.get(`/api/v1/deployments/${id}`)).body).toMatchObject({ state: 'deleting' });
      failing(undefined);
      await h.advance(SECOND);
      expect((await ann.get(`/api/v1/deployments/${id}`)).status).toBe(404);
    });
  });
});
