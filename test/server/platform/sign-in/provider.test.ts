/** Sign-in with a real OpenID Connect provider. */
import type { ProviderSignIn } from '../../../../server/platform/sign-in/provider-sign-in';
import { alice, overServices, service } from '../api/suite';
import { ORIGIN, PASSWORD, type Person, type Reply } from '../api/support';
import { addSignIn, CLIENT_ID, CLIENT_SECRET, HostileProvider, ISSUED_SCOPES, RealProvider, Visitor } from './support';

const PROVIDERS = '/api/v1/identity-providers';
const ADA = { email: 'ada@example.com', email_verified: true, name: 'Ada', groups: ['engineers'] };
const HOUR_MS = 3_600_000;

let real: RealProvider;
beforeAll(async () => {
  real = await RealProvider.start();
});
afterAll(() => real.close());

overServices(() => {
  let signIn: ProviderSignIn;
  let root: Person;
  let org: string;
  let provider: any;

  const setUp = async (more: object = {}): Promise<void> => {
    const reply = await root.post(PROVIDERS, {
      name: 'Example',
      issuer: real.issuer,
      client_id: CLIENT_ID,
      client_secret: CLIENT_SECRET,
      scopes: ISSUED_SCOPES,
      mappings: [{ group: 'engineers', org, role: 'developer' }],
      ...more,
    });
    expect([reply.status, reply.body.detail]).toEqual([201, undefined]);
    provider = reply.body;
    await real.register(provider.redirect_uri);
  };
  const edit = (change: object): Promise<Reply> => root.send('PATCH', `${PROVIDERS}/${provider.id}`, change);
  const visit = async (subject: string, returnTo?: string): Promise<{ visitor: Visitor; reply: Reply }> => {
    const visitor = new Visitor(service);
    const reply = await visitor.finish(await real.signIn(await visitor.begin(provider.id, returnTo), subject));
    return { visitor, reply };
  };
  const rolesOf = async (person: Person) =>
    (await person.get('/api/v1/me')).body.organizations.map(({ slug, role }: any) => [slug, role]);
  const actionsOf = async () =>
    (await root.get('/api/v1/audit?limit=100')).body.data.map(({ action }: { action: string }) => action);

  beforeEach(async () => {
    signIn = addSignIn(service);
    root = await service.admin();
    org = (await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' })).body.id;
    await real.setUser('ada', ADA);
  });
  afterEach(() => {
    expect(service.logged.join('\n')).not.toContain(CLIENT_SECRET);
    for (const { text } of service.replies) expect(text).not.toContain(CLIENT_SECRET);
    return signIn.close();
  });

  test('creates an account at the first sign-in, and finds it again by issuer and subject', async () => {
    await setUp();
    expect(provider).toMatchObject({
      has_client_secret: true,
      redirect_uri: `${ORIGIN}/sign-in/callback/${provider.id}`,
      enabled: true,
      mappings: [{ group: 'engineers', org: 'lab', role: 'developer' }],
      users: 0,
    });
    const { visitor, reply } = await visit('ada', '/containers?q=1');
    expect(reply.body).toEqual({ return_to: '/containers?q=1' });
    // The pending sign-in has ended.
    expect(reply.headers['set-cookie']).toEqual([
      expect.stringMatching(/^capstan_session=.+; HttpOnly; SameSite=Strict; /),
      expect.stringMatching(/^capstan_signin=; .*; Max-Age=0/),
    ]);
    const me = (await visitor.get('/api/v1/me')).body;
    expect(me).toMatchObject({ email: 'ada@example.com', name: 'Ada', has_password: false, is_admin: false });
    expect(await rolesOf(visitor)).toEqual([['lab', 'developer']]);

    // The address at the provider may change: subject and issuer identify the user.
    await real.setUser('ada', { ...ADA, email: 'countess@example.com' });
    const { visitor: again } = await visit('ada');
    expect((await again.get('/api/v1/me')).body.id).toBe(me.id);
    expect((await root.get(`${PROVIDERS}/${provider.id}`)).body.users).toBe(1);
    expect(await actionsOf()).toEqual(expect.arrayContaining(['account.created', 'member.added', 'account.signed_in']));
    expect(service.logged.join('\n')).toContain('signed in with an identity provider');
  });

  test('a removal from a group removes the role at the next refresh', async () => {
    await setUp();
    const { visitor } = await visit('ada');
    await real.setUser('ada', { ...ADA, groups: [] });
    await signIn.poll();
    expect(await rolesOf(visitor)).toEqual([['lab', 'developer']]);
    service.clock.advance(HOUR_MS);
    await signIn.poll();
    // A user who loses a role must sign in again.
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
    const { visitor: again } = await visit('ada');
    expect(await rolesOf(again)).toEqual([]);

    // A new group counts at the next refresh as well, and the session continues.
    await real.setUser('ada', ADA);
    service.clock.advance(HOUR_MS);
    await signIn.poll();
    expect(await rolesOf(again)).toEqual([['lab', 'developer']]);
    // The provider rotates refresh tokens, so the new one must have been stored.
    service.clock.advance(HOUR_MS);
    await signIn.poll();
    expect(await rolesOf(again)).toEqual([['lab', 'developer']]);
  });

  test('a user disabled at the provider loses session, tokens and roles', async () => {
    await setUp();
    const { visitor } = await visit('ada');
    const send = await visitor.token('write');
    expect((await send('GET', '/api/v1/me')).status).toBe(200);
    await real.setUser('ada', null);
    service.clock.advance(HOUR_MS);
    await signIn.poll();
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
    expect((await send('GET', '/api/v1/me')).status).toBe(401);
    const members = (await alice.get(`/api/v1/orgs/${org}/members`)).body.data;
    expect(members.map(({ email }: any) => email)).toEqual(['alice@example.com']);
    expect(await actionsOf()).toContain('account.provider_ended');

    await real.setUser('ada', ADA);
    expect((await visit('ada')).reply.status).toBe(200);
    expect((await send('GET', '/api/v1/me')).status).toBe(200);
  });

  test('without a confirmation, a session and its tokens end after a bounded time', async () => {
    await setUp({ recheck_s: 600 });
    const { visitor } = await visit('ada');
    const send = await visitor.token('read');
    // 10 minutes, and 30 in which the provider may be down.
    service.clock.advance(2_399_000);
    expect((await visitor.get('/api/v1/me')).status).toBe(200);
    service.clock.advance(2_000);
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
    expect((await send('GET', '/api/v1/me')).status).toBe(401);
  });

  test('refuses to take over a local account, unless an administrator allows it for verified addresses', async () => {
    await setUp();
    await real.setUser('al', { email: 'Alice@example.com', email_verified: true, name: 'Al' });
    const refused = await visit('al');
    expect([refused.reply.status, refused.reply.body.code]).toEqual([403, 'sign_in_refused']);
    expect(refused.reply.body.detail).toMatch(/alice@example.com already exists, and Example may not take it over/);

    await edit({ links_by_email: true });
    await real.setUser('al', { email: 'alice@example.com', name: 'Al' });
    expect((await visit('al')).reply.body.detail).toMatch(/has not verified the address/);
    await real.setUser('al', { email: 'alice@example.com', email_verified: true, name: 'Al' });
    const send = await alice.token('write');
    const { visitor } = await visit('al');
    expect((await visitor.get('/api/v1/me')).body).toMatchObject({ id: alice.userId, has_password: false });
    // The provider alone decides now.
    expect((await alice.get('/api/v1/me')).status).toBe(401);
    expect((await send('GET', '/api/v1/me')).status).toBe(401);
    expect((await alice.signIn(PASSWORD)).status).toBe(401);
    const reset = await root.post(`/api/v1/users/${alice.userId}/password-reset`);
    expect([reset.status, reset.body.detail]).toEqual([409, 'this account signs in with Example and has no password']);

    // Never an administrator.
    await real.setUser('root', { email: 'root@example.com', email_verified: true });
    expect((await visit('root')).reply.body.detail).toMatch(/belongs to an administrator/);
  });

  test('admits only verified addresses of the domains, and members of mapped groups', async () => {
    await setUp({ email_domains: ['Example.com'], requires_group: true });
    await real.setUser('mal', { ...ADA, email: 'mal@example.org' });
    expect((await visit('mal')).reply.body.detail).toMatch(/verified email address of example.com/);
    await real.setUser('mal', { ...ADA, email: 'mal@example.com', email_verified: false });
    expect((await visit('mal')).reply.status).toBe(403);
    await real.setUser('mal', { ...ADA, email: 'mal@example.com', groups: ['others'] });
    expect((await visit('mal')).reply.body.detail).toMatch(/not in a group at Example/);
    const { visitor } = await visit('ada');
    await real.setUser('ada', { ...ADA, groups: [] });
    service.clock.advance(HOUR_MS);
    await signIn.poll();
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
    await real.setUser('none', { groups: ['engineers'] });
    expect((await visit('none')).reply.status).toBe(403);
  });

  test('keeps memberships that a person made, and refuses to change those of a group by hand', async () => {
    await setUp();
    const { visitor } = await visit('ada');
    const me = (await visitor.get('/api/v1/me')).body.id;
    const change = await alice.send('PATCH', `/api/v1/orgs/${org}/members/${me}`, { role: 'viewer' });
    expect([change.status, change.body.detail]).toEqual([
      409,
      'this role comes from a group at Example: change the groups of the user there',
    ]);
    expect((await alice.send('DELETE', `/api/v1/orgs/${org}/members/${me}`)).status).toBe(409);

    const other = (await alice.post('/api/v1/orgs', { name: 'Other', slug: 'other' })).body.id;
    const invitation = await alice.post(`/api/v1/orgs/${other}/invitations`, { email: ADA.email, role: 'viewer' });
    expect((await visitor.post('/api/v1/invitations/accept', { token: invitation.body.token })).status).toBe(204);
    await edit({ mappings: [{ group: 'engineers', org: 'other', role: 'admin' }] });
    await signIn.poll();
    const { visitor: again } = await visit('ada');
    expect(await rolesOf(again)).toEqual([['other', 'viewer']]);
    await real.setUser('ada', { ...ADA, groups: [] });
    const { visitor: last } = await visit('ada');
    expect(await rolesOf(last)).toEqual([['other', 'viewer']]);
  });

  test.each([
    ['removed', []],
    ['demoted', [{ group: 'engineers', org: 'lab', role: 'viewer' }]],
  ] as const)('the last owner of an organization is not %s by a group', async (_name, mappings) => {
    await setUp({ mappings: [{ group: 'engineers', org, role: 'owner' }] });
    const { visitor } = await visit('ada');
    expect((await alice.send('DELETE', `/api/v1/orgs/${org}/members/${alice.userId}`)).status).toBe(204);
    await edit({ mappings });
    await signIn.poll();
    expect(await rolesOf(visitor)).toEqual([['lab', 'owner']]);
    expect((await actionsOf()).filter((action: string) => action === 'member.last_owner_kept')).toHaveLength(1);
    // It is a membership like one that a person made, and the event is not repeated.
    service.clock.advance(HOUR_MS);
    await signIn.poll();
    expect((await actionsOf()).filter((action: string) => action === 'member.last_owner_kept')).toHaveLength(1);
    const members = (await visitor.get(`/api/v1/orgs/${org}/members`)).body.data;
    expect(members.map(({ email, role }: any) => [email, role])).toEqual([['ada@example.com', 'owner']]);
  });

  test('a disabled provider ends sessions at once, and a deleted one frees its accounts', async () => {
    await setUp();
    const { visitor } = await visit('ada');
    await edit({ enabled: false });
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
    expect((await service.send('GET', '/api/v1/auth/providers')).body.data).toEqual([]);
    await expect(new Visitor(service).begin(provider.id)).rejects.toThrow('not_found');
    await edit({ enabled: true });
    expect((await visitor.get('/api/v1/me')).status).toBe(200);
    expect((await service.send('GET', '/api/v1/auth/providers')).body.data).toEqual([
      { id: provider.id, name: 'Example' },
    ]);
    expect((await root.send('DELETE', `${PROVIDERS}/${provider.id}?confirm=Exampl`)).status).toBe(422);
    expect((await root.send('DELETE', `${PROVIDERS}/${provider.id}?confirm=Example`)).status).toBe(204);
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
    const owners = (await root.get('/api/v1/quotas?q=ada')).body.data;
    expect((await root.post(`/api/v1/users/${owners[0].owner.id}/password-reset`)).status).toBe(201);
  });

  test('a provider with the shared redirect URI keeps it until an administrator changes it', async () => {
    await setUp({ own_redirect_uri: false });
    expect(provider.redirect_uri).toBe(`${ORIGIN}/sign-in/callback`);
    expect((await visit('ada')).reply.status).toBe(200);
    provider = (await edit({ own_redirect_uri: true })).body;
    expect(provider.redirect_uri).toBe(`${ORIGIN}/sign-in/callback/${provider.id}`);
    await real.register(provider.redirect_uri);
    expect((await visit('ada')).reply.status).toBe(200);
  });

  test('a sign-in has one response', async () => {
    await setUp();
    const visitor = new Visitor(service);
    const response = await real.signIn(await visitor.begin(provider.id), 'ada');
    const refused = await visitor.finish({ ...response, code: 'another code' });
    expect([refused.status, refused.body.code]).toEqual([403, 'sign_in_refused']);
    // The real code comes too late.
    const late = await visitor.finish(response);
    expect([late.status, late.body.code]).toEqual([410, 'gone']);
  });

  test('the code of one provider does not reach another one', async () => {
    await setUp();
    const evil = new HostileProvider();
    await evil.start();
    const { body: other } = await root.post(PROVIDERS, { name: 'Evil', issuer: evil.issuer, client_id: CLIENT_ID });
    const visitor = new Visitor(service);
    const begun = new URL(await visitor.begin(other.id));
    // The other provider leads the browser to this one, with its own parameters.
    const authorization = new URL(`${real.issuer}/auth`);
    for (const name of ['client_id', 'response_type', 'scope', 'state', 'nonce', 'code_challenge'])
      authorization.searchParams.set(name, begun.searchParams.get(name)!);
    authorization.searchParams.set('code_challenge_method', 'S256');
    authorization.searchParams.set('redirect_uri', provider.redirect_uri);
    // The page that receives the response names the provider in its path.
    const { iss: _, ...response } = await real.signIn(authorization.href, 'ada');
    expect(response.code).toMatch(/./);
    const reply = await visitor.finish({ ...response, provider: provider.id });
    expect([reply.status, reply.body.detail]).toEqual([
      403,
      'the response is from another identity provider: sign in again',
    ]);
    expect(evil.requests).toEqual([]);
    await evil.close();
  });

  test('signs out at the provider, too', async () => {
    await setUp();
    const { visitor } = await visit('ada');
    const reply = await visitor.post('/api/v1/auth/logout');
    const url = new URL(reply.body.url);
    expect([reply.status, url.origin]).toEqual([200, real.issuer]);
    expect(url.searchParams.get('post_logout_redirect_uri')).toBe(`${ORIGIN}/sign-in`);
    expect((await fetch(url)).status).toBe(200);
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
    expect((await alice.post('/api/v1/auth/logout')).status).toBe(204);
  });

  test('an account without a password can be deleted, and its owner cannot use a password', async () => {
    await setUp();
    const { visitor } = await visit('ada');
    const change = await visitor.post('/api/v1/me/password', { current: '', password: 'a new long password' });
    expect([change.status, change.body.code]).toEqual([409, 'wrong_state']);
    expect(change.body.detail).toBe(
      'this account has no password: change the password and the second factor at the identity provider; to delete the account, ask an administrator (capstan accounts delete)',
    );
    expect(
      (
        await service.send('POST', '/api/v1/auth/login', {
          headers: { 'content-type': 'application/json', origin: ORIGIN },
          body: JSON.stringify({ email: 'ada@example.com', password: '' }),
        })
      ).status,
    ).toBe(401);
    const { id } = (await visitor.get('/api/v1/me')).body;
    expect((await root.send('DELETE', `/api/v1/users/${id}?confirm=ada@example.com`)).status).toBe(204);
    // The next sign-in makes a new account.
    const { visitor: again } = await visit('ada');
    expect((await again.get('/api/v1/me')).body.id).not.toBe(id);
  });

  test('several providers, and only administrators see and change them', async () => {
    await setUp();
    const again = await root.post(PROVIDERS, { name: 'Second', issuer: real.issuer, client_id: 'x' });
    expect([again.status, again.body.code]).toEqual([409, 'conflict']);
    for (const [issuer, detail] of [
      ['http://idp.example.com', /issuer: expected an https:/],
      [`${real.issuer}/other`, /issuer: /],
      ['http://127.0.0.1:9', /issuer: .*cannot reach 127.0.0.1:9/],
      ['https://169.254.169.254', /issuer: .*not a provider/],
    ] as const) {
      const bad = await root.post(PROVIDERS, { name: 'Bad', issuer, client_id: 'x' });
      expect([bad.status, bad.body.detail]).toEqual([422, expect.stringMatching(detail)]);
    }
    expect((await edit({ mappings: [{ group: 'g', org: 'none', role: 'viewer' }] })).status).toBe(422);
    expect((await edit({ authorization_params: { redirect_uri: 'https://evil.example' } })).status).toBe(422);
    expect((await edit({ authorization_params: { prompt: 'login' } })).body.authorization_params).toEqual({
      prompt: 'login',
    });
    expect((await alice.get(PROVIDERS)).status).toBe(403);
    expect((await alice.send('PATCH', `${PROVIDERS}/${provider.id}`, { enabled: false })).status).toBe(403);
    const audit = JSON.stringify((await root.get('/api/v1/audit?limit=100')).body);
    expect(audit).toContain('provider.updated');
  });
});
