import { once } from 'node:events';
import net from 'node:net';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import LibsqlDatabase from 'libsql';
import { Access } from '../../../../server/access/access';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import type { ServiceStore, ServiceStoreOptions } from '../../../../server/platform/store/store';
import { openServingServiceStore } from '../../../../server/platform/store/threaded-store';
import { freePort } from '../../../fakes/free-port';
import { BACKENDS, bearer, overBackends, REGISTER, ROOT } from '../../access/support';
import { reviveAccessError } from '../../../../server/access/store/threaded-store';

const THREAD = path.join(ROOT, 'server', 'platform', 'store', 'store-thread.ts');
const createThread = (data: ServiceStoreOptions) =>
  new Worker(`require(${JSON.stringify(REGISTER)}); require(${JSON.stringify(THREAD)});`, {
    eval: true,
    workerData: data,
  });

let store: ServiceStore;

/** A TCP proxy between the store and its database. Closing it closes all connections. */
class TcpProxy {
  readonly #open = new Set<net.Socket>();
  readonly #server: net.Server;

  constructor({ hostname, port }: URL) {
    this.#server = net.createServer((near) => {
      const far = net.connect(Number(port || 5432), hostname);
      for (const [socket, other] of [
        [near, far],
        [far, near],
      ]) {
        this.#open.add(socket);
        socket.pipe(other);
        socket.on('error', () => {}).on('close', () => other.destroy());
      }
    });
  }

  async listen(port: number): Promise<number> {
    await once(this.#server.listen(port, '127.0.0.1'), 'listening');
    return (this.#server.address() as net.AddressInfo).port;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const socket of this.#open) socket.destroy();
    await closed;
  }
}

overBackends((make) => {
  beforeAll(async () => {
    store = await openServingServiceStore(
      { location: await make(), secretKey: new Uint8Array(32) },
      () => {},
      createThread,
    );
  });
  afterAll(() => store.close());

  test('passes errors through the thread with their codes', async () => {
    const account = await store.createAccount({ email: 'a@example.com', name: 'A', password: 'correct horse battery' });
    await expect(store.findAccount(account.userId)).resolves.toEqual(account);
    await expect(store.findAccount('usr_none')).rejects.toMatchObject({ name: 'ServiceError', code: 'not_found' });
    await expect(store.getKey('none')).rejects.toMatchObject({ name: 'AccessError', code: 'not_found' });
  });

  test('the key check uses the same store and does not close it', async () => {
    const access = await Access.open({ store, pollMs: 1_000_000 });
    const { secret, key } = await access.createKey({
      name: 'k',
      type: 'user-level',
      owner: { type: 'user', name: 'a@example.com' },
    });
    const target = { id: 'dep_x', ownerId: key.owner.id };
    expect(access.check(bearer(secret), target)).toMatchObject({ ok: true, keyId: key.id });
    expect(access.check(bearer(secret), { ...target, ownerId: 'usr_other' })).toMatchObject({ ok: false, status: 403 });
    await access.close();
    await expect(store.listKeys()).resolves.toHaveLength(1);
  });
});

const [, postgres] = BACKENDS;
(postgres.isHere ? test : test.skip)(
  'reports a lost database connection as database_error and reconnects',
  async () => {
    const location = (await postgres.make()) as Extract<DatabaseLocation, { kind: 'postgres' }>;
    const url = new URL(location.url);
    const proxy = new TcpProxy(new URL(url));
    [url.hostname, url.port] = ['127.0.0.1', String(await proxy.listen(await freePort()))];
    const away = await openServingServiceStore(
      { location: { ...location, url: url.href }, secretKey: new Uint8Array(32) },
      () => {},
      createThread,
    );
    try {
      const calls = Promise.allSettled(
        [1, 2, 3, 4, 5, 6].map(() =>
          away.createAccount({ email: 'a@example.com', name: 'A', password: 'correct horse battery' }),
        ),
      );
      await proxy.close();
      for (const call of await calls)
        if (call.status === 'rejected')
          expect((call.reason as { code: string }).code).toMatch(/^(database_error|conflict)$/);
      await expect(away.listKeys()).rejects.toMatchObject({ name: 'AccessError', code: 'database_error' });
      await proxy.listen(Number(url.port));
      // Pooled connections from before fail first.
      while (
        (await away.listKeys().catch((error: unknown) => expect(error).toMatchObject({ code: 'database_error' }))) ===
        undefined
      );
    } finally {
      await away.close();
      await proxy.close();
      await postgres.dispose();
    }
  },
);

const [file] = BACKENDS;
test('reports a locked database as database_error', async () => {
  const location = (await file.make()) as Extract<DatabaseLocation, { kind: 'file' }>;
  const held = await openServingServiceStore({ location, secretKey: new Uint8Array(32) }, () => {}, createThread);
  const holder = new LibsqlDatabase(location.file);
  holder.exec('begin immediate');
  await expect(
    held.createAccount({ email: 'a@example.com', name: 'A', password: 'correct horse battery' }),
  ).rejects.toMatchObject({ name: 'AccessError', code: 'database_error' });
  holder.close();
  await held.close();
  await file.dispose();
});

test.each([
  'Client has encountered a connection error and is not queryable',
  'Client was closed and is not queryable',
  'Connection terminated unexpectedly',
  'Query read timeout',
])('reports as database_error: %s', (message) => {
  const error = reviveAccessError({ name: 'Error', code: undefined, message });
  expect(error).toMatchObject({ name: 'AccessError', code: 'database_error', message });
});

test.each(['40001', '40P01', '57P01'])('reports code %s of PostgreSQL as database_error', (code) => {
  const error = reviveAccessError({ name: 'error', code, message: 'x' });
  expect(error).toMatchObject({ name: 'AccessError', code: 'database_error' });
});

test('does not report other errors as database_error', () => {
  expect(reviveAccessError({ name: 'Error', code: 'ECONNREFUSED', message: 'x' })).toMatchObject({
    code: 'database_error',
  });
  expect(reviveAccessError({ name: 'TypeError', code: 'ERR_INVALID_ARG_TYPE', message: 'x' })).not.toHaveProperty(
    'code',
  );
});
