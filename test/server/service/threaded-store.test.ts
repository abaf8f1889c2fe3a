import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { Access } from '../../../server/access/access';
import type { ServiceStore, ServiceStoreOptions } from '../../../server/service/store';
import { openServingServiceStore } from '../../../server/service/threaded-store';
import { bearer, overBackends, REGISTER, ROOT } from '../access/support';

const THREAD = path.join(ROOT, 'server', 'service', 'store-thread.ts');
const createThread = (data: ServiceStoreOptions) => new Worker(`require(${JSON.stringify(REGISTER)}); require(${JSON.stringify(THREAD)});`, { eval: true, workerData: data });

let store: ServiceStore;

overBackends((make) => {
  beforeAll(async () => { store = await openServingServiceStore({ location: await make(), secretKey: new Uint8Array(32) }, () => {}, createThread); });
  afterAll(() => store.close());

  test('what the service refuses crosses the thread with its code', async () => {
    const account = await store.createAccount({ email: 'a@example.com', name: 'A', password: 'correct horse battery' });
    await expect(store.findAccount(account.userId)).resolves.toEqual(account);
    await expect(store.findAccount('usr_none')).rejects.toMatchObject({ name: 'ServiceError', code: 'not_found' });
    await expect(store.getKey('none')).rejects.toMatchObject({ name: 'AccessError', code: 'not_found' });
  });

  test('the key check works over the same store, and leaves it open', async () => {
    const access = await Access.open({ store, pollMs: 1_000_000 });
    const { secret, key } = await access.createKey({ name: 'k', type: 'user-level', owner: { type: 'user', name: 'a@example.com' } });
    const target = { id: 'dep_x', ownerId: key.owner.id };
    expect(access.check(bearer(secret), target)).toMatchObject({ ok: true, keyId: key.id });
    expect(access.check(bearer(secret), { ...target, ownerId: 'usr_other' })).toMatchObject({ ok: false, status: 403 });
    await access.close();
    await expect(store.listKeys()).resolves.toHaveLength(1);
  });
});
