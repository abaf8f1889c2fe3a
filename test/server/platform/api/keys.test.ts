/** Keys of users, organizations and deployments, and the rights to them. */
import type { CheckTarget } from '../../../../server/access';
import type { MemberRole } from '../../../../server/access/store/schema';
import { newId } from '../../../../server/base/ids';
import type { Person } from './support';
import { alice, overServices, service, statuses } from './suite';

const KEYS = '/api/v1/keys';
const DAY = 86_400_000;

/** The gateway's decision about a key: the error code, or `in`. */
async function check(secret: string, target: CheckTarget): Promise<string> {
  const outcome = await service.access.check(
    { headers: [['authorization', `Bearer ${secret}`]], remoteAddress: '192.0.2.7' },
    target,
  );
  return outcome.ok ? 'in' : `${outcome.status} ${outcome.code}`;
}

async function deploymentOf(person: Person, name: string): Promise<CheckTarget> {
  return {
    id: (await service.access.openDeployment({ type: 'user', name: person.email }, name)).id,
    ownerId: person.userId,
  };
}

overServices(() => {
  describe('a key of an account', () => {
    test("opens its owner's deployments, is listed without its secret, and stops working at once when deleted", async () => {
      const mine = await deploymentOf(alice, 'mine');
      const made = await alice.post(KEYS, { name: 'laptop' });
      expect(made).toMatchObject({
        status: 201,
        body: {
          name: 'laptop',
          type: 'user-level',
          deployments: [],
          state: 'active',
          owner: { type: 'user', id: alice.userId, name: alice.email },
          created_by: alice.userId,
          expires_at: null,
          limits: { rpm: null, tpm: null, parallel: null },
          allowed_cidrs: null,
          budget: null,
          last_used_at: null,
          propagation: { applied: 1, total: 1, max_lag_ms: 0, ceiling_s: 300 },
        },
      });
      const { id, secret, rev, propagation } = made.body;
      expect(made.headers).toMatchObject({ etag: `"${rev}"`, location: `${KEYS}/${id}` });
      expect(await check(secret, mine)).toBe('in');
      expect(await check(secret, { id: 'dep_x', ownerId: 'usr_x' })).toBe('403 permission_denied');
      const got = await alice.get(`${KEYS}/${id}`);
      expect(got.headers.etag).toBe(`"${rev}"`);
      expect(got.body.secret).toBeUndefined();
      expect((await alice.get(`/api/v1/propagation/${propagation.rev}`)).body).toEqual(propagation);
      expect(
        statuses([
          await alice.send('DELETE', `${KEYS}/${id}`),
          await alice.send('DELETE', `${KEYS}/${id}?confirm=Laptop`),
        ]),
      ).toEqual([422, 422]);
      expect(await check(secret, mine)).toBe('in');
      expect(
        (await alice.send('DELETE', `${KEYS}/${id}?confirm=laptop`, undefined, { 'if-match': '"1"' })).status,
      ).toBe(412);
      const deleted = await alice.send('DELETE', `${KEYS}/${id}?confirm=laptop`, undefined, { 'if-match': `"${rev}"` });
      expect(deleted).toMatchObject({ status: 200, body: { state: 'deleted', propagation: { applied: 1, total: 1 } } });
      expect(await check(secret, mine)).toBe('401 invalid_api_key');
      expect((await alice.get(`${KEYS}/${id}`)).status).toBe(404);
      expect((await alice.get(`${KEYS}?include_deleted=true`)).body.data).toMatchObject([{ id, state: 'deleted' }]);
    });

    test('is updated by revision, with effect on all gateways', async () => {
      const [one, two] = [await deploymentOf(alice, 'one'), await deploymentOf(alice, 'two')];
      const {
        body: { id, secret, rev },
      } = await alice.post(KEYS, { name: 'k', type: 'deployment-level', deployments: [one.id] });
      expect([await check(secret, one), await check(secret, two)]).toEqual(['in', '403 permission_denied']);
      const path = `${KEYS}/${id}`;
      const edit = {
        deployments: [two.id],
        name: 'k2',
        limits: { rpm: 5 },
        allowed_cidrs: ['192.0.2.0/24'],
        budget: { tokens: 100, period: 'day' },
        expires_at: new Date(service.clock.now() + DAY).toISOString(),
      };
      expect(await alice.send('PATCH', path, edit)).toMatchObject({
        status: 428,
        body: { code: 'precondition_required' },
      });
      expect(await alice.send('PATCH', path, edit, { 'if-match': `"${rev + 1}"` })).toMatchObject({
        status: 412,
        body: { code: 'stale' },
      });
      const edited = await alice.send('PATCH', path, edit, { 'if-match': `"${rev}"` });
      expect(edited).toMatchObject({
        status: 200,
        body: {
          ...edit,
          limits: { rpm: 5, tpm: null, parallel: null },
          deployments: [{ id: two.id, name: 'two' }],
          propagation: { applied: 1, total: 1 },
        },
      });
      expect([await check(secret, one), await check(secret, two)]).toEqual(['403 permission_denied', 'in']);
      // Concurrent updates: one of them has a stale revision.
      const both = await Promise.all(
        ['a', 'b'].map((name) => alice.send('PATCH', path, { name }, { 'if-match': edited.headers.etag })),
      );
      expect(statuses(both).sort()).toEqual([200, 412]);
      const rest = (body: object) => alice.send('PATCH', path, body, { 'if-match': '*' });
      expect((await rest({ type: 'user-level' })).body).toMatchObject({ type: 'user-level', deployments: [] });
      expect(await check(secret, one)).toBe('in');
      expect((await rest({ type: 'deployment-level' })).status).toBe(422);
      expect((await rest({ disabled: true, name: 'off' })).body).toMatchObject({ state: 'disabled', name: 'off' });
      expect(await check(secret, one)).toBe('401 invalid_api_key');
      expect((await alice.post(`${path}/enable`)).body.state).toBe('active');
      expect((await alice.post(`${path}/disable`)).body.state).toBe('disabled');
      expect((await rest({ disabled: false })).body.state).toBe('active');
      expect(await check(secret, one)).toBe('in');
      for (const body of [
        { owner_id: 'x' },
        { status: 'active' },
        { rev: 1 },
        { state: 'active' },
        { secret: 'x' },
        { created_by: 'x' },
        { public_id: 'x' },
      ])
        expect([body, (await rest(body)).status]).toEqual([body, 400]);
    });

    test('rotates with a grace period that can be ended early', async () => {
      const mine = await deploymentOf(alice, 'mine');
      const {
        body: { id, secret },
      } = await alice.post(KEYS, { name: 'k' });
      const rotated = await alice.post(`${KEYS}/${id}/rotate`, { grace_s: 3600 });
      expect(rotated).toMatchObject({ status: 200, body: { id, state: 'rotating' } });
      expect(rotated.body.secret).not.toBe(secret);
      expect([await check(secret, mine), await check(rotated.body.secret, mine)]).toEqual(['in', 'in']);
      expect((await alice.post(`${KEYS}/${id}/rotate`, { grace_s: 3600 })).status).toBe(409);
      expect((await alice.post(`${KEYS}/${id}/rotate`, { grace_s: 2_592_001 })).status).toBe(400);
      expect((await alice.post(`${KEYS}/${id}/rotate/finish`)).body.state).toBe('active');
      expect([await check(secret, mine), await check(rotated.body.secret, mine)]).toEqual([
        '401 invalid_api_key',
        'in',
      ]);
      const atOnce = await alice.send('POST', `${KEYS}/${id}/rotate`);
      expect([await check(rotated.body.secret, mine), await check(atOnce.body.secret, mine)]).toEqual([
        '401 invalid_api_key',
        'in',
      ]);
    });

    test('reports what was expected when refused', async () => {
      const stranger = await service.person('bob@example.com');
      const foreign = await deploymentOf(stranger, 'theirs');
      const mine = await deploymentOf(alice, 'mine');
      const make = (body: object) => alice.post(KEYS, { name: 'k', ...body });
      const past = new Date(service.clock.now() - 1000).toISOString();
      expect(
        statuses([
          await make({ name: '' }),
          await make({ name: ' ' }),
          await make({ name: 'x'.repeat(101) }),
          await make({ type: 'other' }),
          await make({ type: 'deployment-level' }),
          await make({ type: 'deployment-level', deployments: [] }),
          await make({ type: 'user-level', deployments: [mine.id] }),
          await make({ deployments: ['mine'] }),
          await make({ deployments: [foreign.id] }),
          await make({ expires_at: past }),
          await make({ expires_at: 'tomorrow' }),
          await make({ limits: { rpm: 0 } }),
          await make({ limits: { requests: 1 } }),
          await make({ allowed_cidrs: [] }),
          await make({ allowed_cidrs: ['10.0.0.1/8'] }),
          await make({ budget: { tokens: 5, period: 'year' } }),
          await make({ owner: { type: 'user', id: stranger.userId } }),
          await make({ owner: { type: 'user' } }),
        ]),
      ).toEqual([400, 422, 400, 400, 422, 422, 422, 400, 404, 422, 400, 400, 400, 400, 422, 400, 404, 400]);
      const reply = await make({ type: 'deployment-level' });
      expect(reply.body).toMatchObject({
        code: 'invalid_argument',
        detail: 'deployments: a deployment-level key needs one or more',
      });
      expect((await make({ deployments: [mine.id] })).body).toMatchObject({ type: 'deployment-level' });
      // Names and public ids are not accepted: they would reveal names of strangers.
      const { body: key } = await stranger.post(KEYS, { name: 'theirs' });
      expect(
        statuses(await Promise.all(['theirs', key.public_id, key.id, 'key_x'].map((id) => alice.get(`${KEYS}/${id}`)))),
      ).toEqual([404, 404, 404, 404]);
    });

    test('can be searched, sorted and paged', async () => {
      for (const name of ['b', 'a', 'C', 'ab']) {
        await alice.post(KEYS, { name });
        service.clock.advance(10);
      }
      const names = async (query: string) =>
        (await alice.get(`${KEYS}?${query}`)).body.data.map((key: any) => key.name);
      expect([
        await names(''),
        await names('order=desc'),
        await names('q=A'),
        await names('sort=name&order=desc'),
      ]).toEqual([
        ['b', 'a', 'C', 'ab'],
        ['ab', 'C', 'a', 'b'],
        ['a', 'ab'],
        ['b', 'ab', 'a', 'C'],
      ]);
      const first = await alice.get(`${KEYS}?limit=3`);
      expect(first.body.data).toHaveLength(3);
      expect((await alice.get(`${KEYS}?limit=3&after=${first.body.next}`)).body).toMatchObject({
        data: [{ name: 'ab' }],
        next: null,
      });
      expect(
        statuses([
          await alice.get(`${KEYS}?limit=0`),
          await alice.get(`${KEYS}?limit=101`),
          await alice.get(`${KEYS}?after=x`),
          await alice.get(`${KEYS}?scope=all`),
          await alice.get(`${KEYS}?scope=org`),
          await alice.get(`${KEYS}?owner=x`),
        ]),
      ).toEqual([400, 400, 400, 400, 400, 400]);
    });

    test('shows its usage by day', async () => {
      const {
        body: { id },
      } = await alice.post(KEYS, { name: 'k' });
      const now = service.clock.now();
      const day = Math.floor(now / DAY);
      const use = { keyId: id, address: '192.0.2.7', numRequests: 2, numTokens: 30 };
      await service.store.recordUses([
        { ...use, day: day - 40, atMs: now - 40 * DAY },
        { ...use, day, atMs: now },
      ]);
      const today = new Date(now).toISOString().slice(0, 10);
      expect((await alice.get(`${KEYS}/${id}/usage`)).body).toEqual({
        data: [{ day: today, requests: 2, tokens: 30 }],
      });
      expect((await alice.get(`${KEYS}/${id}/usage?from=2020-01-01T00:00:00Z`)).body.data).toHaveLength(2);
      expect((await alice.get(`${KEYS}/${id}`)).body).toMatchObject({ last_used_ip: '192.0.2.7' });
    });

    test('limits the number of new keys per hour', async () => {
      const spec = { type: 'user-level' as const, owner: { type: 'user' as const, name: alice.email } };
      const [{ key: one }] = await Promise.all([service.store.createKey({ ...spec, name: 'first' })]);
      // Insert the rest as rows: creating 299 keys would hash 299 secrets.
      await seedKeys(one.id, 299);
      expect(await alice.post(KEYS, { name: 'k' })).toMatchObject({ status: 403, body: { code: 'quota_exceeded' } });
      service.clock.advance(3_600_000);
      expect((await alice.post(KEYS, { name: 'k' })).status).toBe(201);
    });
  });

  async function seedKeys(likeId: string, count: number): Promise<void> {
    const { openServiceDatabase } = await import('../../../../server/platform/store/change.js');
    const db = await openServiceDatabase(service.location);
    const row = await db.selectFrom('api_keys').selectAll().where('id', '=', likeId).executeTakeFirstOrThrow();
    await db
      .insertInto('api_keys')
      .values(
        Array.from({ length: count }, (_, i) => ({
          ...row,
          id: newId('key'),
          public_id: String(i).padStart(12, '0'),
        })),
      )
      .execute();
    await db.destroy();
  }

  describe('a key of a deployment', () => {
    test("requires access control, belongs to the deployment's owner and is bound to it", async () => {
      const { id } = await deploymentOf(alice, 'mine');
      const scope = `${KEYS}?scope=deployment&deployment=${id}`;
      expect(await alice.post(scope, { name: 'k' })).toMatchObject({
        status: 409,
        body: { detail: expect.stringContaining('access control') },
      });
      await service.access.setAccessControl(id, true);
      expect((await alice.post(scope, { name: 'k' })).body).toMatchObject({
        type: 'deployment-level',
        deployments: [{ id, name: 'mine' }],
        owner: { id: alice.userId },
      });
      await alice.post(KEYS, { name: 'everywhere' });
      const other = await deploymentOf(alice, 'other');
      await alice.post(KEYS, { name: 'elsewhere', deployments: [other.id] });
      expect((await alice.get(scope)).body.data.map((key: any) => key.name).sort()).toEqual(['everywhere', 'k']);
      expect((await alice.get(`${KEYS}?scope=deployment&deployment=dep_x`)).status).toBe(404);
    });

    test('is selected by naming the deployment, and contradictory scopes are refused', async () => {
      const { id } = await deploymentOf(alice, 'mine');
      await service.access.setAccessControl(id, true);
      expect((await alice.post(`${KEYS}?deployment=${id}`, { name: 'k' })).body).toMatchObject({
        type: 'deployment-level',
        deployments: [{ id }],
      });
      const other = await deploymentOf(alice, 'other');
      await alice.post(KEYS, { name: 'elsewhere', deployments: [other.id] });
      expect((await alice.get(`${KEYS}?deployment=${id}`)).body.data.map((key: any) => key.name)).toEqual(['k']);
      expect(statuses([await alice.get(`${KEYS}?deployment=dep_x`), await alice.get(`${KEYS}?org=org_x`)])).toEqual([
        404, 404,
      ]);
      for (const query of [
        `scope=user&deployment=${id}`,
        `scope=org&org=org_x&deployment=${id}`,
        `deployment=${id}&org=org_x`,
        'scope=user&org=org_x',
      ]) {
        expect([
          query,
          ...statuses([await alice.get(`${KEYS}?${query}`), await alice.post(`${KEYS}?${query}`, { name: 'k' })]),
        ]).toEqual([query, 400, 400]);
      }
    });
  });

  describe('a key of an organization', () => {
    const people: Partial<Record<MemberRole | 'colleague', Person>> = {};
    let org: { id: string };

    beforeEach(async () => {
      org = (await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' })).body;
      people.owner = alice;
      for (const name of ['admin', 'developer', 'viewer', 'colleague'] as const) {
        const person = (people[name] = await service.person(`${name}@example.com`));
        await person.join(org.id, alice, name === 'colleague' ? 'developer' : name);
      }
    });

    const make = (person: Person, body: object = {}) =>
      person.post(`${KEYS}?scope=org&org=${org.id}`, { name: 'k', ...body });

    test("opens the organization's deployments, but not those of its members", async () => {
      const {
        body: { secret, owner },
      } = await make(people.developer!);
      expect(owner).toEqual({ type: 'org', id: org.id, name: 'lab' });
      const labs = await service.access.openDeployment({ type: 'org', name: 'lab' }, 'd');
      expect(await check(secret, { id: labs.id, ownerId: org.id })).toBe('in');
      expect(await check(secret, await deploymentOf(people.developer!, 'own'))).toBe('403 permission_denied');
      const {
        body: { secret: personal },
      } = await people.developer!.post(KEYS, { name: 'p' });
      expect(await check(personal, { id: labs.id, ownerId: org.id })).toBe('403 permission_denied');
      expect((await people.viewer!.get(`${KEYS}?scope=org&org=${org.id}`)).body.data).toHaveLength(1);
    });

    test('is created and edited by developers, ended by its creator and by admins', async () => {
      expect(statuses([await make(people.viewer!), await make(people.admin!)])).toEqual([403, 201]);
      const {
        body: { id },
      } = await make(people.developer!);
      const path = `${KEYS}/${id}`;
      const edit = (person: Person, body: object) => person.send('PATCH', path, body, { 'if-match': '*' });
      expect(
        statuses([
          await people.viewer!.get(path),
          await edit(people.viewer!, { name: 'v' }),
          await edit(people.colleague!, { name: 'c' }),
          await edit(people.colleague!, { disabled: true }),
        ]),
      ).toEqual([200, 403, 200, 403]);
      for (const action of ['rotate', 'rotate/finish', 'disable', 'enable']) {
        expect([
          action,
          ...statuses([
            await people.viewer!.post(`${path}/${action}`),
            await people.colleague!.post(`${path}/${action}`),
            await people.developer!.post(`${path}/${action}`),
            await people.admin!.post(`${path}/${action}`),
          ]),
        ]).toEqual([action, 403, 403, 200, 200]);
      }
      expect(
        statuses([
          await people.viewer!.send('DELETE', `${path}?confirm=c`),
          await people.colleague!.send('DELETE', `${path}?confirm=c`),
          await people.admin!.send('DELETE', `${path}?confirm=c`),
        ]),
      ).toEqual([403, 403, 200]);
      const {
        body: { id: own },
      } = await make(people.developer!);
      expect((await people.developer!.send('DELETE', `${KEYS}/${own}?confirm=k`)).status).toBe(200);
    });

    test("obeys the organization's policy", async () => {
      await alice.send('PATCH', `/api/v1/orgs/${org.id}`, {
        key_policy: { max_lifetime_s: 86_400, require_expiry: true, allowed_types: ['user-level'] },
      });
      const soon = new Date(service.clock.now() + DAY / 2).toISOString();
      expect(
        statuses([
          await make(alice),
          await make(alice, { expires_at: new Date(service.clock.now() + 2 * DAY).toISOString() }),
          await make(alice, { expires_at: soon }),
        ]),
      ).toEqual([403, 403, 201]);
      const { id } = await service.access.openDeployment({ type: 'org', name: 'lab' }, 'd');
      expect((await make(alice, { expires_at: soon, deployments: [id] })).status).toBe(403);
    });

    test("outlives its creator's membership, and is deleted with the organization", async () => {
      const {
        body: { id, secret },
      } = await make(people.developer!);
      const target = { id: 'dep_any', ownerId: org.id };
      await alice.send('DELETE', `/api/v1/orgs/${org.id}/members/${people.developer!.userId}`);
      expect([await check(secret, target), (await people.developer!.get(`${KEYS}/${id}`)).status]).toEqual(['in', 401]);
      await people.developer!.signIn();
      expect((await people.developer!.get(`${KEYS}/${id}`)).status).toBe(404);
      expect((await alice.send('DELETE', `/api/v1/orgs/${org.id}?confirm=lab`)).status).toBe(204);
      expect(await check(secret, target)).toBe('401 invalid_api_key');
    });
  });

  test('deleting a key during rotation revokes both secrets', async () => {
    const mine = await deploymentOf(alice, 'mine');
    const {
      body: { id, secret },
    } = await alice.post(KEYS, { name: 'k' });
    const [rotated, deleted] = await Promise.all([
      alice.post(`${KEYS}/${id}/rotate`, { grace_s: 60 }),
      alice.send('DELETE', `${KEYS}/${id}?confirm=k`),
    ]);
    expect([[200, 404].includes(rotated.status), deleted.status]).toEqual([true, 200]);
    for (const text of [secret, rotated.body.secret ?? secret])
      expect(await check(text, mine)).toBe('401 invalid_api_key');
  });

  test('a management token does not open a deployment', async () => {
    const mine = await deploymentOf(alice, 'mine');
    const {
      body: { token },
    } = await alice.post('/api/v1/tokens', { name: 't', rights: 'write' });
    expect(await check(token, mine)).toBe('401 invalid_api_key');
  });

  test('a misplaced secret appears in no response, log or audit event', async () => {
    const root = await service.admin();
    const {
      body: { secret, id },
    } = await alice.post(KEYS, { name: 'k' });
    const before = service.replies.length;
    const wrong = [
      alice.get(`${KEYS}/${secret}`),
      alice.get(`${KEYS}?q=${secret}`),
      alice.get(`${KEYS}?${secret}=1`),
      alice.get(`${KEYS}?scope=${secret}`),
      alice.get(`${KEYS}?after=${secret}`),
      alice.get(`${KEYS}?scope=deployment&deployment=${secret}`),
      alice.get(`/api/v1/${secret}`),
      alice.get(`/api/v1/propagation/${secret}`),
      alice.post(KEYS, { name: 'x', type: secret }),
      alice.post(KEYS, { name: 'x', [secret]: 1 }),
      alice.post(KEYS, { name: 'x', deployments: [secret] }),
      alice.post(KEYS, { name: 'x', expires_at: secret }),
      alice.post(KEYS, { name: 'x', allowed_cidrs: [secret] }),
      alice.post(KEYS, secret),
      alice.post(`${KEYS}/${id}/rotate`, { grace_s: secret }),
      alice.send('DELETE', `${KEYS}/${id}?confirm=${secret}`),
      alice.send('PATCH', `${KEYS}/${id}`, { name: 'k' }, { 'if-match': secret }),
      alice.send('GET', KEYS, undefined, { authorization: `Bearer ${secret}` }),
      alice.post('/api/v1/auth/login', { email: secret, password: secret }),
      alice.post('/api/v1/bootstrap', { token: secret, email: 'a@b.c', name: 'x', password: secret }),
      alice.post('/api/v1/invitations/accept', { token: secret }),
    ];
    for (const { status } of await Promise.all(wrong)) expect(status).toBeLessThan(500);
    for (const { text } of service.replies.slice(before)) expect(text).not.toContain(secret);
    expect(service.logged.join('\n')).not.toContain(secret);
    expect(JSON.stringify(await service.store.readAudit({ limit: 1000 }))).not.toContain(secret);
    expect((await root.get('/api/v1/audit')).text).not.toContain(secret);
  });

  describe('inspecting a leaked text', () => {
    test('is for administrators only, and is never logged', async () => {
      const root = await service.admin();
      const {
        body: { secret, id, public_id: publicId },
      } = await alice.post(KEYS, { name: 'k' });
      const inspect = (person: Person, key: string) => person.post(`${KEYS}/inspect`, { key });
      expect((await inspect(alice, secret)).status).toBe(403);
      expect((await inspect(root, secret)).body).toMatchObject({
        well_formed: true,
        public_id: publicId,
        key: { id, name: 'k' },
      });
      expect((await inspect(root, `${secret.slice(0, -1)}_`)).body).toEqual({
        well_formed: false,
        public_id: null,
        key: null,
      });
      expect((await inspect(root, 'sk-something-else')).body).toMatchObject({ well_formed: false });
      await alice.send('DELETE', `${KEYS}/${id}?confirm=k`);
      expect((await inspect(root, secret)).body).toEqual({ well_formed: true, public_id: publicId, key: null });
      for (let i = 0; i < 16; i++) await inspect(root, 'x');
      expect((await inspect(root, 'x')).status).toBe(429);
      expect(service.logged.join('\n')).not.toContain(secret);
    });
  });
});
