/** Services of two releases on one database: the newer one changes the tables only when the older one has ended. */
import { connectDatabase, openDatabase } from '../../../../server/access/store/database';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { type Component, hasTable } from '../../../../server/access/store/migrations';
import type { Db } from '../../../../server/access/store/schema';
import { SERVICE_COMPONENTS } from '../../../../server/platform/store/change';
import { SERVICE } from '../../../../server/platform/store/migrations';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { LeaseKeeper } from '../../../../server/platform/up/lease-keeper';
import { leaseForMigration } from '../../../../server/platform/up/migration-lease';
import { overBackends } from '../../access/support';
import { FakeClock, SECRET_KEY } from '../support';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;

/** The tables of a release after this one. */
const NEWER: readonly Component[] = SERVICE_COMPONENTS.map((component) =>
  component.name === 'service'
    ? {
        ...component,
        steps: [...component.steps, (tx) => tx.schema.createTable('later').addColumn('id', 'text').execute()],
      }
    : component,
);

overBackends((make) => {
  let location: DatabaseLocation;
  let clock: FakeClock;
  let db: Db;
  let infos: string[];
  const stores: ServiceStore[] = [];

  beforeEach(async () => {
    location = await make();
    clock = new FakeClock();
    infos = [];
    db = connectDatabase(location);
  });
  afterEach(async () => {
    await db.destroy();
    for (const store of stores.splice(0)) await store.close();
  });

  const log = { info: (_fields: object, message: string) => void infos.push(message), warn: () => {} };
  /** Waits until each of the services waits for its next step. */
  const settle = async (numServices: number) => {
    while (clock.numTimers < numServices) await new Promise(setImmediate);
  };
  const advance = async (ms: number, numServices: number) => {
    await settle(numServices);
    for (let elapsed = 0; elapsed < ms; elapsed += SECOND) await clock.advance(SECOND, () => settle(numServices));
  };
  const openService = async () => {
    const store = await openServiceStore({ location, secretKey: SECRET_KEY }, clock.now);
    stores.push(store);
    return store;
  };
  const keep = async (holder: string, onStandby = () => {}) => {
    const store = await openService();
    const keeper = new LeaseKeeper({ store, holder, isAlone: false, clock, log });
    const ending = new AbortController();
    return { store, keeper, ending, epoch: keeper.acquire(ending.signal, onStandby) };
  };
  const startNewer = (components = NEWER, signal = new AbortController().signal) => {
    const state = { numStandbys: 0, close: undefined as (() => Promise<void>) | undefined };
    const starting = leaseForMigration({
      location,
      holder: 'gtw_newer',
      clock,
      loopNow: clock.now,
      log,
      signal,
      onStandby: () => state.numStandbys++,
      components,
    }).then((close) => {
      state.close = close;
    });
    return { state, starting };
  };
  const setVersion = (version: number) =>
    db.updateTable('schema_versions').set({ version }).where('component', '=', 'service').execute();

  test('a newer service waits while an older one renews its lease, and takes the lease before it changes tables', async () => {
    const older = await keep('gtw_older');
    expect(await older.epoch).toBe(1);
    const { state, starting } = startNewer();
    await advance(MINUTE, 2);
    expect(state).toEqual({ numStandbys: 1, close: undefined });
    expect(infos).toEqual([
      'waiting for another service to end. This release changes the tables of the database after that',
    ]);
    await older.keeper.close();
    await advance(31 * SECOND, 1);
    await starting;
    expect(await older.store.readLease()).toMatchObject({ holder: 'gtw_newer', epoch: 2 });
    expect(await older.store.renewLease(1)).toBe(false);
    // The lease is renewed while the tables are changed.
    await openDatabase(location, NEWER).then((newer) => newer.destroy());
    const before = await older.store.readLease();
    await advance(6 * SECOND, 1);
    expect((await older.store.readLease()).expiresAt).toBeGreaterThan(before.expiresAt);
    await state.close?.();
  });

  test('a newer service that is stopped while it waits changes nothing', async () => {
    const older = await keep('gtw_older');
    await older.epoch;
    const ending = new AbortController();
    const { state, starting } = startNewer(NEWER, ending.signal);
    await advance(2 * SECOND, 2);
    ending.abort();
    await clock.advance(SECOND, () => Promise.resolve());
    await starting;
    await state.close?.();
    expect(await older.store.readLease()).toMatchObject({ holder: 'gtw_older', epoch: 1 });
    await older.keeper.close();
  });

  test('a service that changes no tables takes no lease here', async () => {
    const older = await keep('gtw_older');
    await older.epoch;
    const { state, starting } = startNewer(SERVICE_COMPONENTS);
    await starting;
    expect(state.numStandbys).toBe(0);
    expect(await older.store.readLease()).toMatchObject({ holder: 'gtw_older' });
    await older.keeper.close();
  });

  test('an empty database, and one from before the lease, are not waited for', async () => {
    await startNewer().starting;
    expect(await hasTable(db, 'schema_versions')).toBe(false);
    const beforeLease = { ...SERVICE, steps: SERVICE.steps.slice(0, 16) };
    await openDatabase(
      location,
      SERVICE_COMPONENTS.map((each) => (each === SERVICE ? beforeLease : each)),
    ).then((opened) => opened.destroy());
    await startNewer().starting;
    expect(await hasTable(db, 'control_lease')).toBe(false);
  });

  describe('an older service refuses the tables of a newer one', () => {
    const MESSAGE = `a newer release of Capstan has changed the tables of this database: expected at most version ${SERVICE.steps.length} of service, got ${SERVICE.steps.length + 1}. Start that release, or restore a backup from before`;

    test('when it starts', async () => {
      await openService();
      await setVersion(SERVICE.steps.length + 1);
      await expect(openService()).rejects.toThrow(MESSAGE);
      await expect(startNewer(SERVICE_COMPONENTS).starting).rejects.toThrow(MESSAGE);
    });

    test('when it waited as a standby meanwhile', async () => {
      const newer = await keep('gtw_newer');
      await newer.epoch;
      let standbys = 0;
      const older = await keep('gtw_older', () => standbys++);
      const refused = expect(older.epoch).rejects.toMatchObject({ code: 'lease_lost', message: MESSAGE });
      await advance(2 * SECOND, 2);
      expect(standbys).toBe(1);
      await setVersion(SERVICE.steps.length + 1);
      await newer.keeper.close({ releases: true });
      await clock.advance(SECOND, () => Promise.resolve());
      await refused;
      expect(await newer.store.readLease()).toMatchObject({ holder: null, epoch: 1 });
    });
  });
});
