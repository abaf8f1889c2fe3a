import fs from 'node:fs';
import path from 'node:path';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import type { ServiceActor } from '../../../../server/platform/accounts/actor';
import { DataMeasurer } from '../../../../server/platform/deployments/data-measurer';
import { type FolderMeasure, measureFolder } from '../../../../server/platform/deployments/measure-folder';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { makeFolder, overBackends, removeFolders } from '../../access/support';
import { actorOf, annOf, machine, STORE_OPTIONS, withAnn } from '../support';

afterAll(() => removeFolders());

overBackends((make) => {
  let location: DatabaseLocation;
  let root: string;
  let store: ServiceStore;
  let measurer: DataMeasurer;
  let admin: ServiceActor;
  let ann: ServiceActor;

  const openStore = () => openServiceStore({ location, ...STORE_OPTIONS, machine: machine({ dataRoots: [root] }) });
  const openMeasurer = (more: Partial<ConstructorParameters<typeof DataMeasurer>[0]> = {}) =>
    new DataMeasurer({ store, dataRoots: [root], log: { warn: () => {} }, measure: measureFolder, ...more });
  const create = (name: string, more: object = {}) =>
    store.createDataSource(admin, {
      name,
      type: 'model',
      path: path.join(root, name),
      owner: { type: 'user', id: ann.userId },
      ...more,
    });
  const measured = async (id: string) => {
    measurer.notify();
    await measurer.settled();
    return store.getDataSource(admin, id);
  };
  /** A measurement that lasts until `release` or its cancellation. */
  const held = () => {
    let release: (measure: FolderMeasure) => void = () => {};
    const started: string[] = [];
    const measure = (folder: string, _limits: unknown, signal: AbortSignal) =>
      new Promise<FolderMeasure>((resolve, reject) => {
        started.push(path.basename(folder));
        release = resolve;
        signal.addEventListener('abort', () => reject(new Error('aborted')));
      });
    return { measure, started, release: () => release({ sizeBytes: 1, numFiles: 1, digest: 'sha256:1', note: null }) };
  };
  const until = async (isTrue: () => boolean) => {
    while (!isTrue()) await new Promise(setImmediate);
  };

  beforeEach(async () => {
    root = fs.realpathSync(makeFolder());
    for (const name of ['one', 'two']) {
      fs.mkdirSync(path.join(root, name));
      fs.writeFileSync(path.join(root, name, 'weights'), name.repeat(10));
    }
    location = await make(withAnn);
    ann = actorOf(annOf(location));
    store = await openStore();
    measurer = openMeasurer();
    const createUser = async (email: string, isAdmin = false) =>
      actorOf((await store.createAccount({ email, name: email, password: 'correct horse battery' })).userId, {
        isAdmin,
      });
    admin = await createUser('root@example.com', true);
  });
  afterEach(async () => {
    await measurer.close();
    await store.close();
  });

  test('are pending until they are measured', async () => {
    const source = await create('one');
    expect(source).toMatchObject({
      size_bytes: null,
      digest: null,
      measurement: { state: 'pending', message: null, at: null },
    });
    const known = await measured(source.id);
    expect(known).toMatchObject({
      size_bytes: 30,
      file_count: 1,
      digest: expect.stringMatching(/^sha256:/),
      measurement: { state: 'measured', message: null, at: expect.any(String) },
    });
    fs.appendFileSync(path.join(root, 'one', 'weights'), 'x');
    expect(await store.setMeasureState(admin, source.id, 'pending')).toMatchObject({
      size_bytes: 30,
      measurement: { state: 'pending' },
    });
    const again = await measured(source.id);
    expect(again.size_bytes).toBe(31);
    expect(again.digest).not.toBe(known.digest);
  });

  test('report why a deleted or moved folder cannot be measured', async () => {
    const [gone, out] = [await create('one'), await create('two')];
    for (const name of ['one', 'two']) fs.rmSync(path.join(root, name), { recursive: true });
    fs.symlinkSync('/etc', path.join(root, 'two'));
    for (const { id } of [gone, out])
      expect((await measured(id)).measurement).toMatchObject({
        state: 'failed',
        message: 'expected an existing folder below a data root: it was deleted, moved or replaced by a link',
      });
  });

  test('a cancelled measurement does not stop the next one', async () => {
    const { measure, started, release } = held();
    measurer = openMeasurer({ measure });
    const [one, two] = [await create('one'), await create('two')];
    measurer.notify();
    await until(() => started.length === 1);
    await store.setMeasureState(admin, one.id, 'cancelled');
    measurer.cancel(one.id);
    await until(() => started.length === 2);
    expect(started).toEqual(['one', 'two']);
    release();
    await measurer.settled();
    expect((await store.getDataSource(admin, one.id)).measurement.state).toBe('cancelled');
    expect((await store.getDataSource(admin, two.id)).measurement.state).toBe('measured');
    await expect(store.setMeasureState(admin, one.id, 'cancelled')).rejects.toMatchObject({ code: 'wrong_state' });
  });

  test('an interrupted measurement starts again after a restart', async () => {
    const { measure, started } = held();
    measurer = openMeasurer({ measure });
    const { id } = await create('one');
    measurer.notify();
    await until(() => started.length === 1);
    await measurer.close();
    await store.close();
    store = await openStore();
    measurer = openMeasurer();
    expect((await measured(id)).measurement.state).toBe('measured');
  });

  test('discards the result when the folder changed during the measurement', async () => {
    const { measure, started, release } = held();
    measurer = openMeasurer({ measure });
    const { id } = await create('one');
    measurer.notify();
    await until(() => started.length === 1);
    await store.editDataSource(admin, id, { path: path.join(root, 'two') });
    release();
    await until(() => started.length === 2);
    expect(started).toEqual(['one', 'two']);
    expect((await store.getDataSource(admin, id)).measurement.state).toBe('pending');
  });

  test('can be edited, and their folder only while nothing is bound to them', async () => {
    const { id, rev } = await create('one');
    await create('two');
    const before = await measured(id);
    const changed = await store.editDataSource(
      admin,
      id,
      { name: 'uno', description: 'the first', visibility: 'public' },
      rev,
    );
    expect(changed).toMatchObject({
      name: 'uno',
      description: 'the first',
      visibility: 'public',
      digest: before.digest,
      measurement: { state: 'measured' },
    });
    await expect(store.editDataSource(admin, id, { name: 'x' }, rev)).rejects.toMatchObject({ code: 'stale' });
    await expect(store.editDataSource(admin, id, { name: 'two' })).rejects.toMatchObject({ code: 'conflict' });
    await expect(store.editDataSource(admin, id, { path: '/etc' })).rejects.toMatchObject({ code: 'invalid_argument' });
    await expect(store.editDataSource(ann, id, { name: 'mine' })).rejects.toMatchObject({ code: 'forbidden' });
    expect(await store.editDataSource(admin, id, { path: path.join(root, 'two') })).toMatchObject({
      digest: null,
      size_bytes: null,
      measurement: { state: 'pending' },
    });
    await store.createDeployment(ann, { name: 'chat', bindings: [{ mount: 'input0', source_id: id }] });
    await expect(store.editDataSource(admin, id, { path: path.join(root, 'one') })).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('cannot change the folder: delete the container or version that uses it first'),
    });
    expect(await store.editDataSource(admin, id, { description: null, path: path.join(root, 'two') })).toMatchObject({
      description: null,
    });
  });

  test('are writable homes for their owner and administrators of their organization only', async () => {
    const account = async (email: string) =>
      actorOf((await store.createAccount({ email, name: email, password: 'correct horse battery' })).userId);
    const home = (id: string) => ({ bindings: [{ mount: 'home' as const, source_id: id }] });
    const refused = { code: 'forbidden', message: expect.stringContaining('Bind it as an input instead') };
    const org = await store.createOrganization(ann, { slug: 'lab', name: 'Lab' });
    const members = await Promise.all(
      (['admin', 'developer'] as const).map(async (role) => {
        const email = `${role}@example.com`;
        const actor = await account(email);
        const { token } = await store.invite(ann, org.id, { email, role });
        await store.acceptInvitation(actor, token);
        return actor;
      }),
    );
    const [orgAdmin, developer] = members;
    const mine = await create('one', { visibility: 'public', owner: { type: 'user', id: ann.userId } });
    const theirs = await create('two', { owner: { type: 'org', id: org.id } });

    for (const actor of [...members, admin])
      await expect(store.createContainer(actor, { name: 'thief', ...home(mine.id) })).rejects.toMatchObject(refused);
    const lab = { name: 'lab', owner: { type: 'org' as const, id: org.id }, ...home(theirs.id) };
    await expect(store.createContainer(developer, lab)).rejects.toMatchObject(refused);
    const { id } = await store.createContainer(orgAdmin, lab);
    await expect(store.createContainer(ann, { name: 'own', ...home(mine.id) })).resolves.toBeDefined();
    await expect(store.createDeployment(developer, { name: 'copy', ...home(theirs.id) })).resolves.toBeDefined();

    const { id: empty } = await store.createContainer(developer, { name: 'empty' });
    await expect(store.editContainer(developer, empty, home(mine.id))).rejects.toMatchObject(refused);
    await expect(store.editContainer(developer, id, { start_command: 'rm -r *' })).rejects.toMatchObject(refused);
    await expect(store.commandContainer(developer, id, 'start')).rejects.toMatchObject(refused);
    await expect(store.commandContainer(orgAdmin, id, 'start')).resolves.toBeDefined();
  });

  test('list their visible users, count the others, and cannot be deleted while in use', async () => {
    const bob = actorOf(
      (await store.createAccount({ email: 'bob@example.com', name: 'Bob', password: 'correct horse battery' })).userId,
    );
    const { id } = await create('one', { visibility: 'public', owner: { type: 'user', id: ann.userId } });
    const { digest } = await measured(id);
    const bindings = [{ mount: 'input0' as const, source_id: id }];
    const deployment = await store.createDeployment(ann, { name: 'chat', bindings });
    const container = await store.createContainer(ann, { name: 'lab', bindings: [{ mount: 'home', source_id: id }] });
    const twice = await store.createContainer(ann, {
      name: 'twice',
      bindings: [
        { mount: 'home', source_id: id },
        { mount: 'input4', source_id: id },
      ],
    });
    await store.createDeployment(bob, { name: 'his', bindings });
    expect(await store.getDataSource(ann, id)).toMatchObject({
      used_by: [
        { type: 'deployment', id: deployment.id, name: 'chat', version: 1, mount: 'input0' },
        { type: 'container', id: container.id, name: 'lab', version: null, mount: 'home' },
        ...['home', 'input4'].map((mount) => ({
          type: 'container',
          id: twice.id,
          name: 'twice',
          version: null,
          mount,
        })),
      ],
      used_by_others: 1,
      path: null,
    });
    // The version keeps the digest at the time of binding.
    expect((await store.getVersion(ann, deployment.id, 1)).spec.bindings).toEqual([
      expect.objectContaining({ source_id: id, source_digest: digest }),
    ]);
    await expect(store.deleteDataSource(admin, id)).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('delete the 4 containers or versions that use it first'),
    });
    await store.editDataSource(admin, id, { visibility: 'private' });
    await expect(store.getDataSource(bob, id)).rejects.toMatchObject({ code: 'not_found' });
  });
});
