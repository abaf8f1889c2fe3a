import { verifySecret } from '../../../../server/access/check/hash';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { verifyAudit } from '../../../../server/access/store/audit';
import { createKey } from '../../../../server/access/keys/changes';
import { openDeployment } from '../../../../server/access/owners';
import type { Db, MemberRole } from '../../../../server/access/store/schema';
import { openStore } from '../../../../server/access/store/store';
import {
  type Account,
  authenticate,
  changePassword,
  createAccount,
  createBootstrapLink,
  ensureFirstAdmin,
  findAccount,
  redeemBootstrapLink,
} from '../../../../server/platform/accounts/accounts';
import { openServiceDatabase } from '../../../../server/platform/store/change';
import {
  acceptInvitation,
  invite,
  listInvitations,
  revokeInvitation,
} from '../../../../server/platform/accounts/invitations';
import {
  createOrganization,
  deleteOrganization,
  editOrganization,
  listMembers,
  listOrganizations,
  type Organization,
  removeMember,
  roleOf,
  setMemberRole,
} from '../../../../server/platform/accounts/organizations';
import type { ServiceDb } from '../../../../server/platform/store/schema';
import {
  csrfTokenOf,
  findSession,
  isOwnPage,
  listSessions,
  openSession,
  revokeSession,
  revokeSessions,
  stepUp,
} from '../../../../server/platform/accounts/sessions';
import { overBackends } from '../../access/support';
import { migrated } from '../support';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const START = 1_800_000_000_000;
const PASSWORD = 'correct horse battery';
const FROM = { ip: '192.0.2.1', userAgent: 'test' };

