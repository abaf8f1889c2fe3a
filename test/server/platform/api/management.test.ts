/** Management tokens, organizations, invitations, the audit log, and idempotent requests. */
import { actorOf } from '../support';
import { PASSWORD, type Person, type Reply, Service } from './support';
import { alice, JSON_TYPE, overServices, service, statuses } from './suite';

const ME = '/api/v1/me';
const DAY = 86_400_000;

const at = (ms: number): string => new Date(service.clock.now() + ms).toISOString();

overServices(() => {
  describe('management tokens', () => {
    test('act for their owner, are shown once, and need no cookie or CSRF token', async () => {
      const made = await alice.post('/api/v1/tokens', { name: 'ci', rights: 'write', expires_at: at(DAY) });
      expect(made).toMatchObject({
        status: 201,
        body: { name: 'ci', rights: 'write', token: expect.stringMatching(/^mt-[0-9A-Za-z]{43}$/), last_used_at: null },
      });
      const { token, id, display } = made.body;
      expect(token.startsWith(display.split('…')[0])).toBe(true);
      const headers = { authorization: `Bearer ${token}` };
      expect((await service.send('GET', ME, { headers })).body).toMatchObject({
        email: alice.email,
        via: 'token',
        csrf_token: null,
      });
      expect(
        (await service.send('PATCH', ME, { headers: { ...headers, ...JSON_TYPE }, body: '{"theme":"dark"}' })).status,
      ).toBe(200);
      const { body } = await alice.get('/api/v1/tokens');
      expect(body.data).toMatchObject([{ id, name: 'ci', last_used_ip: '192.0.2.1' }]);
      const bob = await service.person('bob@example.com');
      expect((await bob.send('DELETE', `/api/v1/tokens/${id}`)).status).toBe(404);
      expect((await alice.send('DELETE', `/api/v1/tokens/${id}`)).status).toBe(204);
      expect((await service.send('GET', ME, { headers })).status).toBe(401);
      expect((await alice.get('/api/v1/tokens')).body.data).toEqual([]);
    });

    test('can be read-only, and expire', async () => {
      const {
        body: { token },
      } = await alice.post('/api/v1/tokens', { name: 'look', rights: 'read', expires_at: at(DAY) });
      const send = (method: string, target: string, body?: string) =>
        service.send(method, target, {
          headers: { authorization: `Bearer ${token}`, ...JSON_TYPE },
          ...(body === undefined ? {} : { body }),
        });
      expect(
        statuses([
          await send('GET', ME),
          await send('PATCH', ME, '{"theme":"dark"}'),
          await send('POST', '/api/v1/orgs', '{"name":"a","slug":"a"}'),
          await send('DELETE', '/api/v1/sessions'),
        ]),
      ).toEqual([200, 403, 403, 403]);
      service.clock.advance(DAY);
      expect((await send('GET', ME)).status).toBe(401);
    });

    test('cannot create tokens, and access keys are not accepted', async () => {
      const byToken = await alice.token('write');
      expect(await byToken('POST', '/api/v1/tokens', { name: 'more', rights: 'write' })).toMatchObject({
        status: 403,
        body: { code: 'session_required' },
      });
      const {
        body: { secret },
      } = await alice.post('/api/v1/keys', { name: 'k' });
      for (const value of [
        `Bearer ${secret}`,
        'Bearer mt-',
        'Bearer',
        'Basic YTpi',
        `Bearer mt-${'A'.repeat(43)}`,
        `Bearer  mt-${'A'.repeat(43)}`,
        '',
      ]) {
        const reply = await service.send('GET', ME, {
          headers: { authorization: value, cookie: alice.cookie },
          remoteAddress: `198.51.100.${value.length}`,
        });
        expect(reply).toMatchObject({ status: 401, body: { code: 'unauthenticated' } });
        expect(reply.headers['www-authenticate']).toBe('Bearer');
      }
    });

    test('are refused when malformed', async () => {
      for (const body of [
        {},
        { name: 'a' },
        { name: 'a', rights: 'all' },
        { name: '', rights: 'read' },
        { name: 'a', rights: 'read', expires_at: 'soon' },
        { name: 'a', rights: 'read', user_id: 'x' },
      ]) {
        expect([body, (await alice.post('/api/v1/tokens', body)).status]).toEqual([body, 400]);
      }
      expect((await alice.post('/api/v1/tokens', { name: 'a', rights: 'read', expires_at: at(-1000) })).status).toBe(
        422,
      );
    });

    test('cannot be guessed: an address waits after too many failures', async () => {
      const guess = () =>
        service.send('GET', ME, {
          headers: { authorization: `Bearer mt-${'A'.repeat(43)}` },
          remoteAddress: '203.0.113.1',
        });
      for (let i = 0; i < 20; i++) expect((await guess()).status).toBe(401);
      const reply = await guess();
      expect(reply.status).toBe(429);
      expect(Number(reply.headers['retry-after'])).toBeGreaterThan(0);
    });
  });

  describe('organizations', () => {
    let org: { id: string; rev: number };

    beforeEach(async () => {
      org = (await alice.post('/api/v1/orgs', { name: 'The lab', slug: 'lab' })).body;
    });

    test('are created, visible to members, updated by revision, and deleted by name', async () => {
      expect(org).toMatchObject({
        slug: 'lab',
        name: 'The lab',
        role: 'owner',
        quota_gpu: null,
        quota_deployments: null,
        key_policy: null,
      });
      expect((await alice.post('/api/v1/orgs', { name: 'x', slug: 'lab' })).status).toBe(409);
      for (const body of [
        { name: 'x' },
        { name: 'x', slug: 'A' },
        { name: 'x', slug: '-a' },
        { name: 'x', slug: 'a', id: 'org_1' },
      ])
        expect((await alice.post('/api/v1/orgs', body)).status).toBe(400);
      const path = `/api/v1/orgs/${org.id}`;
      const policy = { max_lifetime_s: 86_400, require_expiry: true, allowed_types: ['deployment-level'] };
      const edited = await alice.send(
        'PATCH',
        path,
        { name: 'Lab', key_policy: policy },
        { 'if-match': `"${org.rev}"` },
      );
      expect(edited).toMatchObject({ status: 200, body: { name: 'Lab', key_policy: policy } });
      // An organization cannot change its own quotas.
      for (const quota of [{ quota_gpu: 4 }, { quota_deployments: null }])
        expect((await alice.send('PATCH', path, quota)).status).toBe(400);
      expect(edited.headers.etag).toBe(`"${edited.body.rev}"`);
      expect((await alice.send('PATCH', path, { name: 'x' }, { 'if-match': `"${org.rev}"` })).status).toBe(412);
      expect((await alice.get('/api/v1/orgs')).body).toMatchObject({
        data: [{ id: org.id, key_policy: policy }],
        next: null,
      });
      expect((await alice.get(ME)).body.organizations).toEqual([
        { id: org.id, slug: 'lab', name: 'Lab', role: 'owner' },
      ]);
      expect(
        statuses([
          await alice.send('DELETE', path),
          await alice.send('DELETE', `${path}?confirm=Lab`),
          await alice.send('DELETE', `${path}?confirm=lab`),
          await alice.get(path),
        ]),
      ).toEqual([422, 422, 204, 404]);
    });

    test('take members by invitation: single use, for one address, visible to those who may invite', async () => {
      const [bob, carol] = [await service.person('bob@example.com'), await service.person('carol@example.com')];
      const made = await alice.post(`/api/v1/orgs/${org.id}/invitations`, { email: bob.email, role: 'developer' });
      expect(made).toMatchObject({
        status: 201,
        body: {
          email: bob.email,
          role: 'developer',
          invited_by: alice.userId,
          token: expect.stringMatching(/^[0-9A-Za-z]{43}$/),
        },
      });
      const { token, id } = made.body;
      const look = await service.send('POST', '/api/v1/invitations/inspect', {
        headers: JSON_TYPE,
        body: JSON.stringify({ token }),
      });
      expect(look).toMatchObject({
        status: 200,
        body: { organization: 'The lab', email: bob.email, role: 'developer', has_account: true },
      });
      expect((await carol.post('/api/v1/invitations/accept', { token })).status).toBe(403);
      // A form on another site, sent with Bob's cookie.
      expect(
        (
          await service.send('POST', '/api/v1/invitations/accept', {
            headers: { ...JSON_TYPE, ...bob.credentials },
            body: JSON.stringify({ token }),
          })
        ).status,
      ).toBe(403);
      expect((await bob.post('/api/v1/invitations/accept', { token })).status).toBe(204);
      expect((await bob.post('/api/v1/invitations/accept', { token })).status).toBe(410);
      expect(
        (await bob.get(`/api/v1/orgs/${org.id}/members`)).body.data.map((member: any) => [member.email, member.role]),
      ).toEqual([
        ['alice@example.com', 'owner'],
        ['bob@example.com', 'developer'],
      ]);
      expect((await bob.get(`/api/v1/orgs/${org.id}/invitations`)).status).toBe(403);
      expect(
        (await alice.post(`/api/v1/orgs/${org.id}/invitations`, { email: bob.email, role: 'viewer' })).status,
      ).toBe(409);
      const other = (await alice.post(`/api/v1/orgs/${org.id}/invitations`, { email: carol.email, role: 'viewer' }))
        .body;
      const listed = await alice.get(`/api/v1/orgs/${org.id}/invitations`);
      expect(listed.body.data.map((invitation: any) => invitation.id)).toEqual([other.id]);
      expect(listed.text).not.toContain(other.token);
      expect((await alice.send('DELETE', `/api/v1/orgs/${org.id}/invitations/${other.id}`)).status).toBe(204);
      expect((await carol.post('/api/v1/invitations/accept', { token: other.token })).status).toBe(410);
      expect((await alice.send('DELETE', `/api/v1/orgs/${org.id}/invitations/${id}`)).status).toBe(404);
    });

    test('an invitation also creates an account for a new user', async () => {
      const {
        body: { token },
      } = await alice.post(`/api/v1/orgs/${org.id}/invitations`, { email: 'New@Example.com', role: 'viewer' });
      const accept = (body: object) =>
        service.send('POST', '/api/v1/invitations/accept', {
          headers: JSON_TYPE,
          body: JSON.stringify({ token, ...body }),
        });
      expect((await accept({})).status).toBe(401);
      expect((await accept({ name: 'New', password: 'short' })).status).toBe(422);
      const reply = await accept({ name: 'New', password: PASSWORD });
      expect(reply.status).toBe(204);
      const me = await service.send('GET', ME, {
        headers: {
          cookie: reply.headers['set-cookie'].split(';')[0],
          'x-session-secret': reply.headers['x-session-secret'],
        },
      });
      expect(me.body).toMatchObject({
        email: 'new@example.com',
        is_admin: false,
        organizations: [{ id: org.id, role: 'viewer' }],
      });
      expect((await accept({ name: 'New', password: PASSWORD })).status).toBe(410);
      // An invited user with an account must sign in: the token alone cannot take over the account.
      const {
        body: { token: forAlice },
      } = await alice.post(`/api/v1/orgs/${org.id}/invitations`, { email: 'bob@example.com', role: 'viewer' });
      await service.person('bob@example.com');
      expect((await accept({ token: forAlice, name: 'Bob', password: PASSWORD })).status).toBe(409);
    });

    test('have roles: members grant at most their own role, and the last owner stays', async () => {
      const people = Object.fromEntries(
        await Promise.all(
          ['admin', 'developer', 'viewer'].map(
            async (role) => [role, await service.person(`${role}@example.com`)] as const,
          ),
        ),
      );
      for (const [role, person] of Object.entries(people))
        expect((await person.join(org.id, alice, role)).status).toBe(204);
      const { admin, developer, viewer } = people;
      const path = `/api/v1/orgs/${org.id}`;
      const setRole = (person: Person, userId: string, role: string) =>
        person.send('PATCH', `${path}/members/${userId}`, { role });
      const invite = (person: Person, role: string) =>
        person.post(`${path}/invitations`, { email: `${role}-of-${person.email}`, role });
      expect(
        statuses([
          await invite(admin, 'admin'),
          await invite(admin, 'owner'),
          await invite(developer, 'admin'),
          await invite(developer, 'viewer'),
          await invite(viewer, 'viewer'),
        ]),
      ).toEqual([201, 403, 403, 403, 403]);
      expect(
        statuses([
          await setRole(admin, viewer.userId, 'owner'),
          await setRole(admin, alice.userId, 'viewer'),
          await setRole(developer, viewer.userId, 'viewer'),
          await setRole(alice, alice.userId, 'admin'),
        ]),
      ).toEqual([403, 403, 403, 409]);
      expect(
        statuses(
          await Promise.all([admin, developer, viewer].map((person) => person.send('PATCH', path, { name: 'Lab' }))),
        ),
      ).toEqual([200, 403, 403]);
      expect(
        statuses(
          await Promise.all([admin, developer, viewer].map((person) => person.send('DELETE', `${path}?confirm=lab`))),
        ),
      ).toEqual([403, 403, 403]);
      expect(
        statuses(
          await Promise.all([admin, developer, viewer].map((person) => person.get(`/api/v1/audit?org=${org.id}`))),
        ),
      ).toEqual([200, 403, 403]);
      // A role change ends the sessions of the member.
      expect(await setRole(admin, viewer.userId, 'developer')).toMatchObject({
        status: 200,
        body: { role: 'developer' },
      });
      expect((await viewer.get(ME)).status).toBe(401);
      expect((await setRole(admin, 'usr_nobody', 'developer')).status).toBe(404);
      expect((await developer.send('DELETE', `${path}/members/${developer.userId}`)).status).toBe(204);
      expect((await developer.get(path)).status).toBe(404);
    });
  });

  describe('the audit log', () => {
    test('lists who did what, in pages, for authorized users', async () => {
      const root = await service.admin();
      const { body: org } = await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' });
      const { body: key } = await alice.post(`/api/v1/keys?scope=org&org=${org.id}`, { name: 'k' });
      await alice.send('DELETE', `/api/v1/keys/${key.id}?confirm=k`);
      const page = await alice.get(`/api/v1/audit?org=${org.id}&limit=2`);
      expect(page.body.data.map((row: any) => row.action)).toEqual(['key.deleted', 'key.created']);
      expect(page.body.data[1]).toMatchObject({
        actor: { type: 'user', id: alice.userId },
        target: { type: 'key', id: key.id },
        ip: '192.0.2.1',
        org_id: org.id,
        result: 'ok',
        before: null,
        after: { name: 'k' },
      });
      const rest = await alice.get(`/api/v1/audit?org=${org.id}&limit=2&after=${page.body.next}`);
      expect(rest.body).toMatchObject({ data: [{ action: 'owner.created' }], next: null });
      expect((await alice.get(`/api/v1/audit?org=${org.id}&action=key.created`)).body.data).toHaveLength(1);
      expect((await alice.get(`/api/v1/audit?org=${org.id}&target=${key.id}`)).body.data).toHaveLength(2);
      expect((await alice.get(`/api/v1/audit?org=${org.id}&from=${encodeURIComponent(at(1000))}`)).body.data).toEqual(
        [],
      );
      expect(
        statuses([
          await alice.get('/api/v1/audit'),
          await root.get('/api/v1/audit'),
          await root.get(`/api/v1/audit?org=${org.id}`),
          await alice.get(`/api/v1/audit?org=${org.id}&after=x`),
        ]),
      ).toEqual([403, 200, 404, 400]);
      expect((await root.get('/api/v1/audit?limit=100')).text).not.toContain(key.secret);
      expect((await root.get(`/api/v1/audit?actor=${alice.userId}&action=account.signed_in`)).body.data).toMatchObject([
        { target: { type: 'user', id: alice.userId }, ip: '192.0.2.1' },
      ]);
    });

    test('shows current names, and only the id of deleted objects', async () => {
      const root = await service.admin();
      const { body: org } = await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' });
      const make = async (target: string, body: object) => (await alice.post(target, body)).body;
      const [kept, gone, deployment, container] = [
        await make(`/api/v1/keys?scope=org&org=${org.id}`, { name: 'old' }),
        await make('/api/v1/keys', { name: 'gone' }),
        await make('/api/v1/deployments', { name: 'chat' }),
        await make('/api/v1/containers', { name: 'train' }),
      ];
      await alice.send('PATCH', `/api/v1/keys/${kept.id}`, { name: 'new' }, { 'if-match': '*' });
      await alice.send('DELETE', `/api/v1/keys/${gone.id}?confirm=gone`);
      const lastOf = async (target: string) => (await root.get(`/api/v1/audit?target=${target}&limit=1`)).body.data[0];
      const named = await Promise.all(
        [kept, gone, deployment, container, org, { id: alice.userId }].map(async ({ id }) => (await lastOf(id)).target),
      );
      expect(named).toEqual([
        { type: 'key', id: kept.id, name: 'new' },
        { type: 'key', id: gone.id, name: null },
        { type: 'deployment', id: deployment.id, name: 'chat' },
        { type: 'container', id: container.id, name: 'train' },
        { type: 'org', id: org.id, name: 'lab' },
        { type: 'user', id: alice.userId, name: 'alice@example.com' },
      ]);
      expect((await lastOf(kept.id)).actor).toEqual({ type: 'user', id: alice.userId, name: 'alice@example.com' });
      const bob = await service.person('bob@example.com');
      await service.store.deleteOtherAccount(actorOf(root.userId, { isAdmin: true }), bob.userId);
      expect((await lastOf(bob.userId)).target).toEqual({ type: 'user', id: bob.userId, name: null });
    });
  });

  describe('Idempotency-Key', () => {
    const KEY = { 'idempotency-key': 'one' };

    test('runs an equal request once, and shows its secret once', async () => {
      const first = await alice.post('/api/v1/keys', { name: 'k' }, KEY);
      const again = await alice.post('/api/v1/keys', { name: 'k' }, KEY);
      expect(first).toMatchObject({ status: 201, body: { secret: expect.stringMatching(/^sk-/) } });
      expect(again).toMatchObject({
        status: 201,
        body: { id: first.body.id, name: 'k', secret: null, replayed: true },
      });
      expect((await alice.get('/api/v1/keys')).body.data).toHaveLength(1);
      expect(await alice.post('/api/v1/keys', { name: 'other' }, KEY)).toMatchObject({
        status: 422,
        body: { code: 'idempotency_mismatch' },
      });
      expect((await alice.post('/api/v1/orgs', { name: 'k', slug: 'k' }, KEY)).status).toBe(422);
      // The same text from another user is another key.
      const bob = await service.person('bob@example.com');
      expect((await bob.post('/api/v1/keys', { name: 'k' }, KEY)).body.id).not.toBe(first.body.id);
      service.clock.advance(DAY);
      expect((await alice.signIn()).status).toBe(204);
      expect((await alice.post('/api/v1/keys', { name: 'k' }, KEY)).body.id).not.toBe(first.body.id);
    });

    test('repeats the location and the body of the created object', async () => {
      const made = async (target: string, body: object, key: string) => [
        await alice.post(target, body, { 'idempotency-key': key }),
        await alice.post(target, body, { 'idempotency-key': key }),
      ];
      for (const [first, again] of [
        await made('/api/v1/keys', { name: 'k' }, 'k'),
        await made('/api/v1/orgs', { name: 'a', slug: 'a' }, 'o'),
        await made('/api/v1/deployments', { name: 'd' }, 'd'),
      ]) {
        expect(again.body.replayed).toBe(true);
        expect(first.headers).toMatchObject({
          location: expect.stringMatching(/^\/api\/v1\//),
          etag: expect.stringMatching(/^"\d+"$/),
        });
        expect([again.headers.location, again.headers.etag]).toEqual([first.headers.location, first.headers.etag]);
      }
    });

    test('saves neither tokens nor failed responses', async () => {
      await alice.post('/api/v1/tokens', { name: 'ci', rights: 'read' }, KEY);
      expect((await alice.post('/api/v1/tokens', { name: 'ci', rights: 'read' }, KEY)).body).toMatchObject({
        name: 'ci',
        token: null,
        replayed: true,
      });
      await alice.post('/api/v1/orgs', { name: 'a', slug: 'taken' });
      const second = { 'idempotency-key': 'two' };
      expect((await alice.post('/api/v1/orgs', { name: 'b', slug: 'taken' }, second)).status).toBe(409);
      expect((await alice.post('/api/v1/orgs', { name: 'b', slug: 'free' }, second)).status).toBe(201);
    });

    test('runs one of two concurrent requests', async () => {
      const post = () => alice.post('/api/v1/orgs', { name: 'a', slug: 'a' }, KEY);
      const { store } = service;
      const createOrganization = store.createOrganization.bind(store);
      let second: Reply | undefined;
      jest.spyOn(store, 'createOrganization').mockImplementationOnce(async (...args) => {
        second = await post();
        return createOrganization(...args);
      });
      expect(await post()).toMatchObject({ status: 201, body: { slug: 'a' } });
      expect(second).toMatchObject({ status: 409, body: { code: 'busy' } });
      expect((await post()).body.replayed).toBe(true);
    });

    test('must be visible ASCII', async () => {
      for (const value of ['a b', 'x'.repeat(201), 'é'])
        expect((await alice.post('/api/v1/orgs', { name: 'a', slug: 'a' }, { 'idempotency-key': value })).status).toBe(
          400,
        );
    });
  });

  describe('invalid requests', () => {
    test('report the error without quoting the body', async () => {
      const send = (body: string, headers: Record<string, string> = {}) =>
        service.send('POST', '/api/v1/orgs', {
          headers: { ...alice.credentials, 'x-csrf-token': alice.csrfToken, ...JSON_TYPE, ...headers },
          body,
        });
      const replies = [
        await send('{"name": secret'),
        await send(''),
        await send('[]'),
        await send('{"name":"a","slug":"a"}', { 'content-type': 'text/json' }),
        await send(`{"name":"${'x'.repeat(1_100_000)}"}`),
        await send('['.repeat(300) + ']'.repeat(300)),
        await send(`{${Array.from({ length: 10_001 }, (_, i) => `"${i}":1`).join()}}`),
      ];
      expect(replies.map(({ status, body }) => [status, body.code])).toEqual([
        [400, 'invalid_json'],
        [400, 'invalid_json'],
        [400, 'invalid_request'],
        [415, 'unsupported_media_type'],
        [413, 'request_too_large'],
        [413, 'request_too_large'],
        [413, 'request_too_large'],
      ]);
      expect(replies[0].text).not.toContain('secret');
      expect(replies[0].headers['content-type']).toBe('application/problem+json');
    });

    test('distinguish unknown paths from unsupported methods', async () => {
      expect((await alice.get('/api/v1/nothing')).status).toBe(404);
      expect((await alice.get('/api/v2/me')).status).toBe(404);
      const reply = await alice.send('PUT', ME);
      expect(reply.status).toBe(405);
      expect(reply.headers.allow).toBe('GET, HEAD, PATCH, DELETE');
      expect((await alice.send('HEAD', ME)).status).toBe(200);
    });

    test('an internal error is logged and not shown', async () => {
      const broken = await Service.open({}, undefined, [
        {
          method: 'GET',
          path: '/x',
          summary: '',
          tag: '',
          auth: 'none',
          responses: {},
          handle: () => Promise.reject(new Error('table accounts is broken')),
        },
      ]);
      const reply = await broken.send('GET', '/x');
      expect(reply).toMatchObject({
        status: 500,
        body: { code: 'internal_error', detail: 'The server could not complete the request' },
      });
      expect(broken.logged.join()).toContain('table accounts is broken');
      await broken.close();
    });
  });
});
