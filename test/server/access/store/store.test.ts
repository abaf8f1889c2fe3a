import fs from 'node:fs';
import path from 'node:path';
import LibsqlDatabase from 'libsql';
import pg from 'pg';
import type { KeyUse } from '../../../../server/access/check/uses';
import type { KeySpec } from '../../../../server/access/keys/changes';
import { verifySecret } from '../../../../server/access/check/hash';
import { parseKey } from '../../../../server/base/key-format';
import type { KeyPage, KeyPaging } from '../../../../server/access/keys/pages';
import {
  type DatabaseLocation,
  describeLocation,
  resolveLocation,
  resolveServeLocation,
} from '../../../../server/access/store/location';
import { parseOwner } from '../../../../server/access/owner-names';
import { type AccessStore, openStore } from '../../../../server/access/store/store';
import { ALICE, BACKENDS, BOB, fakeClock, LAB } from '../support';

const DAY_MS = 86_400_000;

/** Written by the migrations of version 3. */
const FIXTURE = fs.readFileSync(path.join(__dirname, 'fixtures', 'version-3.sql'), 'utf8');

function use(keyId: string, more: Partial<KeyUse> = {}): KeyUse {
  return { keyId, atMs: 1, address: '192.0.2.1', day: 0, numRequests: 1, numTokens: 0, ...more };
}