overBackends((make) => {
  let location: DatabaseLocation;
  let db: ServiceDb;
  let now: number;

  beforeEach(async () => {
    now = START;
    location = await make(migrated);
    db = await openServiceDatabase(location);
  });
  afterEach(() => db.destroy());

  const account = (email: string): Promise<Account> =>
    createAccount(db, { email, name: email.split('@')[0], password: PASSWORD }, now);

  describe('the first administrator', () => {
    test('is created with a link that works once', async () => {
      const stale = await createBootstrapLink(db, now);
      const token = await createBootstrapLink(db, now);
      const spec = { email: ' Root@Example.com ', name: 'Root', password: PASSWORD };
      await expect(redeemBootstrapLink(db, stale, spec, now)).rejects.toMatchObject({ code: 'gone' });
      await expect(redeemBootstrapLink(db, 'wrong', spec, now)).rejects.toMatchObject({ code: 'gone' });
      await expect(redeemBootstrapLink(db, token, { ...spec, password: 'short' }, now)).rejects.toMatchObject({
        code: 'invalid_argument',
      });
      // Of two concurrent requests, one succeeds.
      const results = await Promise.allSettled([
        redeemBootstrapLink(db, token, spec, now),
        redeemBootstrapLink(db, token, { ...spec, email: 'b@example.com' }, now),
      ]);
      expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
      expect((results.find(({ status }) => status === 'rejected') as PromiseRejectedResult).reason).toMatchObject({
        code: 'gone',
      });
      await expect(createBootstrapLink(db, now)).rejects.toMatchObject({ code: 'gone' });
      expect(await ensureFirstAdmin(db, spec, now)).toBeUndefined();
      expect(JSON.stringify(await db.selectFrom('bootstrap_links').selectAll().execute())).not.toContain(token);
    });

    test('must use the link within a day', async () => {
      const token = await createBootstrapLink(db, now);
      await expect(
        redeemBootstrapLink(db, token, { email: 'a@b.c', name: 'A', password: PASSWORD }, now + DAY),
      ).rejects.toMatchObject({ code: 'gone' });
    });

    test('can be created unattended', async () => {
      const made = await ensureFirstAdmin(db, { email: 'root@example.com', name: 'Root', password: PASSWORD }, now);
      expect(made).toMatchObject({ email: 'root@example.com', isAdmin: true, locale: 'en', theme: 'system' });
      expect(
        await ensureFirstAdmin(db, { email: 'other@example.com', name: 'Other', password: PASSWORD }, now),
      ).toBeUndefined();
      expect(await authenticate(db, 'root@example.com', PASSWORD, now)).toEqual(made);
    });
  });

  describe('accounts', () => {
    test('store an argon2id hash and share the user that owns the keys', async () => {
      const made = await account('Alice@Example.com');
      expect(made).toMatchObject({
        email: 'alice@example.com',
        isAdmin: false,
        userId: expect.stringMatching(/^usr_/) as string,
      });
      expect(await findAccount(db, made.userId)).toEqual(made);
      const { password_hash: hash } = await db.selectFrom('accounts').select('password_hash').executeTakeFirstOrThrow();
      expect(hash).toMatch(/^\$argon2id\$v=19\$m=19456,t=2,p=1\$/);
      expect(await verifySecret(hash, PASSWORD)).toBe(true);
      const store = await openStore(location);
      expect(await store.findOwner({ type: 'user', name: 'alice@example.com' })).toEqual({
        type: 'user',
        id: made.userId,
      });
      await store.close();
      await expect(account('ALICE@example.com')).rejects.toMatchObject({ code: 'conflict' });
      await expect(findAccount(db, 'usr_x')).rejects.toMatchObject({ code: 'not_found' });
      expect(await verifyAudit(db as unknown as Db)).toBeUndefined();
    });

    test('are refused with the expected value', async () => {
      const spec = { email: 'a@b.c', name: 'A', password: PASSWORD };
      for (const wrong of [
        { email: '' },
        { email: 'a' },
        { email: 'a b@c' },
        { email: `${'a'.repeat(65)}@b` },
        { email: 5 },
        { name: ' ' },
        { name: 'a\nb' },
        { password: 'x'.repeat(9) },
        { password: 'x'.repeat(257) },
        { email: 'someone@b.c', password: 'Someone@B.c' },
      ]) {
        const refusal = await createAccount(db, { ...spec, ...wrong } as never, now).catch((error: unknown) => error);
        expect([wrong, (refusal as { code: string }).code, (refusal as Error).message]).toEqual([
          wrong,
          'invalid_argument',
          expect.stringMatching(/^(email|name|password): expected /),
        ]);
      }
    });

    test('get the same error for a wrong password and an unknown address, and wait longer after each failure', async () => {
      await account('a@example.com');
      const attempt = (email: string, password = 'wrong password') =>
        authenticate(db, email, password, now).then(
          () => 'in',
          (error: Error & { code: string }) => `${error.code} ${error.message}`,
        );
      for (const email of ['a@example.com', 'unknown@example.com']) {
        for (let i = 0; i < 5; i++)
          expect(await attempt(email)).toBe('bad_credentials wrong email address or password');
        expect(await attempt(email)).toBe('too_many_attempts too many failed attempts: try again in 60 s');
      }
      // The right password waits too. Other addresses do not.
      expect(await attempt('a@example.com', PASSWORD)).toMatch(/^too_many_attempts/);
      await account('b@example.com');
      expect(await attempt(' B@Example.com', PASSWORD)).toBe('in');
      now += MINUTE;
      expect(await attempt('a@example.com')).toMatch(/^bad_credentials/);
      expect(await attempt('a@example.com', PASSWORD)).toMatch(/try again in 120 s$/);
      now += 2 * MINUTE;
      expect(await attempt('a@example.com', PASSWORD)).toBe('in');
      for (let i = 0; i < 4; i++) expect(await attempt('a@example.com')).toMatch(/^bad_credentials/);
      now += HOUR + 1;
      expect(await attempt('a@example.com')).toMatch(/^bad_credentials/);
      expect(await attempt('a@example.com', PASSWORD)).toBe('in');
    });

    test('cannot be locked out by wrong passwords from another network address', async () => {
      await account('a@example.com');
      const attempt = (ip: string | null, password: string) =>
        authenticate(db, 'a@example.com', password, now, { from: { ip, userAgent: null } }).then(
          () => 'in',
          ({ code }: { code: string }) => code,
        );
      for (let i = 0; i < 6; i++) await attempt('2001:db8:1:2::5', 'wrong password');
      expect(await attempt('2001:db8:1:2::5', PASSWORD)).toBe('too_many_attempts');
      // The same subscriber with another address.
      expect(await attempt('2001:db8:1:2:ffff::7', PASSWORD)).toBe('too_many_attempts');
      expect(await attempt('2001:db8:1:3::5', PASSWORD)).toBe('in');
      expect(await attempt('198.51.100.7', PASSWORD)).toBe('in');
      expect(await attempt(null, PASSWORD)).toBe('in');
      expect(await attempt('2001:db8:1:2::5', PASSWORD)).toBe('too_many_attempts');
    });

    test('limit wrong codes after the right password from all network addresses together', async () => {
      await account('a@example.com');
      const attempt = (host: number, isSecondFactorRight: () => Promise<boolean>, password = PASSWORD) =>
        authenticate(db, 'a@example.com', password, now, {
          from: { ip: `198.51.100.${host}`, userAgent: null },
          isSecondFactorRight,
        }).then(
          () => 'in',
          ({ code }: { code: string }) => code,
        );
      const wrong = () => Promise.resolve(false);
      const right = () => Promise.resolve(true);
      for (let host = 0; host < 5; host++) expect(await attempt(host, wrong)).toBe('bad_credentials');
      // A caller without the password learns nothing.
      expect(await attempt(20, right, 'wrong password')).toBe('bad_credentials');
      expect(await attempt(21, right)).toBe('too_many_attempts');
      now += MINUTE;
      expect(await attempt(21, right)).toBe('in');
      expect(await attempt(22, wrong)).toBe('bad_credentials');
      expect(await attempt(22, right)).toBe('in');
    });

    test('change their password with the old one, which ends every session', async () => {
      const { userId } = await account('a@example.com');
      const session = await openSession(db, userId, FROM, now);
      await expect(changePassword(db, userId, 'wrong password', 'another password', now)).rejects.toMatchObject({
        code: 'bad_credentials',
      });
      await expect(changePassword(db, userId, PASSWORD, 'short', now)).rejects.toMatchObject({
        code: 'invalid_argument',
      });
      expect(await findSession(db, session.token, now)).toBeDefined();
      await changePassword(db, userId, PASSWORD, 'another password', now);
      expect(await findSession(db, session.token, now)).toBeUndefined();
      await expect(authenticate(db, 'a@example.com', PASSWORD, now)).rejects.toMatchObject({ code: 'bad_credentials' });
      await authenticate(db, 'a@example.com', 'another password', now);
    });
  });

  describe('sessions', () => {
    test('stay active while used, for at most two weeks', async () => {
      const { userId } = await account('a@example.com');
      const { token, expiresAt } = await openSession(db, userId, FROM, now);
      expect(expiresAt).toBe(START + 14 * DAY);
      expect(await findSession(db, 'wrong', now)).toBeUndefined();
      for (; now < expiresAt; now += 11 * HOUR) expect(await findSession(db, token, now)).toMatchObject({ userId });
      expect(await findSession(db, token, expiresAt)).toBeUndefined();
      const idle = await openSession(db, userId, FROM, now);
      expect(await findSession(db, idle.token, now + 12 * HOUR)).toBeUndefined();
      const [row] = await db.selectFrom('sessions').selectAll().execute();
      expect(JSON.stringify(row)).not.toContain(idle.token);
      expect(JSON.stringify(row)).not.toContain(idle.csrfToken);
    });

    test('check the CSRF token and record the last password check', async () => {
      const { userId } = await account('a@example.com');
      const one = await openSession(db, userId, FROM, now);
      const other = await openSession(db, userId, FROM, now);
      const session = (await findSession(db, one.token, now))!;
      expect(isOwnPage(session, one.csrfToken)).toBe(true);
      expect(csrfTokenOf(one.token)).toBe(one.csrfToken);
      for (const wrong of ['', one.token, other.csrfToken, `${one.csrfToken}x`])
        expect(isOwnPage(session, wrong)).toBe(false);
      expect(session.stepUpAt).toBe(START);
      await stepUp(db, session, now + HOUR);
      expect(await findSession(db, one.token, now)).toMatchObject({ stepUpAt: START + HOUR });
    });

    test("are listed and ended one by one, all, or all others; a user's end with the user", async () => {
      const { userId } = await account('a@example.com');
      const { userId: strangerId } = await account('b@example.com');
      const [first, second, third] = await Promise.all([1, 2, 3].map(() => openSession(db, userId, FROM, now)));
      expect(await listSessions(db, userId, now)).toMatchObject(
        [FROM, FROM, FROM].map(({ ip, userAgent }) => ({ createdIp: ip, userAgent })),
      );
      const { idHash } = (await findSession(db, first.token, now))!;
      expect(await revokeSession(db, strangerId, idHash, now)).toBe(false);
      expect(await revokeSession(db, userId, idHash, now)).toBe(true);
      expect(await revokeSession(db, userId, idHash, now)).toBe(false);
      expect(await findSession(db, first.token, now)).toBeUndefined();
      await revokeSessions(db, userId, now, (await findSession(db, second.token, now))!.idHash);
      expect(
        [await findSession(db, second.token, now), await findSession(db, third.token, now)].map(
          (found) => found !== undefined,
        ),
      ).toEqual([true, false]);
      const store = await openStore(location);
      await store.deleteOwner({ type: 'user', id: userId });
      await store.close();
      expect(await findSession(db, second.token, now)).toBeUndefined();
      await expect(authenticate(db, 'a@example.com', PASSWORD, now)).rejects.toMatchObject({ code: 'bad_credentials' });
    });
  });

  describe('organizations', () => {
    const members: Partial<Record<MemberRole | 'stranger', string>> = {};
    let org: Organization;
    const setUp = async () => {
      for (const role of ['owner', 'admin', 'developer', 'viewer', 'stranger'] as const)
        members[role] = (await account(`${role}@example.com`)).userId;
      org = await createOrganization(db, members.owner!, { slug: 'lab', name: 'The Lab' }, now);
      for (const role of ['admin', 'developer', 'viewer'] as const) {
        const { token } = await invite(db, members.owner!, org.id, { email: `${role}@example.com`, role }, now);
        await acceptInvitation(db, members[role]!, token, now);
      }
    };
    const code = (promise: Promise<unknown>) =>
      promise.then(
        () => 'done',
        (error: { code: string }) => error.code,
      );

    test('allow each role its rights', async () => {
      await setUp();
      expect(await listOrganizations(db, members.viewer!)).toMatchObject([
        { id: org.id, slug: 'lab', name: 'The Lab', role: 'viewer', quotas: { quota_gpu: null } },
      ]);
      expect(await listOrganizations(db, members.stranger!)).toEqual([]);
      const outcomes = async (act: (userId: string) => Promise<unknown>) => {
        const codes: string[] = [];
        for (const role of ['stranger', 'viewer', 'developer', 'admin', 'owner'] as const)
          codes.push(await code(act(members[role]!)));
        return codes.join(' ');
      };
      expect(await outcomes((userId) => listMembers(db, userId, org.id))).toBe('not_found done done done done');
      expect(await outcomes((userId) => listInvitations(db, userId, org.id, now))).toBe(
        'not_found forbidden forbidden done done',
      );
      expect(await outcomes((userId) => editOrganization(db, userId, org.id, { name: 'The Lab' }, now))).toBe(
        'not_found forbidden forbidden done done',
      );
      expect(
        await outcomes((userId) => invite(db, userId, org.id, { email: 'new@example.com', role: 'viewer' }, now)),
      ).toBe('not_found forbidden forbidden done done');
      expect(
        await outcomes((userId) => invite(db, userId, org.id, { email: 'new@example.com', role: 'owner' }, now)),
      ).toBe('not_found forbidden forbidden forbidden done');
      expect(await outcomes((userId) => setMemberRole(db, userId, org.id, members.viewer!, 'viewer', now))).toBe(
        'not_found forbidden forbidden done done',
      );
      expect(await outcomes((userId) => setMemberRole(db, userId, org.id, members.owner!, 'viewer', now))).toBe(
        'not_found forbidden forbidden forbidden conflict',
      );
      expect(await outcomes((userId) => deleteOrganization(db, userId, org.id, now))).toBe(
        'not_found forbidden forbidden forbidden done',
      );
      expect(await outcomes((userId) => roleOf(db, org.id, userId))).toBe(
        'not_found not_found not_found not_found not_found',
      );
    });

    test('always have an owner; members may leave', async () => {
      await setUp();
      expect(await code(removeMember(db, members.owner!, org.id, members.owner!, now))).toBe('conflict');
      await setMemberRole(db, members.owner!, org.id, members.admin!, 'owner', now);
      // Of two owners who step down at once, one stays.
      const results = await Promise.all(
        [
          removeMember(db, members.owner!, org.id, members.owner!, now),
          removeMember(db, members.admin!, org.id, members.admin!, now),
        ].map(code),
      );
      expect(results.sort()).toEqual(['conflict', 'done']);
      await removeMember(db, members.viewer!, org.id, members.viewer!, now);
      expect(await code(roleOf(db, org.id, members.viewer!))).toBe('not_found');
      expect(await code(removeMember(db, members.developer!, org.id, members.admin!, now))).toBe('forbidden');
    });

    test('a role change ends the sessions of the member', async () => {
      await setUp();
      const session = await openSession(db, members.developer!, FROM, now);
      await setMemberRole(db, members.admin!, org.id, members.developer!, 'viewer', now);
      expect(await findSession(db, session.token, now)).toBeUndefined();
      expect(await roleOf(db, org.id, members.developer!)).toBe('viewer');
    });

    test('are edited with a revision and validated', async () => {
      await setUp();
      const edited = await editOrganization(db, members.owner!, org.id, { name: 'Lab' }, now, { ifRev: org.rev });
      expect(edited).toMatchObject({ name: 'Lab', slug: 'lab', quotas: { quota_gpu: null, quota_deployments: null } });
      expect(await code(editOrganization(db, members.owner!, org.id, { name: 'x' }, now, { ifRev: org.rev }))).toBe(
        'stale',
      );
      expect(await code(editOrganization(db, members.owner!, org.id, { name: '' }, now))).toBe('invalid_argument');
      for (const slug of ['', 'Lab', '-a', 'a-', 'a_b', 'a'.repeat(64)])
        expect(await code(createOrganization(db, members.owner!, { slug, name: 'x' }, now))).toBe('invalid_argument');
      expect(await code(createOrganization(db, members.viewer!, { slug: 'lab', name: 'x' }, now))).toBe('conflict');
    });

    test('are deleted with their keys, but not with deployments; their members stay', async () => {
      await setUp();
      const access = db as unknown as Db;
      const deployment = await openDeployment(access, { type: 'org', name: 'lab' }, 'chat', now);
      await createKey(access, { name: 'k', type: 'user-level', owner: { type: 'org', name: 'lab' } }, now);
      await createKey(
        access,
        { name: 'personal', type: 'user-level', owner: { type: 'user', name: 'owner@example.com' } },
        now,
      );
      expect(await code(deleteOrganization(db, members.owner!, org.id, now))).toBe('conflict');
      await db.deleteFrom('deployments').where('id', '=', deployment.id).execute();
      const { token } = await invite(
        db,
        members.owner!,
        org.id,
        { email: 'stranger@example.com', role: 'viewer' },
        now,
      );
      await deleteOrganization(db, members.owner!, org.id, now, { actor: { type: 'user', id: members.owner! } });
      expect(
        await db.selectFrom('api_keys').select(['name', 'status', 'deleted_by']).orderBy('name').execute(),
      ).toEqual([
        { name: 'k', status: 'deleted', deleted_by: members.owner },
        { name: 'personal', status: 'active', deleted_by: null },
      ]);
      expect(await code(acceptInvitation(db, members.stranger!, token, now))).toBe('gone');
      expect(await findAccount(db, members.owner!)).toBeDefined();
      // A used slug is never available again.
      expect(await code(createOrganization(db, members.owner!, { slug: 'lab', name: 'x' }, now))).toBe('conflict');
      expect(await verifyAudit(access)).toBeUndefined();
    });

    test('invitations are for one address and one use', async () => {
      await setUp();
      const { token, invitation } = await invite(
        db,
        members.admin!,
        org.id,
        { email: 'Stranger@Example.com', role: 'developer' },
        now,
      );
      expect(JSON.stringify(await listInvitations(db, members.admin!, org.id, now))).not.toContain(token);
      expect(JSON.stringify(await db.selectFrom('invitations').selectAll().execute())).not.toContain(token);
      const other = await account('other@example.com');
      expect(await code(acceptInvitation(db, other.userId, token, now))).toBe('forbidden');
      expect(await code(acceptInvitation(db, members.stranger!, token, now + 7 * DAY))).toBe('gone');
      const results = await Promise.all([1, 2].map(() => code(acceptInvitation(db, members.stranger!, token, now))));
      expect(results.sort()).toEqual(['done', 'gone']);
      expect(await roleOf(db, org.id, members.stranger!)).toBe('developer');
      expect(
        await code(invite(db, members.admin!, org.id, { email: 'stranger@example.com', role: 'viewer' }, now)),
      ).toBe('conflict');
      expect(await code(revokeInvitation(db, members.admin!, org.id, invitation.id, now))).toBe('not_found');
      const first = await invite(db, members.admin!, org.id, { email: 'other@example.com', role: 'viewer' }, now);
      const second = await invite(db, members.admin!, org.id, { email: 'other@example.com', role: 'viewer' }, now);
      expect(await code(acceptInvitation(db, other.userId, first.token, now))).toBe('gone');
      await revokeInvitation(db, members.admin!, org.id, second.invitation.id, now);
      expect(await code(acceptInvitation(db, other.userId, second.token, now))).toBe('gone');
      expect(await code(invite(db, members.admin!, org.id, { email: 'x', role: 'viewer' }, now))).toBe(
        'invalid_argument',
      );
      expect(await code(invite(db, members.admin!, org.id, { email: 'x@y.z', role: 'king' as never }, now))).toBe(
        'invalid_argument',
      );
    });
  });

  test("a database of access alone gains the service's tables, and both may open it", async () => {
    const other = await make();
    const store = await openStore(other);
    await store.createKey({ name: 'k', type: 'user-level', owner: { type: 'user', name: 'alice@example.com' } });
    await store.close();
    const grown = await openServiceDatabase(other);
    const made = await createAccount(grown, { email: 'alice@example.com', name: 'Alice', password: PASSWORD }, now);
    // Keys that the command created for this name belong to this account.
    expect(await grown.selectFrom('api_keys').select('owner_id').execute()).toEqual([{ owner_id: made.userId }]);
    await grown.destroy();
    await (await openStore(other)).close();
  });
});
