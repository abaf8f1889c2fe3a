import fs from 'node:fs';
import LibsqlDatabase from 'libsql';
import type { KeySpec } from '../../../server/access/key-changes';
import { verifySecret } from '../../../server/access/hash';
import { parseKey } from '../../../server/access/key-format';
import { describeLocation, resolveLocation, resolveServeLocation } from '../../../server/access/location';
import { parseOwner } from '../../../server/access/owners';
import { type AccessStore, openStore } from '../../../server/access/store';
import { ALICE, BACKENDS, BOB, fakeClock, LAB } from './support';

const DAY_MS = 86_400_000;

describe.each(BACKENDS)('the store over $name', ({ isHere, make, dispose }) => {
  const on = isHere ? test : test.skip;
  let store: AccessStore;
  let clock: ReturnType<typeof fakeClock>;
  const user = (name: string, more: Partial<KeySpec> = {}): KeySpec => ({ name, type: 'user-level', owner: ALICE, ...more });
  const bound = (name: string, deployments: string[], more: Partial<KeySpec> = {}): KeySpec => ({ name, type: 'deployment-level', owner: ALICE, deployments, ...more });

  beforeEach(async () => {
    if (!isHere) return;
    clock = fakeClock();
    store = await openStore(await make(), clock.now);
  });
  afterEach(() => (isHere ? store.close() : undefined));
  afterAll(() => (isHere ? dispose() : undefined));

  on('creates a key, keeps its hash alone, and lists it without its secret', async () => {
    const { key, secret } = await store.createKey(bound('ci', ['chat', 'search'], { expiresAt: clock.now() + DAY_MS, limits: { rpm: 60 }, createdBy: 'usr_x' }));
    expect(parseKey(secret)).toBe(key.publicId);
    expect(key).toMatchObject({
      name: 'ci', type: 'deployment-level', state: 'active', owner: { type: 'user', name: 'local' }, display: `sk-cap1_${key.publicId}_…${secret.slice(-4)}`,
      expiresAt: clock.now() + DAY_MS, limits: { rpm: 60, tpm: null, parallel: null }, createdBy: 'usr_x', lastUsedAt: null, rev: 1,
    });
    expect(key.deployments.map(({ name }) => name)).toEqual(['chat', 'search']);
    expect(await store.listKeys()).toEqual([key]);
    expect(JSON.stringify(await store.listKeys())).not.toContain(secret.slice(21));
    const [record] = await store.readPage('', 10);
    expect(record.secrets[0].hash).toMatch(/^\$argon2id\$v=19\$m=19456,t=2,p=1\$/);
    await expect(verifySecret(record.secrets[0].hash, secret)).resolves.toBe(true);
    await expect(verifySecret(record.secrets[0].hash, `${secret.slice(0, -1)}0`)).resolves.toBe(false);
  });

  on('finds a key by id, public id and unique name', async () => {
    const { key } = await store.createKey(user('one'));
    for (const reference of [key.id, key.publicId, 'one']) expect((await store.getKey(reference)).id).toBe(key.id);
    const second = await store.createKey(user('one'));
    await expect(store.getKey('one')).rejects.toMatchObject({ code: 'conflict', message: expect.stringContaining(second.key.id) as string });
    await expect(store.getKey(second.secret)).rejects.toMatchObject({ code: 'not_found', message: expect.not.stringContaining(second.secret.slice(21)) as string });
  });

  on('edits name, expiry, limits and bindings, each alone', async () => {
    const { key } = await store.createKey(bound('ci', ['chat'], { limits: { rpm: 5, tpm: 6 } }));
    expect(await store.editKey(key.id, { name: ' robots ' })).toMatchObject({ name: 'robots', limits: { rpm: 5, tpm: 6 }, rev: 2 });
    expect(await store.editKey(key.id, { limits: { rpm: null, parallel: 2 } })).toMatchObject({ limits: { rpm: null, tpm: 6, parallel: 2 } });
    expect(await store.editKey(key.id, { expiresAt: clock.now() + 1000 })).toMatchObject({ state: 'active' });
    clock.advance(1000);
    expect(await store.getKey(key.id)).toMatchObject({ state: 'expired' });
    expect(await store.editKey(key.id, { expiresAt: null })).toMatchObject({ state: 'active' });
    expect((await store.editKey(key.id, { deployments: ['search', 'search', 'sum'] })).deployments.map(({ name }) => name)).toEqual(['search', 'sum']);
  });

  on('changes the type: to deployment-level with bindings, back without', async () => {
    const { key } = await store.createKey(user('k'));
    await expect(store.editKey(key.id, { type: 'deployment-level' })).rejects.toMatchObject({ code: 'invalid_argument', message: expect.stringContaining('one or more') as string });
    expect(await store.editKey(key.id, { type: 'deployment-level', deployments: ['chat'] })).toMatchObject({ type: 'deployment-level', deployments: [{ name: 'chat' }] });
    expect(await store.editKey(key.id, { type: 'user-level' })).toMatchObject({ type: 'user-level', deployments: [] });
    await expect(store.editKey(key.id, { deployments: ['chat'] })).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  on('binds only deployments of the key\'s owner', async () => {
    const foreign = await store.openDeployment(BOB, 'chat');
    await expect(store.createKey(bound('k', [foreign.id]))).rejects.toMatchObject({ code: 'not_found' });
    const { key } = await store.createKey(bound('k', ['chat']));
    expect(key.deployments[0].id).not.toBe(foreign.id);
    // What failed left nothing: no key, no revision, no owner's deployment.
    expect(await store.listKeys()).toHaveLength(1);
    expect(await store.readState()).toMatchObject({ rev: 2 });
  });

  on('disables, enables, deletes for good', async () => {
    const { key } = await store.createKey(bound('k', ['chat']));
    expect(await store.setKeyEnabled('k', false)).toMatchObject({ state: 'disabled' });
    expect(await store.setKeyEnabled('k', true)).toMatchObject({ state: 'active' });
    expect(await store.deleteKey('k')).toMatchObject({ state: 'deleted', deployments: [] });
    for (const change of [() => store.setKeyEnabled(key.id, true), () => store.editKey(key.id, { name: 'x' }), () => store.rotateKey(key.id, 0), () => store.deleteKey(key.id)]) {
      await expect(change()).rejects.toMatchObject({ code: 'not_found' });
    }
    expect(await store.listKeys()).toEqual([]);
    expect(await store.listKeys({ includeDeleted: true })).toMatchObject([{ id: key.id, name: 'k', display: key.display, state: 'deleted' }]);
    expect(await store.readPage('', 10)).toEqual([]);
    expect(await store.readDigest()).toMatchObject({ digest: { numKeys: 0, numSecrets: 0, numBindings: 0 } });
  });

  on('rotates with grace, refuses a second grace, and ends all old secrets without', async () => {
    const { key, secret } = await store.createKey(user('k'));
    const second = await store.rotateKey(key.id, DAY_MS);
    expect(second.secret).not.toBe(secret);
    expect(parseKey(second.secret)).toBe(key.publicId);
    expect(second.key).toMatchObject({ state: 'rotating', rotatingUntil: clock.now() + DAY_MS, display: `sk-cap1_${key.publicId}_…${second.secret.slice(-4)}` });
    await expect(store.rotateKey(key.id, 1)).rejects.toMatchObject({ code: 'conflict' });
    expect((await store.readPage('', 10))[0].secrets).toMatchObject([{ version: 2, validUntil: null }, { version: 1, validUntil: clock.now() + DAY_MS }]);
    const third = await store.rotateKey(key.id, 0);
    expect(third.key).toMatchObject({ state: 'active', rotatingUntil: null });
    expect((await store.readPage('', 10))[0].secrets).toMatchObject([{ version: 3 }]);
    await store.rotateKey(key.id, 1000);
    clock.advance(1000);
    expect(await store.getKey(key.id)).toMatchObject({ state: 'active' });
    await store.rotateKey(key.id, 1000);
    expect((await store.readPage('', 10))[0].secrets.map(({ version }) => version)).toEqual([5, 4]);
    expect(await store.finishRotation(key.id)).toMatchObject({ state: 'active' });
    expect((await store.readPage('', 10))[0].secrets.map(({ version }) => version)).toEqual([5]);
  });

  on('a change that somebody else overtook is refused', async () => {
    const { key } = await store.createKey(user('k'));
    await store.editKey(key.id, { name: 'a' }, { ifRev: key.rev });
    await expect(store.editKey(key.id, { name: 'b' }, { ifRev: key.rev })).rejects.toMatchObject({ code: 'conflict' });
    await expect(store.deleteKey(key.id, { ifRev: key.rev })).rejects.toMatchObject({ code: 'conflict' });
    expect(await store.getKey(key.id)).toMatchObject({ name: 'a' });
    const results = await Promise.allSettled([1, 2, 3].map((i) => store.editKey(key.id, { name: `c${i}` }, { ifRev: 2 })));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
  });

  on('the three places: account, organization, deployment', async () => {
    const personal = await store.createKey(user('personal'));
    const lab = await store.createKey({ name: 'lab', type: 'user-level', owner: LAB });
    const chat = await store.createKey(bound('chat', ['chat']));
    await store.createKey(bound('search', ['search']));
    const owner = await store.findOwner(ALICE);
    const names = async (filter: Parameters<AccessStore['listKeys']>[0]) => (await store.listKeys(filter)).map(({ name }) => name).sort();
    expect(await names({ ownerId: owner?.id })).toEqual(['chat', 'personal', 'search']);
    expect(await names({ ownerId: lab.key.owner.id })).toEqual(['lab']);
    expect(await names({ deploymentId: chat.key.deployments[0].id })).toEqual(['chat', 'personal']);
    expect(personal.key.owner.id).toMatch(/^usr_/);
    expect(lab.key.owner).toMatchObject({ type: 'org', id: expect.stringMatching(/^org_/) as string, name: 'lab' });
  });

  on('deleting a deployment leaves its keys without it; deleting an owner takes the keys', async () => {
    const { key } = await store.createKey(bound('k', ['chat']));
    await store.createKey(user('personal'));
    const lab = await store.createKey({ name: 'lab', type: 'user-level', owner: LAB });
    const { rev } = await store.readState();
    await store.deleteDeployment(key.deployments[0].id);
    expect(await store.readChanges(rev)).toMatchObject({ keys: [{ id: key.id, deployments: [] }], others: [{ entity: 'deployment' }] });
    await store.deleteOwner({ type: 'user', id: key.owner.id });
    expect((await store.listKeys()).map(({ id }) => id)).toEqual([lab.key.id]);
    await expect(store.createKey(user('again'))).rejects.toMatchObject({ code: 'conflict' });
    await expect(store.deleteOwner({ type: 'user', id: key.owner.id })).rejects.toMatchObject({ code: 'not_found' });
  });

  on('the feed names what changed, once and in order', async () => {
    const { rev: start } = await store.readState();
    const a = await store.createKey(user('a'));
    const b = await store.createKey(user('b'));
    await store.setKeyEnabled('a', false);
    await store.deleteKey('b');
    const changes = await store.readChanges(start);
    expect(changes).toMatchObject({ rev: 4, keys: [{ id: a.key.id, isEnabled: false, rev: 3 }], deletedKeyIds: [b.key.id] });
    expect(await store.readChanges(changes.rev)).toEqual({ ...await store.readState(), keys: [], deletedKeyIds: [], others: [] });
  });

  on('20 concurrent writers get 20 revisions, in order', async () => {
    const { key } = await store.createKey(user('k'));
    await Promise.all(Array.from({ length: 20 }, (_, i) => store.editKey(key.id, { name: `n${i}` })));
    expect(await store.readState()).toMatchObject({ rev: 21 });
    expect((await store.readPage('', 10))[0].rev).toBe(21);
  });

  on('uses are no changes, and an older one never wins', async () => {
    const { key } = await store.createKey(user('k'));
    await store.recordUses([{ keyId: key.id, atMs: 2000, address: '192.0.2.1' }, { keyId: 'key_gone', atMs: 1, address: 'x' }]);
    await store.recordUses([{ keyId: key.id, atMs: 1000, address: '192.0.2.9' }]);
    await store.editKey(key.id, { name: 'n' });
    expect(await store.getKey(key.id)).toMatchObject({ lastUsedAt: 2000, lastUsedIp: '192.0.2.1' });
    expect(await store.readState()).toMatchObject({ rev: 2 });
  });

  on('pages through all keys', async () => {
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) { clock.advance(1); ids.push((await store.createKey(user(`k${i}`))).key.id); }
    const seen: string[] = [];
    for (let after = ''; ;) {
      const page = await store.readPage(after, 2);
      seen.push(...page.map(({ id }) => id));
      if (page.length < 2) break;
      after = page[page.length - 1].id;
    }
    expect(seen).toEqual(ids);
  });

  const wrongSpecs: [string, object][] = [
    ['no name', { name: ' ' }], ['a long name', { name: 'x'.repeat(101) }], ['a name of two lines', { name: 'a\nb' }], ['NUL in a name', { name: 'a\0b' }],
    ['half a character', { name: 'a\ud800' }], ['a name that turns text around', { name: 'a\u202eb' }], ['another type', { type: 'admin' }], ['a limit of 0', { limits: { rpm: 0 } }],
    ['half a request', { limits: { parallel: 0.5 } }], ['a huge limit', { limits: { tpm: 2 ** 31 } }], ['a time gone by', { expiresAt: 1 }], ['no time', { expiresAt: NaN }],
    ['a deployment-level key without one', { type: 'deployment-level' }], ['a user-level key with one', { deployments: ['chat'] }], ['a deployment without a name', { type: 'deployment-level', deployments: [''] }],
  ];
  on('refuses what is wrong and keeps nothing', async () => {
    for (const [reason, wrong] of wrongSpecs) {
      const refusal = await store.createKey({ ...user('k'), ...wrong }).catch((error: unknown) => error);
      expect([reason, (refusal as { code?: string }).code]).toEqual([reason, 'invalid_argument']);
    }
    expect(await store.readState()).toMatchObject({ rev: 0 });
    expect(await store.findOwner(ALICE)).toBeUndefined();
  });

  on('whatever a name holds, it is only a name', async () => {
    for (const name of ['\'; drop table api_keys; --', '100 % "quoted" \\ %s $1 ?', '键 🔑', 'x'.repeat(100), '🔑'.repeat(100)]) {
      const { key } = await store.createKey(user(name));
      expect((await store.getKey(name)).id).toBe(key.id);
    }
  });
});

describe('the database file', () => {
  test('is made with its folder for this user alone, in WAL with full syncs', async () => {
    const location = await BACKENDS[0].make();
    if (location.kind !== 'file') throw new Error('a file');
    location.file = location.file.replace('keys.db', 'a/b/keys.db');
    const store = await openStore(location);
    await store.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    expect(fs.statSync(location.file).mode & 0o777).toBe(0o600);
    for (const suffix of ['-wal', '-shm']) expect(fs.statSync(location.file + suffix).mode & 0o077).toBe(0);
    const other = new LibsqlDatabase(location.file);
    expect(other.pragma('journal_mode')).toEqual([{ journal_mode: 'wal' }]);
    other.close();
    await store.close();
  });

  test('of a newer version is refused, and so is what is no database', async () => {
    const location = await BACKENDS[0].make();
    await (await openStore(location)).close();
    if (location.kind !== 'file') throw new Error('a file');
    const raw = new LibsqlDatabase(location.file);
    raw.exec('update schema_versions set version = 99');
    raw.close();
    await expect(openStore(location)).rejects.toMatchObject({ code: 'database_error', message: expect.stringContaining('newer version') as string });
    fs.writeFileSync(`${location.file}.txt`, 'this is some text and no database at all, whatever its name may say');
    await expect(openStore({ kind: 'file', file: `${location.file}.txt` })).rejects.toMatchObject({ code: 'database_error', message: expect.stringContaining('keys.db.txt') as string });
    await expect(openStore({ kind: 'file', file: `${location.file}.txt/keys.db` })).rejects.toMatchObject({ code: 'database_error' });
  });
});

describe('where the database is', () => {
  const env = { HOME: '/home/me', DATABASE_URL: 'postgres://me:secret@db.example:5433/capstan' };
  test.each([
    [{ keysDb: '/x/keys.db', dataDir: '/data' }, env, '/x/keys.db'],
    [{ dataDir: '/data' }, env, '/data/capstan.db'],
    [{}, env, 'PostgreSQL at db.example:5433/capstan'],
    [{}, { HOME: '/home/me' }, '/home/me/.local/share/capstan/capstan.db'],
    [{}, { HOME: '/home/me', XDG_DATA_HOME: '/xdg', DATABASE_URL: '' }, '/xdg/capstan/capstan.db'],
    [{}, { HOME: '/home/me', XDG_DATA_HOME: 'relative' }, '/home/me/.local/share/capstan/capstan.db'],
    [{ keysDb: 'postgresql://db/x' }, {}, 'PostgreSQL at db/x'],
    [{ keysDb: 'file:///x/keys.db' }, {}, '/x/keys.db'],
  ])('%j', (options, variables, expected) => expect(describeLocation(resolveLocation(options, variables))).toBe(expected));

  test('refuses other schemes and nothing, without echoing a password', () => {
    for (const keysDb of ['', 'mysql://a:secret@b/c', 'postgres://a:secret@[']) {
      expect(() => resolveLocation({ keysDb }, {})).toThrow(expect.objectContaining({ code: 'invalid_argument', message: expect.not.stringContaining('secret') as string }) as Error);
    }
  });

  test('a server opens one only with access control and no fixed key, or when told which', () => {
    const home = { HOME: '/h' };
    expect(resolveServeLocation({ accessControl: false, apiKeys: [] }, home)).toBeUndefined();
    expect(resolveServeLocation({ accessControl: true, apiKeys: ['k'] }, home)).toBeUndefined();
    expect(resolveServeLocation({ accessControl: true, apiKeys: [] }, home)).toEqual({ kind: 'file', file: '/h/.local/share/capstan/capstan.db' });
    expect(resolveServeLocation({ accessControl: true, apiKeys: ['k'], keysDb: '/x' }, home)).toEqual({ kind: 'file', file: '/x' });
  });

  test.each(['', 'local', 'admin:x', 'user:', 'user:a\nb'])('%j is no owner', (text) => expect(() => parseOwner(text)).toThrow(expect.objectContaining({ code: 'invalid_argument' }) as Error));
});
