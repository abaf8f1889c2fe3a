/** Administrators and accounts: quotas, email changes, deletion, and audit events of failed sign-ins. */
import type { Controller } from '../../../../server/platform/control/controller';
import { totpCode } from '../../../../server/platform/accounts/totp';
import { actorOf } from '../support';
import { PASSWORD, type Person, type Reply } from './support';
import { alice, JSON_TYPE, overServices, service, statuses } from './suite';

const ME = '/api/v1/me';
const QUOTAS = '/api/v1/quotas';
const HOUR = 3_600_000;

const login = (email: string, password: string, remoteAddress = '198.51.100.7'): Promise<Reply> =>
  service.send('POST', '/api/v1/auth/login', {
    headers: { ...JSON_TYPE, 'user-agent': 'Mozilla/5.0 (Test)' },
    body: JSON.stringify({ email, password }),
    remoteAddress,
  });

async function auditOf(root: Person, action: string): Promise<any[]> {
  return (await root.get(`/api/v1/audit?limit=100&action=${action}`)).body.data;
}

overServices(() => {
  let root: Person;
  let bob: Person;

  beforeEach(async () => {
    root = await service.admin();
    bob = await service.person('bob@example.com');
  });

  describe('quotas', () => {
    test('are listed for administrators with their usage, for users and organizations, in pages', async () => {
      const { body: org } = await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' });
      await alice.post('/api/v1/deployments', { name: 'chat' });
      const first = (await root.get(`${QUOTAS}?limit=2`)).body;
      const { body: rest } = await root.get(`${QUOTAS}?limit=2&after=${first.next}`);
      expect(rest.next).toBeNull();
      const all = [...first.data, ...rest.data];
      expect(all.map(({ owner }) => `${owner.type}:${owner.name}`).sort()).toEqual([
        'org:lab',
        'user:alice@example.com',
        'user:bob@example.com',
        'user:root@example.com',
      ]);
      expect(all.find(({ owner }) => owner.id === alice.userId)).toMatchObject({
        quota_gpu: null,
        quota_deployments: null,
        used_gpu: 0,
        used_deployments: 1,
      });
      expect((await root.get(`${QUOTAS}?q=LA`)).body.data).toMatchObject([
        { owner: { type: 'org', id: org.id, name: 'lab' } },
      ]);
      expect((await root.get(`${QUOTAS}?q=%25`)).body.data).toEqual([]);
      expect(
        statuses([
          await alice.get(QUOTAS),
          await alice.get(`${QUOTAS}/${alice.userId}`),
          await alice.send('PATCH', `${QUOTAS}/${alice.userId}`, { quota_gpu: 9 }),
          await root.get(`${QUOTAS}/usr_x`),
        ]),
      ).toEqual([403, 403, 403, 404]);
    });

    test('are updated by revision, take effect at once, and are audited', async () => {
      const path = `${QUOTAS}/${alice.userId}`;
      const {
        headers: { etag },
      } = await root.get(path);
      const edited = await root.send('PATCH', path, { quota_deployments: 1 }, { 'if-match': etag });
      expect(edited).toMatchObject({
        status: 200,
        body: { owner: { name: alice.email }, quota_gpu: null, quota_deployments: 1 },
      });
      expect(edited.headers.etag).not.toBe(etag);
      expect(await root.send('PATCH', path, { quota_deployments: 9 }, { 'if-match': etag })).toMatchObject({
        status: 412,
        body: { code: 'stale' },
      });
      expect(
        statuses([
          await alice.post('/api/v1/deployments', { name: 'a' }),
          await alice.post('/api/v1/deployments', { name: 'b' }),
        ]),
      ).toEqual([202, 403]);
      expect((await alice.get(ME)).body).toMatchObject({ quota_gpu: null, quota_deployments: 1 });
      expect((await root.send('PATCH', path, { quota_deployments: null })).body.quota_deployments).toBeNull();
      expect((await alice.post('/api/v1/deployments', { name: 'b' })).status).toBe(202);
      for (const wrong of [
        { quota_gpu: -1 },
        { quota_gpu: '1' },
        { quota_deployments: 1_000_000_001 },
        { used_gpu: 0 },
      ])
        expect((await root.send('PATCH', path, wrong)).status).toBe(400);
      expect(await auditOf(root, 'owner.quota')).toMatchObject([
        {
          actor: { id: root.userId },
          target: { type: 'user', id: alice.userId },
          before: { quota_deployments: 1 },
          after: { quota_gpu: null, quota_deployments: null },
        },
        { after: { quota_gpu: null, quota_deployments: 1 } },
      ]);
    });

    test('are visible to members of the organization, and freed capacity wakes waiting deployments', async () => {
      const { body: org } = await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' });
      const capacityFreed = jest.fn<Promise<void>, []>(() => Promise.resolve());
      Object.assign(service.context, { controller: { capacityFreed } satisfies Pick<Controller, 'capacityFreed'> });
      expect((await root.send('PATCH', `${QUOTAS}/${org.id}`, { quota_gpu: 2 })).status).toBe(200);
      expect(capacityFreed).toHaveBeenCalledTimes(1);
      expect((await alice.get(`/api/v1/orgs/${org.id}`)).body).toMatchObject({ quota_gpu: 2, quota_deployments: null });
      expect((await alice.get(`/api/v1/audit?org=${org.id}&action=owner.quota`)).body.data).toMatchObject([
        { actor: { id: root.userId }, after: { quota_gpu: 2 } },
      ]);
    });
  });

  describe('administrators', () => {
    const put = (person: Person, userId: string, enabled: unknown = true) =>
      person.send('PUT', `/api/v1/users/${userId}/administrator`, { enabled });

    test('grant and revoke the role, which ends sessions and is audited', async () => {
      expect(
        statuses([
          await put(bob, bob.userId),
          await put(root, 'usr_x'),
          await put(root, bob.userId, 'yes'),
          await (await root.token('read'))('PUT', `/api/v1/users/${bob.userId}/administrator`, { enabled: true }),
        ]),
      ).toEqual([403, 404, 400, 403]);
      expect(await put(root, bob.userId)).toMatchObject({
        status: 200,
        body: { owner: { id: bob.userId }, is_admin: true },
      });
      expect((await bob.get(ME)).status).toBe(401);
      await bob.signIn();
      expect(statuses([await bob.get(QUOTAS), await put(root, bob.userId), await bob.get(QUOTAS)])).toEqual([
        200, 200, 200,
      ]);
      const {
        body: { data },
      } = await bob.get(`${QUOTAS}?limit=100`);
      expect(
        data
          .filter((row: any) => row.is_admin)
          .map((row: any) => row.owner.name)
          .sort(),
      ).toEqual(['bob@example.com', 'root@example.com']);
      const byToken = await bob.token('write');
      expect((await put(root, bob.userId, false)).body.is_admin).toBe(false);
      expect(statuses([await bob.get(ME), await byToken('GET', QUOTAS), await byToken('GET', ME)])).toEqual([
        401, 403, 200,
      ]);
      expect(await auditOf(root, 'account.role_changed')).toMatchObject([
        {
          actor: { id: root.userId },
          target: { type: 'user', id: bob.userId },
          before: { is_admin: true },
          after: { is_admin: false },
        },
        { before: { is_admin: false }, after: { is_admin: true } },
      ]);
      expect(await service.store.verifyAudit()).toBeUndefined();
    });

    test('the last administrator keeps the role, even if two administrators revoke each other', async () => {
      expect(await put(root, root.userId, false)).toMatchObject({
        status: 409,
        body: { code: 'conflict', detail: expect.stringContaining('only administrator') },
      });
      await put(root, bob.userId);
      await bob.signIn();
      const replies = await Promise.all([put(root, bob.userId, false), put(bob, root.userId, false)]);
      expect(statuses(replies).sort()).toEqual([200, expect.any(Number)]);
      await Promise.all(
        [
          service.store.setAdministrator({ ...actorOf(root.userId), isAdmin: true }, bob.userId, false),
          service.store.setAdministrator({ ...actorOf(bob.userId), isAdmin: true }, root.userId, false),
        ].map((change) => change.catch(() => {})),
      );
      const admins = (await Promise.all([root, bob].map(({ userId }) => service.store.findAccount(userId)))).filter(
        ({ isAdmin }) => isAdmin,
      );
      expect(admins).toHaveLength(1);
    });
  });

  describe('a link to reset a password', () => {
    const NEW = 'a quite new password';
    const makeLink = (person: Person, userId: string) => person.post(`/api/v1/users/${userId}/password-reset`, {});
    const redeem = (token: string, password = NEW, remoteAddress = '198.51.100.8'): Promise<Reply> =>
      service.send('POST', '/api/v1/auth/password-reset', {
        headers: JSON_TYPE,
        body: JSON.stringify({ token, password }),
        remoteAddress,
      });

    test('is made by an administrator, works once and ends every session', async () => {
      const made = await makeLink(root, bob.userId);
      expect(made).toMatchObject({
        status: 201,
        body: { token: expect.stringMatching(/^[0-9A-Za-z]{43}$/), email: bob.email },
      });
      expect(Date.parse(made.body.expires_at) - service.clock.now()).toBe(24 * HOUR);
      expect((await redeem(made.body.token, 'short')).status).toBe(422);
      expect(await redeem(made.body.token)).toMatchObject({ status: 204, text: '' });
      expect(await redeem(made.body.token)).toMatchObject({ status: 410, body: { code: 'gone' } });
      expect((await bob.get(ME)).status).toBe(401);
      expect(statuses([await login(bob.email, PASSWORD), await login(bob.email, NEW)])).toEqual([401, 204]);
      expect(await auditOf(root, 'account.password_reset_link')).toMatchObject([
        { actor: { type: 'user', id: root.userId }, target: { type: 'user', id: bob.userId } },
      ]);
      expect(await auditOf(root, 'account.password_reset')).toMatchObject([
        { target: { type: 'user', id: bob.userId }, ip: '198.51.100.8' },
      ]);
      expect(service.logged.join('\n')).not.toContain(made.body.token);
    });

    test('lets a user in who waits after wrong passwords', async () => {
      for (let i = 0; i < 5; i++) await login(bob.email, 'wrong password', '198.51.100.8');
      expect((await login(bob.email, PASSWORD, '198.51.100.8')).status).toBe(429);
      await redeem((await makeLink(root, bob.userId)).body.token);
      expect((await login(bob.email, NEW, '198.51.100.8')).status).toBe(204);
    });

    test('is replaced by a later one, expires after a day, and ends with the account', async () => {
      const [first, second] = [await makeLink(root, bob.userId), await makeLink(root, bob.userId)];
      expect((await redeem(first.body.token)).status).toBe(410);
      service.clock.advance(24 * HOUR);
      expect((await redeem(second.body.token)).status).toBe(410);
      await root.signIn();
      const third = await makeLink(root, bob.userId);
      await bob.signIn();
      expect((await bob.send('DELETE', ME, { password: PASSWORD })).status).toBe(204);
      expect((await redeem(third.body.token)).status).toBe(410);
    });

    test('is refused to others, and guesses are limited', async () => {
      expect(statuses([await makeLink(alice, bob.userId), await makeLink(root, 'usr_x')])).toEqual([403, 404]);
      for (let i = 0; i < 20; i++) expect((await redeem(`x${i}`)).status).toBe(410);
      expect((await redeem('x')).status).toBe(429);
    });

    test('ends when the user changes the password', async () => {
      const { body } = await makeLink(root, bob.userId);
      const change = { current: PASSWORD, password: 'a third password' };
      expect((await bob.send('POST', `${ME}/password`, change)).status).toBe(204);
      expect((await redeem(body.token)).status).toBe(410);
    });

    test('keeps the second factor', async () => {
      const { body } = await bob.post(`${ME}/totp`, { password: PASSWORD });
      await bob.send('PUT', `${ME}/totp`, { otp: totpCode(body.secret, Math.floor(service.clock.now() / 30_000)) });
      await redeem((await makeLink(root, bob.userId)).body.token);
      expect(await login(bob.email, NEW)).toMatchObject({ status: 401, body: { code: 'otp_required' } });
    });
  });

  describe('an email address', () => {
    const change = (email: string, password = PASSWORD) => alice.post(`${ME}/email`, { email, password });

    test('is changed with the password, keeps sessions, and is then used to sign in', async () => {
      const { body: key } = await alice.post('/api/v1/keys', { name: 'k' });
      expect(await change('new@example.com', 'wrong password')).toMatchObject({
        status: 401,
        body: { code: 'bad_credentials' },
      });
      expect(await change(' New@Example.com ')).toMatchObject({
        status: 200,
        body: { id: alice.userId, email: 'new@example.com' },
      });
      expect((await alice.get(ME)).body.email).toBe('new@example.com');
      expect(statuses([await login('alice@example.com', PASSWORD), await login('new@example.com', PASSWORD)])).toEqual([
        401, 204,
      ]);
      expect((await alice.get(`/api/v1/keys/${key.id}`)).body.owner).toEqual({
        type: 'user',
        id: alice.userId,
        name: 'new@example.com',
      });
      expect((await alice.post('/api/v1/keys', { name: 'another' })).body.owner.id).toBe(alice.userId);
      expect(await auditOf(root, 'account.email_changed')).toMatchObject([
        {
          actor: { id: alice.userId },
          target: { type: 'user', id: alice.userId },
          ip: '192.0.2.1',
          before: { email: 'alice@example.com' },
          after: { email: 'new@example.com' },
        },
      ]);
      // The old address is free again.
      expect((await service.person('alice@example.com')).userId).not.toBe(alice.userId);
    });

    test('is refused when taken, when invalid, and for tokens', async () => {
      expect(await change('Bob@example.com')).toMatchObject({ status: 409, body: { code: 'conflict' } });
      expect(statuses([await change('unknown'), await change(PASSWORD)])).toEqual([422, 422]);
      expect(
        await (
          await alice.token('write')
        )('POST', `${ME}/email`, { email: 'new@example.com', password: PASSWORD }),
      ).toMatchObject({ status: 403, body: { code: 'session_required' } });
      expect((await change('alice@example.com')).status).toBe(200);
      expect(await auditOf(root, 'account.email_changed')).toEqual([]);
    });
  });

  describe('an account', () => {
    const end = (person: Person, password = PASSWORD) => person.send('DELETE', ME, { password });

    test('is deleted with its password, sessions, tokens and keys; the audit log stays, and the address is free', async () => {
      const target = {
        id: (await service.access.openDeployment({ type: 'user', name: bob.email }, 'his')).id,
        ownerId: bob.userId,
      };
      await service.access.deleteDeployment(target.id);
      const {
        body: { secret },
      } = await bob.post('/api/v1/keys', { name: 'k' });
      const byToken = await bob.token('write');
      const hisWebhooks = () => service.store.listWebhooks(actorOf(bob.userId));
      await service.store.createWebhook(actorOf(bob.userId), { url: 'https://hooks.example.com/bob', events: ['*'] });
      expect(await hisWebhooks()).toHaveLength(1);
      const check = async () =>
        (
          await service.access.check(
            { headers: [['authorization', `Bearer ${secret}`]], remoteAddress: '192.0.2.7' },
            target,
          )
        ).ok;
      expect(await check()).toBe(true);
      expect(await end(bob, 'wrong password')).toMatchObject({ status: 401, body: { code: 'bad_credentials' } });
      expect(await byToken('DELETE', ME, { password: PASSWORD })).toMatchObject({
        status: 403,
        body: { code: 'session_required' },
      });
      const headers = bob.credentials;
      const ended = await end(bob);
      expect(ended.status).toBe(204);
      expect(ended.headers['set-cookie']).toMatch(/Max-Age=0/);
      expect(
        statuses([
          await service.send('GET', ME, { headers }),
          await byToken('GET', ME),
          await login(bob.email, PASSWORD),
        ]),
      ).toEqual([401, 401, 401]);
      expect(await check()).toBe(false);
      expect(await hisWebhooks()).toEqual([]);
      for (const [action, id] of [
        ['account.deleted', bob.userId],
        ['owner.deleted', bob.userId],
      ])
        expect(await auditOf(root, action)).toMatchObject([
          { actor: { id: bob.userId }, target: { type: 'user', id } },
        ]);
      expect(await auditOf(root, 'account.deleted')).toMatchObject([{ before: { email: 'bob@example.com' } }]);
      expect([(await auditOf(root, 'key.deleted')).length, (await auditOf(root, 'token.deleted')).length]).toEqual([
        1, 1,
      ]);
      expect(await service.store.verifyAudit()).toBeUndefined();
      expect((await root.get(`${QUOTAS}?q=bob`)).body.data).toEqual([]);
      const again = await service.person('bob@example.com');
      expect(again.userId).not.toBe(bob.userId);
      expect((await again.get('/api/v1/keys')).body.data).toEqual([]);
    });

    test('deleted during the creation of a key, leaves no key behind; the same for an organization', async () => {
      const { body: org } = await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' });
      const { access } = service;
      const createKey = access.createKey.bind(access);
      // The caller has the right: the deletion happens before the key is created.
      const meanwhile = (run: () => Promise<unknown>) =>
        jest.spyOn(access, 'createKey').mockImplementationOnce(async (...args) => {
          await run();
          return createKey(...args);
        });
      meanwhile(() => service.store.deleteOwnAccount(actorOf(bob.userId), PASSWORD));
      expect(await bob.post('/api/v1/keys', { name: 'late' })).toMatchObject({
        status: 404,
        body: { code: 'not_found', detail: `owner: ${bob.userId} not found` },
      });
      meanwhile(() => service.store.deleteOrganization(actorOf(alice.userId), org.id));
      expect((await alice.post(`/api/v1/keys?scope=org&org=${org.id}`, { name: 'late' })).status).toBe(404);
      expect(await service.store.listKeys()).toEqual([]);
      // The address was not taken over either.
      expect((await (await service.person('bob@example.com')).get('/api/v1/keys')).body.data).toEqual([]);
    });

    test('cannot be deleted while something depends on it, and the error names it', async () => {
      await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' });
      const { body: shared } = await alice.post('/api/v1/orgs', { name: 'Shared', slug: 'shared' });
      await bob.join(shared.id, alice, 'owner');
      const { body: deployment } = await alice.post('/api/v1/deployments', { name: 'chat' });
      const { body: container } = await alice.post('/api/v1/containers', { name: 'train' });
      const refused = {
        status: 409,
        body: {
          code: 'conflict',
          detail:
            'the account cannot be deleted while it has deployments: chat; containers: train; organizations without another owner: lab',
        },
      };
      expect(await end(alice)).toMatchObject(refused);
      expect(await root.send('DELETE', `/api/v1/users/${alice.userId}?confirm=alice@example.com`)).toMatchObject(
        refused,
      );
      expect((await alice.get(ME)).status).toBe(200);
      await service.store.discardDeployment(actorOf(alice.userId), deployment.id);
      await service.store.removeDeployment(0, deployment.id);
      expect((await alice.send('DELETE', `/api/v1/containers/${container.id}?confirm=train`)).status).toBeLessThan(300);
      expect((await end(alice)).body.detail).toBe(
        'the account cannot be deleted while it has organizations without another owner: lab',
      );
      const {
        body: {
          data: [lab],
        },
      } = await alice.get('/api/v1/orgs');
      await bob.join(lab.id, alice, 'owner');
      expect((await end(alice)).status).toBe(204);
      expect((await bob.get(`/api/v1/orgs/${shared.id}/members`)).body.data).toMatchObject([
        { user_id: bob.userId, role: 'owner' },
      ]);
    });

    test('is deleted with its unused data, but not while others use its data', async () => {
      const offer = (name: string) =>
        root.post('/api/v1/data-sources', {
          name,
          type: 'model',
          path: service.dataRoot,
          visibility: 'public',
          owner: { type: 'user', id: bob.userId },
        });
      const [{ body: used }] = [await offer('used'), await offer('unused')];
      await alice.post('/api/v1/containers', { name: 'train', bindings: [{ mount: 'input0', source_id: used.id }] });
      expect(await end(bob)).toMatchObject({
        status: 409,
        body: { detail: 'the account cannot be deleted while it has data in use by others: used' },
      });
      await alice.send(
        'DELETE',
        `/api/v1/containers/${(await alice.get('/api/v1/containers')).body.data[0].id}?confirm=train`,
      );
      expect((await end(bob)).status).toBe(204);
      expect((await auditOf(root, 'source.deleted')).map(({ before }) => before.name).sort()).toEqual([
        'unused',
        'used',
      ]);
    });

    test('can be deleted by an administrator by its address, except the only administrator', async () => {
      const path = `/api/v1/users/${bob.userId}`;
      expect(
        statuses([
          await alice.send('DELETE', `${path}?confirm=${bob.email}`),
          await root.send('DELETE', path),
          await root.send('DELETE', `${path}?confirm=bob`),
          await root.send('DELETE', '/api/v1/users/usr_x?confirm=x'),
        ]),
      ).toEqual([403, 422, 422, 404]);
      expect((await bob.get(ME)).status).toBe(200);
      expect((await root.send('DELETE', `${path}?confirm=${bob.email}`)).status).toBe(204);
      expect((await bob.get(ME)).status).toBe(401);
      expect(await auditOf(root, 'account.deleted')).toMatchObject([
        { actor: { id: root.userId }, target: { id: bob.userId } },
      ]);
      expect(await root.send('DELETE', `/api/v1/users/${root.userId}?confirm=${root.email}`)).toMatchObject({
        status: 409,
        body: { detail: expect.stringContaining('your own account') },
      });
      expect(await end(root)).toMatchObject({
        status: 409,
        body: { detail: expect.stringContaining('only administrator') },
      });
    });
  });

  describe('failed sign-ins', () => {
    const FAILED = 'account.sign_in_failed';

    test('are audited with their origin and without the input, and a later success shows their number', async () => {
      for (let i = 0; i < 4; i++) await login(bob.email, 'not the password');
      const entries = await auditOf(root, FAILED);
      expect(entries.map(({ after }) => after.failures)).toEqual([4, 2, 1]);
      for (const entry of entries)
        expect(entry).toMatchObject({
          result: 'denied',
          actor: { type: 'system', id: 'sign-in' },
          target: { type: 'user', id: bob.userId },
          ip: '198.51.100.7',
          user_agent: 'Mozilla/5.0 (Test)',
          org_id: null,
        });
      expect((await login(bob.email, PASSWORD)).status).toBe(204);
      expect((await auditOf(root, 'account.signed_in'))[0]).toMatchObject({
        target: { id: bob.userId },
        after: { failures_before: 4 },
      });
      await login(bob.email, 'not the password');
      expect((await auditOf(root, FAILED))[0]).toMatchObject({ after: { failures: 1 } });
      expect((await root.get('/api/v1/audit?limit=100')).text).not.toContain('not the password');
      expect(await service.store.verifyAudit()).toBeUndefined();
    });

    test('a wrong confirmation password and a wrong second factor count too', async () => {
      await bob.post(`${ME}/password`, { current: 'not the password', password: 'another good password' });
      expect(await auditOf(root, FAILED)).toMatchObject([
        { target: { id: bob.userId }, ip: '192.0.2.1', after: { failures: 1 } },
      ]);
      const {
        body: { secret },
      } = await bob.post(`${ME}/totp`, { password: PASSWORD });
      const right = totpCode(secret, Math.floor(service.clock.now() / 30_000));
      expect((await bob.send('PUT', `${ME}/totp`, { otp: right })).status).toBe(200);
      expect((await bob.signIn(PASSWORD, right)).status).toBe(401);
      expect(await auditOf(root, FAILED)).toMatchObject([{ after: { failures: 2 } }, { after: { failures: 1 } }]);
      // A missing code is not a failure.
      expect((await bob.signIn(PASSWORD)).body.code).toBe('otp_required');
      expect(await auditOf(root, FAILED)).toHaveLength(2);
    });

    test('unknown addresses are counted together, and are not stored', async () => {
      for (let i = 0; i < 20; i++)
        expect((await login(`unknown-${i}@example.com`, 'x'.repeat(12), `198.51.100.${i}`)).status).toBe(401);
      expect((await auditOf(root, FAILED)).map(({ target, after }) => [target.id, after.failures])).toEqual(
        [16, 8, 4, 2, 1].map((failures) => [expect.stringMatching(/^no[b]ody$/), failures]),
      );
      expect((await root.get('/api/v1/audit?limit=100')).text).not.toContain('unknown-');
      service.clock.advance(HOUR);
      await login('unknown-1@example.com', 'x'.repeat(12), '203.0.113.9');
      expect((await auditOf(root, FAILED))[0]).toMatchObject({ after: { failures: 1 }, ip: '203.0.113.9' });
    });
  });
});
