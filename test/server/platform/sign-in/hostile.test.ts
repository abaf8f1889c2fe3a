/** What a hostile or broken provider, another site or a thief can send. */
import type { ProviderSignIn } from '../../../../server/platform/sign-in/provider-sign-in';
import { providerFetch } from '../../../../server/platform/sign-in/provider-fetch';
import { openServiceDatabase } from '../../../../server/platform/store/change';
import { alice, JSON_TYPE, overServices, service } from '../api/suite';
import { ORIGIN, type Person, type Reply } from '../api/support';
import { addSignIn, type Claims, CLIENT_ID, CLIENT_SECRET, HostileProvider, Visitor } from './support';

const PROVIDERS = '/api/v1/identity-providers';

overServices(() => {
  let hostile: HostileProvider;
  let signIn: ProviderSignIn;
  let root: Person;
  let id: string;
  let others: HostileProvider[];

  beforeEach(async () => {
    others = [];
    hostile = new HostileProvider();
    await hostile.start();
    signIn = addSignIn(service);
    root = await service.admin();
    const made = await root.post(PROVIDERS, {
      name: 'Hostile',
      issuer: hostile.issuer,
      client_id: CLIENT_ID,
      client_secret: CLIENT_SECRET,
    });
    expect(made.status).toBe(201);
    id = made.body.id;
  });
  afterEach(async () => {
    await signIn.close();
    for (const provider of [hostile, ...others]) await provider.close();
    // Nothing secret reaches a log line.
    for (const secret of [CLIENT_SECRET, 'an access token', 'a refresh token', 'the code', 'eyJ'])
      expect(service.logged.join('\n')).not.toContain(secret);
  });

  async function attempt(more: Record<string, string> = {}): Promise<Reply> {
    const visitor = new Visitor(service);
    const url = new URL(await visitor.begin(id));
    hostile.nonce = url.searchParams.get('nonce')!;
    return visitor.finish({ code: 'the code', state: visitor.state, ...more });
  }

  /** A second provider. */
  async function addHonest(more: object = {}): Promise<{ honest: HostileProvider; honestId: string }> {
    const honest = new HostileProvider();
    await honest.start();
    others.push(honest);
    const { status, body } = await root.post(PROVIDERS, {
      name: 'Honest',
      issuer: honest.issuer,
      client_id: CLIENT_ID,
      client_secret: CLIENT_SECRET,
      ...more,
    });
    expect(status).toBe(201);
    return { honest, honestId: body.id };
  }

  async function signedIn(at = hostile, providerId = id): Promise<Visitor> {
    const visitor = new Visitor(service);
    at.nonce = new URL(await visitor.begin(providerId)).searchParams.get('nonce')!;
    expect((await visitor.finish({ code: 'the code', state: visitor.state })).status).toBe(200);
    return visitor;
  }

  test('an honest response signs in, with PKCE, state and nonce', async () => {
    const visitor = new Visitor(service);
    const url = new URL(await visitor.begin(id));
    expect(Object.fromEntries(url.searchParams)).toEqual({
      client_id: CLIENT_ID,
      redirect_uri: `${ORIGIN}/sign-in/callback/${id}`,
      response_type: 'code',
      scope: 'openid profile email',
      state: visitor.state,
      nonce: expect.stringMatching(/^[\w-]{43}$/),
      code_challenge: expect.stringMatching(/^[\w-]{43}$/),
      code_challenge_method: 'S256',
    });
    hostile.nonce = url.searchParams.get('nonce')!;
    expect((await visitor.finish({ code: 'the code', state: visitor.state })).status).toBe(200);
    const [request] = hostile.requests;
    expect(request.get('code_verifier')).toMatch(/^[\w-]{43}$/);
    expect(request.get('redirect_uri')).toBe(`${ORIGIN}/sign-in/callback/${id}`);
  });

  const now = () => Math.floor(Date.now() / 1000);
  test.each<[string, (claims: Claims) => Claims, RegExp]>([
    ['nonce', (claims) => ({ ...claims, nonce: 'another' }), /nonce/],
    ['missing nonce', ({ nonce: _, ...claims }) => claims, /nonce/],
    ['issuer', (claims) => ({ ...claims, iss: 'https://other.example' }), /iss/],
    ['audience', (claims) => ({ ...claims, aud: 'another client' }), /aud/],
    ['authorized party', (claims) => ({ ...claims, aud: [CLIENT_ID, 'other'], azp: 'other' }), /azp|aud/],
    ['expiry', (claims) => ({ ...claims, exp: now() - 120 }), /exp/],
    ['missing expiry', ({ exp: _, ...claims }) => claims, /exp/],
    ['time of issue', (claims) => ({ ...claims, iat: 'today' }), /iat/],
    ['missing subject', ({ sub: _, ...claims }) => claims, /sub/],
  ])('a wrong %s is refused', async (_name, change, reason) => {
    hostile.change = change;
    const reply = await attempt();
    expect([reply.status, reply.headers['set-cookie']]).toEqual([403, undefined]);
    expect(reply.body).toMatchObject({ code: 'sign_in_refused', detail: expect.stringMatching(reason) });
    expect(service.logged.join('\n')).toContain('sign-in with an identity provider failed');
  });

  test.each<[string, () => void]>([
    ['changed after it was signed', () => (hostile.tamper = (token) => swapClaims(token))],
    ['signed with an unknown key', () => (hostile.header = { alg: 'RS256', kid: 'two' })],
    ['not signed', () => (hostile.header = { alg: 'none' })],
    ['signed with the client secret', () => (hostile.header = { alg: 'HS256', kid: 'one' })],
    ['not a token', () => (hostile.tamper = () => 'nothing')],
  ])('an ID token that is %s is refused', async (_name, prepare) => {
    prepare();
    const reply = await attempt();
    expect([403, 502]).toContain(reply.status);
    expect(reply.headers['set-cookie']).toBeUndefined();
  });

  test('a response with a status that HTTP does not know is a fault of the provider', async () => {
    hostile.failure = { status: 799, body: {} };
    const reply = await attempt();
    expect([reply.status, reply.body.code]).toEqual([502, 'provider_error']);
  });

  test('a response with another state, a stolen one, or without the cookie is refused', async () => {
    expect((await attempt({ state: 'another' })).body.code).toBe('sign_in_refused');
    const victim = new Visitor(service);
    const thief = new Visitor(service);
    await victim.begin(id);
    hostile.nonce = new URL(await thief.begin(id)).searchParams.get('nonce')!;
    // Login CSRF: the code and state of the thief in the browser of the victim.
    expect((await victim.finish({ code: 'the code', state: thief.state })).status).toBe(403);
    victim.pending = '';
    expect((await victim.finish({ code: 'the code', state: victim.state })).status).toBe(410);
    thief.pending = `${thief.pending.split('=')[0]}=AAAA`;
    expect((await thief.finish({ code: 'the code', state: thief.state })).status).toBe(410);
    expect(hostile.requests).toEqual([]);
  });

  test('a sign-in expires after ten minutes', async () => {
    const visitor = new Visitor(service);
    await visitor.begin(id);
    service.clock.advance(601_000);
    expect((await visitor.finish({ code: 'the code', state: visitor.state })).status).toBe(410);
  });

  test('pages of other origins can neither begin nor end a sign-in', async () => {
    for (const path of [`/api/v1/auth/providers/${id}/begin`, '/api/v1/auth/providers/callback'])
      for (const headers of [{ origin: 'https://evil.example' }, { 'sec-fetch-site': 'cross-site' }] as Record<
        string,
        string
      >[])
        expect(
          (await service.send('POST', path, { headers: { ...JSON_TYPE, ...headers }, body: '{"state":"x"}' })).body
            .code,
        ).toBe('cross_site');
  });

  test.each([
    '//evil.example',
    '/\\evil.example',
    'https://evil.example/',
    'javascript:alert(1)',
    '/\tevil',
    '/ok\u0007',
    '/%0a\r\nx',
  ])('opens no other site after the sign-in: %j', async (returnTo) => {
    const visitor = new Visitor(service);
    hostile.nonce = new URL(await visitor.begin(id, returnTo)).searchParams.get('nonce')!;
    const reply = await visitor.finish({ code: 'the code', state: visitor.state });
    expect(reply.body).toEqual({ return_to: '/' });
  });

  test('an error of the provider is shown without control characters', async () => {
    const visitor = new Visitor(service);
    await visitor.begin(id);
    const reply = await visitor.finish({
      state: visitor.state,
      error: 'access_denied',
      error_description: `no\u001b[2J access ${'x'.repeat(500)}`,
    });
    expect(reply.body.code).toBe('sign_in_refused');
    expect(reply.body.detail).toMatch(/^Hostile: access_denied: no \[2J access x+$/);
    expect(reply.body.detail.length).toBeLessThan(250);
  });

  test('wrong settings are a fault of the provider, not of the user', async () => {
    hostile.failure = { status: 401, body: { error: 'invalid_client' } };
    expect((await attempt()).body).toMatchObject({ status: 502, code: 'provider_error' });
    expect(service.logged.join('\n')).toContain('invalid_client');
    hostile.failure = { ...hostile.failure, challenge: 'Basic realm="the provider"' };
    expect((await attempt()).status).toBe(502);
    expect(service.logged.join('\n')).toContain('(status 401): check its client ID and client secret');
    hostile.failure = { status: 500, body: {} };
    expect((await attempt()).status).toBe(502);
    hostile.failure = { status: 400, body: { error: 'invalid_grant' } };
    expect((await attempt()).status).toBe(403);
  });

  test('an account of one provider is not linked by another one: its holder may be another person', async () => {
    hostile.change = ({ email_verified: _, ...claims }) => claims;
    const attacker = await signedIn();
    const send = await attacker.token('write');
    const { honest, honestId } = await addHonest({ links_by_email: true });
    const victim = new Visitor(service);
    honest.nonce = new URL(await victim.begin(honestId)).searchParams.get('nonce')!;
    const reply = await victim.finish({ code: 'the code', state: victim.state });
    expect([reply.status, reply.body.detail]).toEqual([
      403,
      'the account eve@example.com belongs to a user of Hostile: sign in with Hostile, or ask an administrator to delete the account if it is not yours',
    ]);
    expect((await send('GET', '/api/v1/me')).status).toBe(200);
  });

  test('an address that is not verified takes over no account, although another one of the user is', async () => {
    hostile.metadata = { userinfo_endpoint: hostile.userInfoEndpoint };
    await root.send('PATCH', `${PROVIDERS}/${id}`, { links_by_email: true });
    hostile.change = ({ email_verified: _, ...claims }) => ({ ...claims, email: 'alice@example.com' });
    hostile.userInfo.body = { sub: 'subject', email: 'eve@example.com', email_verified: true };
    const reply = await attempt();
    expect([reply.status, reply.body.detail]).toEqual([
      403,
      'an account with the address alice@example.com already exists, and Hostile has not verified the address',
    ]);
    // The same address in both is verified.
    hostile.userInfo.body = { sub: 'subject', email: 'alice@example.com', email_verified: true };
    expect((await attempt()).status).toBe(200);
  });

  test('a user in thousands of groups has the role of each', async () => {
    const org = (await alice.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' })).body.id;
    await root.send('PATCH', `${PROVIDERS}/${id}`, {
      mappings: [{ group: 'group 4999', org, role: 'developer' }],
      requires_group: true,
    });
    const groups = Array.from({ length: 5_000 }, (_, i) => `group ${i}`);
    hostile.change = (claims) => ({ ...claims, groups });
    const { organizations } = (await (await signedIn()).get('/api/v1/me')).body;
    expect(organizations).toMatchObject([{ slug: 'lab', role: 'developer' }]);
  });

  test('metadata of another issuer is refused', async () => {
    hostile.metadata = { issuer: 'https://victim.example' };
    const reply = await root.post(PROVIDERS, { name: 'Two', issuer: `${hostile.issuer}/`, client_id: CLIENT_ID });
    expect([reply.status, reply.body.detail]).toEqual([422, expect.stringMatching(/^issuer: .*issuer/)]);
  });

  test('an outage does not end sessions at once, but after a bounded time', async () => {
    const visitor = new Visitor(service);
    hostile.nonce = new URL(await visitor.begin(id)).searchParams.get('nonce')!;
    await visitor.finish({ code: 'the code', state: visitor.state });
    hostile.failure = { status: 503, body: {} };
    service.clock.advance(3_600_000);
    await signIn.poll();
    expect((await visitor.get('/api/v1/me')).status).toBe(200);
    // It asks again a minute later.
    const before = hostile.requests.length;
    await signIn.poll();
    expect(hostile.requests.length).toBe(before);
    service.clock.advance(60_000);
    await signIn.poll();
    expect(hostile.requests.length).toBe(before + 1);
    service.clock.advance(30 * 60_000);
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
  });

  const seconds = () => Math.floor(Date.now() / 1000);
  test.each<[string, () => void]>([
    [
      'a client secret that is wrong',
      () => (hostile.failure = { status: 401, body: { error: 'invalid_client' }, challenge: 'Basic realm="x"' }),
    ],
    [
      'a challenge of the token endpoint',
      () => (hostile.failure = { status: 401, body: {}, challenge: 'Bearer error="invalid_token"' }),
    ],
    ['an empty object of a proxy', () => (hostile.failure = { status: 200, body: {} })],
    ['a clock that is wrong', () => (hostile.change = (claims) => ({ ...claims, exp: seconds() - 600 }))],
    ['a wrong audience', () => (hostile.change = (claims) => ({ ...claims, aud: 'another client' }))],
  ])('at a refresh, %s does not end the user', async (_name, prepare) => {
    const visitor = await signedIn();
    const send = await visitor.token('read');
    hostile.nonce = undefined;
    prepare();
    service.clock.advance(3_600_000);
    await signIn.poll();
    expect(service.logged.join('\n')).toContain('does not respond, retrying');
    expect([(await visitor.get('/api/v1/me')).status, (await send('GET', '/api/v1/me')).status]).toEqual([200, 200]);
    service.clock.advance(30 * 60_000);
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
  });

  test('at a refresh, a refused token ends the user', async () => {
    const visitor = await signedIn();
    hostile.failure = { status: 400, body: { error: 'invalid_grant' } };
    service.clock.advance(3_600_000);
    await signIn.poll();
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
  });

  test('at a refresh, user information ends the user only if it refuses the new access token', async () => {
    hostile.metadata = { userinfo_endpoint: hostile.userInfoEndpoint };
    hostile.userInfo = { status: 200, body: { sub: 'subject' } };
    const visitor = await signedIn();
    hostile.nonce = undefined;
    hostile.userInfo = { status: 401, body: {}, challenge: 'Bearer realm="x"' };
    service.clock.advance(3_600_000);
    await signIn.poll();
    expect((await visitor.get('/api/v1/me')).status).toBe(200);
    hostile.userInfo = { status: 401, body: {}, challenge: 'Bearer error="invalid_token"' };
    service.clock.advance(60_000);
    await signIn.poll();
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
  });

  test('a provider that hangs delays no user of another one', async () => {
    const { honest, honestId } = await addHonest();
    await signedIn();
    honest.change = (claims) => ({ ...claims, email: 'honest@example.com' });
    const visitor = await signedIn(honest, honestId);
    honest.nonce = undefined;
    // The one answers only after the other was asked.
    hostile.onRefresh = () => new Promise((resolve) => (honest.onRefresh = resolve));
    service.clock.advance(3_600_000);
    hostile.nonce = undefined;
    await signIn.poll();
    expect(service.logged.join('\n')).not.toContain('does not respond');
    service.clock.advance(3_500_000);
    expect((await visitor.get('/api/v1/me')).status).toBe(200);
  });

  test('after a fault, a provider is asked about no other user until a minute later', async () => {
    const subjects = ['one', 'two', 'three'];
    const visitors: Visitor[] = [];
    for (const sub of subjects) {
      hostile.change = (claims) => ({ ...claims, sub, email: `${sub}@example.com` });
      visitors.push(await signedIn());
    }
    hostile.failure = { status: 503, body: {} };
    service.clock.advance(3_600_000);
    const before = hostile.requests.length;
    await signIn.poll();
    await signIn.poll();
    expect(hostile.requests.length).toBe(before + 1);
    // The user of the fault is the last one then, so that it cannot keep the others from a refresh.
    const order = ['three', 'two', 'one'];
    hostile.failure = undefined;
    hostile.nonce = undefined;
    hostile.onRefresh = () => {
      const sub = order.shift()!;
      hostile.change = (claims) => ({ ...claims, sub, email: `${sub}@example.com` });
    };
    service.clock.advance(60_000);
    await signIn.poll();
    expect(hostile.requests.length).toBe(before + 4);
    for (const visitor of visitors) expect((await visitor.get('/api/v1/me')).status).toBe(200);
  });

  test.each<[string, () => void]>([
    ['refusal', () => (hostile.failure = { status: 400, body: { error: 'invalid_grant' } })],
    ['answer', () => (hostile.change = (claims) => ({ ...claims, email: 'eve@example.org' }))],
  ])('a late %s to a refresh does not end a session that has begun since', async (_name, prepare) => {
    await root.send('PATCH', `${PROVIDERS}/${id}`, { email_domains: ['example.com'] });
    await signedIn();
    let visitor: Visitor | undefined;
    hostile.onRefresh = async () => {
      visitor = await signedIn();
      hostile.nonce = undefined;
      prepare();
    };
    service.clock.advance(3_600_000);
    await signIn.poll();
    expect((await visitor!.get('/api/v1/me')).status).toBe(200);
  });

  test('a logout ends the session, although the service cannot read the session of the provider', async () => {
    const visitor = await signedIn();
    const db = await openServiceDatabase(service.location);
    await db.updateTable('provider_sessions').set({ id_token: 'not encrypted' }).execute();
    await db.destroy();
    const reply = await visitor.post('/api/v1/auth/logout');
    expect([reply.status, reply.headers['set-cookie']]).toEqual([204, expect.stringMatching(/Max-Age=0/)]);
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
  });

  test('a visitor learns no address of the network from a fault', async () => {
    await hostile.close();
    const reply = await service.send('POST', `/api/v1/auth/providers/${id}/begin`, {
      headers: { ...JSON_TYPE, origin: ORIGIN },
      body: '{}',
    });
    expect([reply.status, reply.body.detail]).toEqual([
      502,
      'Hostile does not respond, or its settings are wrong: an administrator finds the reason in the log',
    ]);
    expect(service.logged.join('\n')).toContain(`cannot reach ${new URL(hostile.issuer).host}`);
  });

  test('a refresh for another user ends the session', async () => {
    const visitor = new Visitor(service);
    hostile.nonce = new URL(await visitor.begin(id)).searchParams.get('nonce')!;
    await visitor.finish({ code: 'the code', state: visitor.state });
    hostile.change = ({ nonce: _, ...claims }) => ({ ...claims, sub: 'another' });
    service.clock.advance(3_600_000);
    await signIn.poll();
    expect((await visitor.get('/api/v1/me')).status).toBe(401);
  });

  test('the refresh token and the ID token are encrypted in the database', async () => {
    await attempt();
    const db = await openServiceDatabase(service.location);
    const rows = [
      ...(await db.selectFrom('identities').selectAll().execute()),
      ...(await db.selectFrom('provider_sessions').selectAll().execute()),
      ...(await db.selectFrom('identity_providers').selectAll().execute()),
    ];
    await db.destroy();
    expect(rows).toHaveLength(3);
    for (const secret of ['a refresh token', 'eyJ', CLIENT_SECRET]) expect(JSON.stringify(rows)).not.toContain(secret);
  });
});

test('the request to a provider follows no redirect and refuses link-local addresses', async () => {
  const request = { method: 'GET', headers: {} };
  const fetch = providerFetch(() => Promise.resolve([{ address: '169.254.169.254', family: 4 }]));
  await expect(fetch('https://idp.example.com/', request)).rejects.toThrow('which is not a provider');
  await expect(fetch('http://[fe80::1]/', request)).rejects.toThrow('which is not a provider');
  await expect(fetch('http://[::ffff:169.254.169.254]/', request)).rejects.toThrow('which is not a provider');
  await expect(fetch('http://[64:ff9b::169.254.169.254]/', request)).rejects.toThrow('which is not a provider');
  const none = providerFetch(() => Promise.reject(new Error('ENOTFOUND')));
  await expect(none('https://idp.example.com/', request)).rejects.toThrow('cannot resolve idp.example.com');
});

/** Replaces the subject, and keeps the signature. */
function swapClaims(token: string): string {
  const [head, body, signature] = token.split('.');
  const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as Claims;
  return [head, Buffer.from(JSON.stringify({ ...claims, sub: 'root' })).toString('base64url'), signature].join('.');
}