describe.each(BACKENDS)('the store over $name', ({ isHere, make, dispose }) => {
  const on = isHere ? test : test.skip;
  let store: AccessStore;
  let location: DatabaseLocation;
  let clock: ReturnType<typeof fakeClock>;
  const isFile = () => location.kind === 'file';
  /** Runs SQL without the store, like an administrator with a database client. */
  const raw = async (statement: string): Promise<void> => {
    if (location.kind === 'file') {
      const database = new LibsqlDatabase(location.file);
      try {
        database.exec(statement);
      } finally {
        database.close();
      }
      return;
    }
    const client = new pg.Client({ connectionString: location.url });
    await client.connect();
    await client.query(statement).finally(() => client.end());
  };
  const user = (name: string, more: Partial<KeySpec> = {}): KeySpec => ({
    name,
    type: 'user-level',
    owner: ALICE,
    ...more,
  });
  const bound = (name: string, deployments: string[], more: Partial<KeySpec> = {}): KeySpec => ({
    name,
    type: 'deployment-level',
    owner: ALICE,
    deployments,
    ...more,
  });

  beforeEach(async () => {
    if (!isHere) return;
    clock = fakeClock();
    location = await make();
    store = await openStore(location, clock.now);
  });
  afterEach(() => (isHere ? store.close() : undefined));
  afterAll(() => (isHere ? dispose() : undefined));

  on('stores only the hash of a new key and lists it without its secret', async () => {
    const { key, secret } = await store.createKey(
      bound('ci', ['chat', 'search'], { expiresAt: clock.now() + DAY_MS, limits: { rpm: 60 }, createdBy: 'usr_x' }),
    );
    expect(parseKey(secret)).toBe(key.publicId);
    expect(key).toMatchObject({
      name: 'ci',
      type: 'deployment-level',
      state: 'active',
      owner: { type: 'user', name: 'local' },
      display: `sk-cap1_${key.publicId}_…${secret.slice(-4)}`,
      expiresAt: clock.now() + DAY_MS,
      limits: { rpm: 60, tpm: null, parallel: null },
      createdBy: 'usr_x',
      lastUsedAt: null,
      rev: 1,
    });
    expect(key.deployments.map(({ name }) => name)).toEqual(['chat', 'search']);
    expect(await store.listKeys()).toEqual([key]);
    expect(JSON.stringify(await store.listKeys())).not.toContain(secret.slice(21));
    const [record] = await store.readPage('', 10);
    expect(record.secrets[0].hash).toMatch(/^\$argon2id\$v=19\$m=19456,t=2,p=1\$/);
    await expect(verifySecret(record.secrets[0].hash, secret)).resolves.toBe(true);
    await expect(
      verifySecret(record.secrets[0].hash, `${secret.slice(0, -1)}${secret.endsWith('0') ? '1' : '0'}`),
    ).resolves.toBe(false);
  });

  on('finds a key by id, public id and unique name', async () => {
    const { key } = await store.createKey(user('one'));
    for (const reference of [key.id, key.publicId, 'one']) expect((await store.getKey(reference)).id).toBe(key.id);
    const second = await store.createKey(user('one'));
    await expect(store.getKey('one')).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining(second.key.id) as string,
    });
    await expect(store.getKey(second.secret)).rejects.toMatchObject({
      code: 'not_found',
      message: expect.not.stringContaining(second.secret.slice(21)) as string,
    });
  });

  on('edits name, expiry, limits and bindings independently', async () => {
    const { key } = await store.createKey(bound('ci', ['chat'], { limits: { rpm: 5, tpm: 6 } }));
    expect(await store.editKey(key.id, { name: ' robots ' })).toMatchObject({
      name: 'robots',
      limits: { rpm: 5, tpm: 6 },
      rev: 2,
    });
    expect(await store.editKey(key.id, { limits: { rpm: null, parallel: 2 } })).toMatchObject({
      limits: { rpm: null, tpm: 6, parallel: 2 },
    });
    expect(await store.editKey(key.id, { expiresAt: clock.now() + 1000 })).toMatchObject({ state: 'active' });
    clock.advance(1000);
    expect(await store.getKey(key.id)).toMatchObject({ state: 'expired' });
    expect(await store.editKey(key.id, { expiresAt: null })).toMatchObject({ state: 'active' });
    expect(
      (await store.editKey(key.id, { deployments: ['search', 'search', 'sum'] })).deployments.map(({ name }) => name),
    ).toEqual(['search', 'sum']);
  });

  on('changes the type to deployment-level with bindings and back to user-level without', async () => {
    const { key } = await store.createKey(user('k'));
    await expect(store.editKey(key.id, { type: 'deployment-level' })).rejects.toMatchObject({
      code: 'invalid_argument',
      message: expect.stringContaining('one or more') as string,
    });
    expect(await store.editKey(key.id, { type: 'deployment-level', deployments: ['chat'] })).toMatchObject({
      type: 'deployment-level',
      deployments: [{ name: 'chat' }],
    });
    expect(await store.editKey(key.id, { type: 'user-level' })).toMatchObject({ type: 'user-level', deployments: [] });
    await expect(store.editKey(key.id, { deployments: ['chat'] })).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  on("binds only deployments of the key's owner", async () => {
    const foreign = await store.openDeployment(BOB, 'chat');
    await expect(store.createKey(bound('k', [foreign.id]))).rejects.toMatchObject({ code: 'not_found' });
    const { key } = await store.createKey(bound('k', ['chat']));
    expect(key.deployments[0].id).not.toBe(foreign.id);
    // The failed change left no key, no revision and no deployment.
    expect(await store.listKeys()).toHaveLength(1);
    expect(await store.readState()).toMatchObject({ rev: 2 });
  });

  on('disables, enables and permanently deletes a key', async () => {
    const { key } = await store.createKey(bound('k', ['chat']));
    expect(await store.setKeyEnabled('k', false)).toMatchObject({ state: 'disabled' });
    expect(await store.setKeyEnabled('k', true)).toMatchObject({ state: 'active' });
    expect(await store.deleteKey('k')).toMatchObject({ state: 'deleted', deployments: [] });
    for (const change of [
      () => store.setKeyEnabled(key.id, true),
      () => store.editKey(key.id, { name: 'x' }),
      () => store.rotateKey(key.id, 0),
      () => store.deleteKey(key.id),
    ]) {
      await expect(change()).rejects.toMatchObject({ code: 'not_found' });
    }
    expect(await store.listKeys()).toEqual([]);
    expect(await store.listKeys({ includeDeleted: true })).toMatchObject([
      { id: key.id, name: 'k', display: key.display, state: 'deleted' },
    ]);
    expect(await store.readPage('', 10)).toEqual([]);
    expect(await store.readDigest()).toMatchObject({ digest: { numKeys: 0, numSecrets: 0, numBindings: 0 } });
  });

  on('rotates with grace, refuses a second grace, and ends all old secrets without grace', async () => {
    const { key, secret } = await store.createKey(user('k'));
    const second = await store.rotateKey(key.id, DAY_MS);
    expect(second.secret).not.toBe(secret);
    expect(parseKey(second.secret)).toBe(key.publicId);
    expect(second.key).toMatchObject({
      state: 'rotating',
      rotatingUntil: clock.now() + DAY_MS,
      display: `sk-cap1_${key.publicId}_…${second.secret.slice(-4)}`,
    });
    await expect(store.rotateKey(key.id, 1)).rejects.toMatchObject({ code: 'conflict' });
    expect((await store.readPage('', 10))[0].secrets).toMatchObject([
      { version: 2, validUntil: null },
      { version: 1, validUntil: clock.now() + DAY_MS },
    ]);
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

  on('refuses a change if the revision is not the expected one', async () => {
    const { key } = await store.createKey(user('k'));
    await store.editKey(key.id, { name: 'a' }, { ifRev: key.rev });
    await expect(store.editKey(key.id, { name: 'b' }, { ifRev: key.rev })).rejects.toMatchObject({ code: 'stale' });
    await expect(store.deleteKey(key.id, { ifRev: key.rev })).rejects.toMatchObject({ code: 'stale' });
    expect(await store.getKey(key.id)).toMatchObject({ name: 'a' });
    const results = await Promise.allSettled(
      [1, 2, 3].map((i) => store.editKey(key.id, { name: `c${i}` }, { ifRev: 2 })),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
  });

  on('lists keys by account, organization and deployment', async () => {
    const personal = await store.createKey(user('personal'));
    const lab = await store.createKey({ name: 'lab', type: 'user-level', owner: LAB });
    const chat = await store.createKey(bound('chat', ['chat']));
    await store.createKey(bound('search', ['search']));
    const owner = await store.findOwner(ALICE);
    const names = async (filter: Parameters<AccessStore['listKeys']>[0]) =>
      (await store.listKeys(filter)).map(({ name }) => name).sort();
    expect(await names({ ownerId: owner?.id })).toEqual(['chat', 'personal', 'search']);
    expect(await names({ ownerId: lab.key.owner.id })).toEqual(['lab']);
    expect(await names({ deploymentId: chat.key.deployments[0].id })).toEqual(['chat', 'personal']);
    expect(personal.key.owner.id).toMatch(/^usr_/);
    expect(lab.key.owner).toMatchObject({ type: 'org', id: expect.stringMatching(/^org_/) as string, name: 'lab' });
  });

  on('deleting a deployment unbinds its keys, deleting an owner deletes its keys', async () => {
    const { key } = await store.createKey(bound('k', ['chat']));
    await store.createKey(user('personal'));
    const lab = await store.createKey({ name: 'lab', type: 'user-level', owner: LAB });
    const { rev } = await store.readState();
    await store.deleteDeployment(key.deployments[0].id);
    expect(await store.readChanges(rev)).toMatchObject({
      keys: [{ id: key.id, deployments: [] }],
      others: [{ entity: 'deployment' }],
    });
    await store.deleteOwner({ type: 'user', id: key.owner.id });
    expect((await store.listKeys()).map(({ id }) => id)).toEqual([lab.key.id]);
    await expect(store.createKey(user('again'))).rejects.toMatchObject({ code: 'conflict' });
    await expect(store.deleteOwner({ type: 'user', id: key.owner.id })).rejects.toMatchObject({ code: 'not_found' });
  });

  on('the feed lists each change once and in order', async () => {
    const { rev: start } = await store.readState();
    const a = await store.createKey(user('a'));
    const b = await store.createKey(user('b'));
    await store.setKeyEnabled('a', false);
    await store.deleteKey('b');
    const changes = await store.readChanges(start);
    expect(changes).toMatchObject({
      rev: 4,
      keys: [{ id: a.key.id, isEnabled: false, rev: 3 }],
      deletedKeyIds: [b.key.id],
    });
    expect(await store.readChanges(changes.rev)).toEqual({
      ...(await store.readState()),
      isComplete: true,
      keys: [],
      deletedKeyIds: [],
      others: [],
    });
  });

  on('20 concurrent writers get 20 revisions, in order', async () => {
    const { key } = await store.createKey(user('k'));
    await Promise.all(Array.from({ length: 20 }, (_, i) => store.editKey(key.id, { name: `n${i}` })));
    expect(await store.readState()).toMatchObject({ rev: 21 });
    expect((await store.readPage('', 10))[0].rev).toBe(21);
  });

  on('a recorded use is not a revision, and an older use never replaces a newer one', async () => {
    const { key } = await store.createKey(user('k'));
    await store.recordUses([use(key.id, { atMs: 2000, address: '192.0.2.1' }), use('key_gone', { atMs: 1 })]);
    await store.recordUses([use(key.id, { atMs: 1000, address: '192.0.2.9' })]);
    await store.editKey(key.id, { name: 'n' });
    expect(await store.getKey(key.id)).toMatchObject({ lastUsedAt: 2000, lastUsedIp: '192.0.2.1' });
    expect(await store.readState()).toMatchObject({ rev: 2 });
  });

  on('the first use of a key and a change of it never wait for each other', async () => {
    if (location.kind === 'file') return;
    const { key } = await store.createKey(user('k'));
    const other = new pg.Client({ connectionString: location.url });
    await other.connect();
    try {
      // What a change does, in its order.
      await other.query('begin; update auth_state set rev = rev + 1');
      const recorded = store.recordUses([use(key.id, { atMs: 2000 })]);
      const isWaiting = 'select 1 from pg_stat_activity where $1 = any(pg_blocking_pids(pid))';
      const [{ pid }] = (await other.query<{ pid: number }>('select pg_backend_pid() as pid')).rows;
      while ((await other.query(isWaiting, [pid])).rows.length === 0);
      await other.query('update api_keys set updated_at = 1');
      await other.query('commit');
      await recorded;
    } finally {
      await other.end();
    }
    expect(await store.getKey(key.id)).toMatchObject({ lastUsedAt: 2000 });
  });

  on('pages through all keys', async () => {
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) {
      clock.advance(1);
      ids.push((await store.createKey(user(`k${i}`))).key.id);
    }
    const seen: string[] = [];
    for (let after = ''; ;) {
      const page = await store.readPage(after, 2);
      seen.push(...page.map(({ id }) => id));
      if (page.length < 2) break;
      after = page[page.length - 1].id;
    }
    expect(seen).toEqual(ids);
  });

  on('stores allowed networks and budget of a key and lists its usage', async () => {
    const { key } = await store.createKey(
      user('k', { allowedCidrs: ['10.0.0.0/8', '::1'], budget: { tokens: 100, period: 'day' } }),
    );
    const today = Math.floor(clock.now() / DAY_MS);
    expect(key).toMatchObject({
      state: 'active',
      allowedCidrs: ['10.0.0.0/8', '::1'],
      budget: { tokens: 100, period: 'day', used: 0, resetsAt: (today + 1) * DAY_MS },
    });
    clock.advance(1);
    const other = (await store.createKey(user('other'))).key;
    const written = await store.recordUses([
      use(key.id, { atMs: clock.now(), day: today, numRequests: 2, numTokens: 60 }),
      use(key.id, { day: today - 1, numTokens: 1000 }),
      use(other.id, { day: today, numTokens: 5 }),
    ]);
    expect(written).toEqual([{ keyId: key.id, period: 'day', sinceDay: today, tokens: 60 }]);
    expect(await store.recordUses([use(key.id, { atMs: clock.now(), day: today, numTokens: 40 })])).toMatchObject([
      { tokens: 100 },
    ]);
    expect(await store.getKey('k')).toMatchObject({ state: 'exhausted', budget: { used: 100 } });
    expect(await store.readPage('', 10)).toMatchObject([
      { allowedCidrs: ['10.0.0.0/8', '::1'], budget: { tokens: 100, period: 'day' }, budgetUse: { tokens: 100 } },
      { allowedCidrs: null, budget: null, budgetUse: null },
    ]);
    expect(await store.readUsage('k', clock.now() - DAY_MS)).toEqual([
      { day: today - 1, requests: 1, tokens: 1000 },
      { day: today, requests: 3, tokens: 100 },
    ]);
    expect(await store.editKey('k', { budget: { tokens: 2000, period: 'total' } })).toMatchObject({
      state: 'active',
      budget: { used: 1100, resetsAt: null },
    });
    clock.advance(DAY_MS);
    expect(await store.editKey('k', { budget: { tokens: 50, period: 'day' } })).toMatchObject({
      state: 'active',
      budget: { used: 0 },
    });
    expect(await store.editKey('k', { budget: null, allowedCidrs: null })).toMatchObject({
      budget: null,
      allowedCidrs: null,
    });
  });

  on('writes an audit row and an event for each change, and the hash chain reveals tampering', async () => {
    const actor = { type: 'user', id: 'usr_admin', ip: '192.0.2.1', userAgent: 'test' } as const;
    const { key, secret } = await store.createKey({ ...bound('k', ['chat']), owner: LAB }, { actor });
    await store.editKey('k', { name: 'robots', deployments: ['search'] }, { actor });
    await store.setKeyEnabled('robots', false);
    await store.setKeyEnabled('robots', true);
    await store.rotateKey('robots', 1000);
    await store.finishRotation('robots');
    await store.recordUses([use(key.id), use('key_gone')]);
    await store.recordUses([use(key.id, { atMs: 5 })]);
    const deploymentId = key.deployments[0].id;
    await store.setAccessControl(deploymentId, true, { actor });
    await store.deleteDeployment(deploymentId);
    await store.deleteKey('robots', { actor });
    await store.deleteOwner({ type: 'org', id: key.owner.id });
    await expect(store.editKey('nobody', { name: 'x' }, { actor })).rejects.toMatchObject({ code: 'not_found' });
    const actions = [
      'owner.created',
      'deployment.created',
      'key.created',
      'deployment.created',
      'key.updated',
      'key.disabled',
      'key.enabled',
      'key.rotated',
      'key.rotation_finished',
      'deployment.access_control',
      'deployment.deleted',
      'key.deleted',
      'owner.deleted',
    ];
    const audit = (await store.readAudit({})).reverse();
    expect(audit.map(({ action }) => action)).toEqual(actions);
    expect(audit[4]).toMatchObject({
      seq: 5,
      actor_type: 'user',
      actor_id: 'usr_admin',
      ip: '192.0.2.1',
      user_agent: 'test',
      org_id: key.owner.id,
      target_type: 'key',
      target_id: key.id,
      result: 'ok',
      prev_hash: audit[3].hash,
    });
    expect(JSON.parse(audit[4].before ?? '')).toMatchObject({ name: 'k', deployments: [deploymentId] });
    expect(JSON.parse(audit[4].after ?? '')).toMatchObject({ name: 'robots', state: 'active' });
    expect(audit[5]).toMatchObject({ actor_type: 'system', actor_id: 'capstan' });
    expect(key.createdBy).toBe('usr_admin');
    expect(JSON.stringify(audit)).not.toContain(secret.slice(21, 53));
    expect(await store.readAudit({ targetId: key.id, actorId: 'usr_admin', limit: 2 })).toMatchObject([
      { action: 'key.deleted' },
      { action: 'key.updated' },
    ]);
    expect(await store.readAudit({ beforeSeq: 3, action: 'deployment.created' })).toMatchObject([{ seq: 2 }]);
    const events = await store.readEvents(0);
    // The first use is one of these events.
    expect(events.map(({ type }) => type)).toEqual([...actions.slice(0, 9), 'key.first_used', ...actions.slice(9)]);
    expect(events.map(({ seq }) => seq)).toEqual(events.map((_, i) => i + 1));
    expect(await store.readEvents(events.length - 1)).toMatchObject([{ type: 'owner.deleted' }]);
    expect(await store.verifyAudit()).toBeUndefined();
    await expect(raw("update audit_events set actor_id = 'x' where seq = 3")).rejects.toThrow('append only');
    await expect(raw('delete from audit_events where seq = 3')).rejects.toThrow('append only');
    await raw(
      isFile()
        ? 'drop trigger audit_events_no_update'
        : 'alter table audit_events disable trigger audit_events_append_only',
    );
    await raw("update audit_events set actor_id = 'x' where seq = 3");
    expect(await store.verifyAudit()).toBe(3);
  });

  on('keeps events for a month up to a maximum count, and keeps all audit rows', async () => {
    const seqs = async () => (await store.readEvents(0)).map(({ seq }) => seq);
    await store.createKey(user('k'));
    const before = await seqs();
    clock.advance(31 * DAY_MS);
    await store.setKeyEnabled('k', false);
    expect(await seqs()).toEqual([...before, before.length + 1]);
    await raw('update auth_state set event_seq = 255');
    await store.setKeyEnabled('k', true);
    expect(await seqs()).toEqual([before.length + 1, 256]);
    await raw('update auth_state set event_seq = 102399');
    await store.setKeyEnabled('k', false);
    expect(await seqs()).toEqual([102_400]);
    expect((await store.readAudit({})).map(({ action }) => action)).toEqual([
      'key.disabled',
      'key.enabled',
      'key.disabled',
      'key.created',
      ...new Array<string>(before.length - 1).fill('owner.created'),
    ]);
    expect(await store.verifyAudit()).toBeUndefined();
  });

  on("an organization's policy applies only to its own keys", async () => {
    const lab = (name: string, more: Partial<KeySpec> = {}): KeySpec => ({ ...user(name, more), owner: LAB });
    const { key } = await store.createKey(lab('before'));
    const orgId = key.owner.id;
    await store.setKeyPolicy(orgId, {
      maxLifetimeMs: 30 * DAY_MS,
      requireExpiry: false,
      allowedTypes: ['deployment-level'],
    });
    const expiresAt = clock.now() + 30 * DAY_MS;
    const refused: [Partial<KeySpec>, string][] = [
      [{ expiresAt }, 'type: the organization allows only deployment-level keys'],
      [{ type: 'deployment-level', deployments: ['chat'] }, 'expires: the organization requires an expiry'],
      [
        { type: 'deployment-level', deployments: ['chat'], expiresAt: expiresAt + 1 },
        `expires: the organization allows no expiry after ${new Date(expiresAt).toISOString()}`,
      ],
    ];
    for (const [more, message] of refused)
      await expect(store.createKey(lab('k', more))).rejects.toMatchObject({ code: 'forbidden', message });
    await store.createKey(lab('k', { type: 'deployment-level', deployments: ['chat'], expiresAt }));
    clock.advance(DAY_MS);
    // The lifetime counts from creation, not from the edit.
    await expect(store.editKey('k', { expiresAt: expiresAt + 1 })).rejects.toMatchObject({ code: 'forbidden' });
    await expect(store.editKey('k', { expiresAt: null })).rejects.toMatchObject({ code: 'forbidden' });
    await expect(store.editKey('k', { type: 'user-level' })).rejects.toMatchObject({ code: 'forbidden' });
    await store.editKey('before', { name: 'old', limits: { rpm: 5 } });
    await expect(store.editKey('old', { expiresAt: clock.now() + 1 })).rejects.toMatchObject({ code: 'forbidden' });
    await store.createKey(user('personal'));
    await store.setKeyPolicy(orgId, {
      maxLifetimeMs: null,
      requireExpiry: true,
      allowedTypes: ['user-level', 'deployment-level'],
    });
    await store.createKey(lab('far', { expiresAt: clock.now() + 9000 * DAY_MS }));
    await expect(store.createKey(lab('never'))).rejects.toMatchObject({ code: 'forbidden' });
    expect(await store.readKeyPolicy(orgId)).toMatchObject({ requireExpiry: true });
    await store.setKeyPolicy(orgId, null);
    await store.createKey(lab('never'));
    expect(await store.readAudit({ action: 'owner.key_policy' })).toHaveLength(3);
    for (const policy of [
      { maxLifetimeMs: 0 },
      { allowedTypes: [] },
      { allowedTypes: ['admin'] },
      { requireExpiry: 1 },
    ]) {
      await expect(
        store.setKeyPolicy(orgId, {
          maxLifetimeMs: null,
          requireExpiry: false,
          allowedTypes: ['user-level'],
          ...policy,
        } as never),
      ).rejects.toMatchObject({ code: 'invalid_argument' });
    }
    await expect(store.setKeyPolicy('org_x', null)).rejects.toMatchObject({ code: 'not_found' });
  });

  on('prunes old revisions and reports this to followers that missed them', async () => {
    const { key } = await store.createKey(user('k'));
    await store.editKey('k', { name: 'a' });
    clock.advance(2 * DAY_MS);
    await raw('update auth_state set rev = 254');
    await store.editKey('a', { name: 'b' });
    expect(await store.readChanges(0)).toMatchObject({ rev: 255, isComplete: true });
    await store.editKey('b', { name: 'c' });
    expect(await store.readChanges(1)).toMatchObject({ rev: 256, isComplete: false });
    expect(await store.readChanges(2)).toMatchObject({ rev: 256, isComplete: true, keys: [{ id: key.id, rev: 256 }] });
    expect(await store.readChanges(256)).toMatchObject({ isComplete: true, keys: [] });
  });

  on('pages in every order while keys are created and deleted', async () => {
    const specs: [string, number | null][] = [
      ['delta', null],
      ['alpha', 3],
      ['charlie', 1],
      ['bravo', 2],
      ['echo 100%_x', null],
    ];
    for (const [name, days] of specs) {
      clock.advance(1000);
      const { key } = await store.createKey(
        user(name, { expiresAt: days === null ? null : clock.now() + days * DAY_MS }),
      );
      if (days !== null) await store.recordUses([use(key.id, { atMs: 10 - days })]);
    }
    const walk = async (paging: KeyPaging) => {
      const names: string[] = [];
      for (let after: string | null | undefined; after !== null;) {
        const page: KeyPage = await store.pageKeys({}, { ...paging, limit: 2, after });
        names.push(...page.data.map(({ name }) => name.split(' ')[0]));
        after = page.next;
      }
      return names.join(' ');
    };
    expect(await walk({})).toBe('delta alpha charlie bravo echo');
    expect(await walk({ descending: true })).toBe('echo bravo charlie alpha delta');
    expect(await walk({ sort: 'name' })).toBe('alpha bravo charlie delta echo');
    expect(await walk({ sort: 'expires' })).toBe('charlie bravo alpha delta echo');
    expect(await walk({ sort: 'last-used', descending: true })).toBe('charlie bravo alpha echo delta');
    const { data, next } = await store.pageKeys({}, { sort: 'name', limit: 2 });
    await store.deleteKey(data[1].id);
    await store.createKey(user('aaa'));
    expect(
      (await store.pageKeys({}, { sort: 'name', limit: 2, after: next ?? '' })).data.map(({ name }) => name),
    ).toEqual(['charlie', 'delta']);
    expect((await store.pageKeys({ search: '0%_X' }, {})).data.map(({ name }) => name)).toEqual(['echo 100%_x']);
    expect((await store.pageKeys({ search: '%' }, { limit: 1 })).next).toBeNull();
    for (const paging of [
      { limit: 0 },
      { limit: 101 },
      { limit: 1.5 },
      { sort: 'owner' },
      { after: 'x' },
      { after: next ?? '' },
      { after: Buffer.from('["created+","x","y"]').toString('base64url') },
    ]) {
      await expect(store.pageKeys({}, paging as KeyPaging)).rejects.toMatchObject({ code: 'invalid_argument' });
    }
  });

  on('counts the processes that have applied a revision', async () => {
    expect(await store.readPropagation(1)).toEqual({ rev: 1, applied: 0, total: 0, maxLagMs: 0 });
    await store.writeHeartbeat({ gatewayId: 'gtw_a', appliedRev: 5, version: '1' });
    clock.advance(2000);
    await store.writeHeartbeat({ gatewayId: 'gtw_b', appliedRev: 7, version: '1' });
    expect(await store.readPropagation(5)).toEqual({ rev: 5, applied: 2, total: 2, maxLagMs: 0 });
    expect(await store.readPropagation(6)).toEqual({ rev: 6, applied: 1, total: 2, maxLagMs: 2000 });
    await store.writeHeartbeat({ gatewayId: 'gtw_a', appliedRev: 7, version: '1' });
    expect(await store.readPropagation(6)).toMatchObject({ applied: 2 });
    await store.deleteHeartbeat('gtw_b');
    expect(await store.readPropagation(8)).toMatchObject({ applied: 0, total: 1 });
    // By then the process accepts no keys, so it no longer counts.
    clock.advance(300_001);
    expect(await store.readPropagation(8)).toMatchObject({ applied: 0, total: 0 });
  });

  on('migrates a database of schema version 3 with all its data', async () => {
    await store.close();
    location = await make();
    for (const statement of FIXTURE.replace(/^--.*\n/gm, '').split(/;\n/))
      if (statement.trim() !== '') await raw(statement);
    const nowMs = Date.UTC(2026, 10, 20, 1);
    store = await openStore(location, () => nowMs);
    const keys = new Map((await store.listKeys({ includeDeleted: true })).map((key) => [key.name, key]));
    expect([...keys].map(([name, { state, type, owner }]) => [name, state, type, owner.name])).toEqual([
      ['everywhere', 'active', 'user-level', 'local'],
      ['chat only', 'active', 'deployment-level', 'local'],
      ['rotated', 'rotating', 'user-level', 'lab'],
      ['off', 'disabled', 'user-level', 'local'],
      ['gone', 'deleted', 'user-level', 'local'],
    ]);
    expect(keys.get('chat only')).toMatchObject({
      limits: { rpm: 60, tpm: 1000, parallel: 2 },
      allowedCidrs: null,
      budget: null,
      expiresAt: Date.UTC(2100, 0, 1),
      createdBy: 'usr_someone',
    });
    expect(keys.get('chat only')?.deployments.map(({ name }) => name)).toEqual(['chat', 'default']);
    expect(keys.get('everywhere')).toMatchObject({ lastUsedIp: '192.0.2.1' });
    const records = await store.readPage('', 10);
    const secretOf = (name: string) => new RegExp(`^--   ${name}: (\\S+)$`, 'm').exec(FIXTURE)?.[1] ?? '';
    const rotated = records.find(({ id }) => id === keys.get('rotated')?.id);
    for (const [i, name] of ['rotated twice', 'rotated'].entries())
      expect(await verifySecret(rotated?.secrets[i].hash ?? '', secretOf(name))).toBe(true);
    // The revision continues from its old value.
    expect(await store.readChanges(2)).toMatchObject({ rev: 8, isComplete: true });
    await store.editKey('off', { budget: { tokens: 1, period: 'day' }, allowedCidrs: ['::1'] });
    expect(await store.readState()).toMatchObject({ rev: 9 });
    expect(await store.readAudit({})).toMatchObject([{ seq: 1, action: 'key.updated' }]);
    await store.close();
    store = await openStore(location, () => nowMs);
    expect(await store.listKeys()).toHaveLength(4);
  });

  const wrongSpecs: [string, object][] = [
    ['no name', { name: ' ' }],
    ['a long name', { name: 'x'.repeat(101) }],
    ['a name of two lines', { name: 'a\nb' }],
    ['NUL in a name', { name: 'a\0b' }],
    ['half a character', { name: 'a\ud800' }],
    ['a name that turns text around', { name: 'a\u202eb' }],
    ['another type', { type: 'admin' }],
    ['a limit of 0', { limits: { rpm: 0 } }],
    ['half a request', { limits: { parallel: 0.5 } }],
    ['a huge limit', { limits: { tpm: 2 ** 31 } }],
    ['a time gone by', { expiresAt: 1 }],
    ['no time', { expiresAt: NaN }],
    ['a host for a network', { allowedCidrs: ['10.0.0.1/8'] }],
    ['no network at all', { allowedCidrs: [] }],
    ['a text for networks', { allowedCidrs: '::1' }],
    ['a budget of nothing', { budget: { tokens: 0, period: 'day' } }],
    ['a budget of a year', { budget: { tokens: 1, period: 'year' } }],
    ['a deployment-level key without one', { type: 'deployment-level' }],
    ['a user-level key with one', { deployments: ['chat'] }],
    ['a deployment without a name', { type: 'deployment-level', deployments: [''] }],
  ];
  on('refuses an invalid spec and stores nothing', async () => {
    for (const [reason, wrong] of wrongSpecs) {
      const refusal = await store.createKey({ ...user('k'), ...wrong }).catch((error: unknown) => error);
      expect([reason, (refusal as { code?: string }).code]).toEqual([reason, 'invalid_argument']);
    }
    expect(await store.readState()).toMatchObject({ rev: 0 });
    expect(await store.findOwner(ALICE)).toBeUndefined();
  });

  on('accepts SQL, quotes and Unicode in a name as plain text', async () => {
    for (const name of [
      "'; drop table api_keys; --",
      '100 % "quoted" \\ %s $1 ?',
      '键 🔑',
      'x'.repeat(100),
      '🔑'.repeat(100),
    ]) {
      const { key } = await store.createKey(user(name));
      expect((await store.getKey(name)).id).toBe(key.id);
    }
  });
});

describe('the database file', () => {
  test('is created with its folder, private to the user, in WAL mode with full syncs', async () => {
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

  test('is refused if its schema is newer or if it is not a database', async () => {
    const location = await BACKENDS[0].make();
    await (await openStore(location)).close();
    if (location.kind !== 'file') throw new Error('a file');
    const raw = new LibsqlDatabase(location.file);
    raw.exec('update schema_versions set version = 99');
    raw.close();
    await expect(openStore(location)).rejects.toMatchObject({
      code: 'database_error',
      message: expect.stringContaining('a newer release of Capstan') as string,
    });
    fs.writeFileSync(`${location.file}.txt`, 'this is some text and no database at all, whatever its name may say');
    await expect(openStore({ kind: 'file', file: '/proc/capstan/keys.db' })).rejects.toMatchObject({
      code: 'database_error',
    });
    await expect(openStore({ kind: 'file', file: `${location.file}.txt` })).rejects.toMatchObject({
      code: 'database_error',
      message: expect.stringContaining('keys.db.txt') as string,
    });
    await expect(openStore({ kind: 'file', file: `${location.file}.txt/keys.db` })).rejects.toMatchObject({
      code: 'database_error',
    });
  });
});

describe('the database location', () => {
  const env = { HOME: '/home/me', DATABASE_URL: 'postgres://me:secret@db.example:5433/capstan' };
  test.each([
    [{ keysDb: '/x/keys.db', dataDir: '/data' }, env, '/x/keys.db'],
    [{ dataDir: '/data' }, env, '/data/capstan.db'],
    [{}, env, 'PostgreSQL at db.example:5433/capstan'],
    [{}, { HOME: '/home/me' }, '/home/me/.local/share/capstan/capstan.db'],
    [{}, { HOME: '/home/me', XDG_DATA_HOME: '/xdg', DATABASE_URL: '' }, '/xdg/capstan/capstan.db'],
    [{}, { ...env, CAPSTAN_DATA_DIR: '/srv' }, '/srv/capstan.db'],
    [{}, { ...env, CAPSTAN_DATA_DIR: '/srv', CAPSTAN_KEYS_DB: '/k/keys.db' }, '/k/keys.db'],
    [{ dataDir: '/data' }, { ...env, CAPSTAN_KEYS_DB: '/k/keys.db' }, '/data/capstan.db'],
    [{}, { HOME: '/home/me', XDG_DATA_HOME: 'relative' }, '/home/me/.local/share/capstan/capstan.db'],
    [{ keysDb: 'postgresql://db/x' }, {}, 'PostgreSQL at db/x'],
    [{ keysDb: 'file:///x/keys.db' }, {}, '/x/keys.db'],
  ])('%j', (options, variables, expected) =>
    expect(describeLocation(resolveLocation(options, variables))).toBe(expected),
  );

  test('refuses an empty value and other schemes without echoing a password', () => {
    for (const keysDb of ['', 'mysql://a:secret@b/c', 'postgres://a:secret@[']) {
      expect(() => resolveLocation({ keysDb }, {})).toThrow(
        expect.objectContaining({
          code: 'invalid_argument',
          message: expect.not.stringContaining('secret') as string,
        }) as Error,
      );
    }
  });

  test('a server opens a database only with access control and no fixed key, or if one is named', () => {
    const home = { HOME: '/h' };
    expect(resolveServeLocation({ accessControl: false, apiKeys: [] }, home)).toBeUndefined();
    expect(resolveServeLocation({ accessControl: true, apiKeys: ['k'] }, home)).toBeUndefined();
    expect(resolveServeLocation({ accessControl: true, apiKeys: [] }, home)).toEqual({
      kind: 'file',
      file: '/h/.local/share/capstan/capstan.db',
    });
    expect(resolveServeLocation({ accessControl: true, apiKeys: ['k'], keysDb: '/x' }, home)).toEqual({
      kind: 'file',
      file: '/x',
    });
  });

  test.each(['', 'local', 'admin:x', 'user:', 'user:a\nb'])('%j is no owner', (text) =>
    expect(() => parseOwner(text)).toThrow(expect.objectContaining({ code: 'invalid_argument' }) as Error),
  );
});
