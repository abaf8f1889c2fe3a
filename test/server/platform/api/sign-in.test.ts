/** Sessions, their cookies, and protection against other origins. */
import { Api } from '../../../../server/platform/api/api';
import type { ApiCall } from '../../../../server/platform/api/route';
import type { HttpReply, HttpRequest } from '../../../../server/http/transport';
import { totpCode } from '../../../../server/platform/accounts/totp';
import { HOST, ORIGIN, PASSWORD, Person, type Reply, Service } from './support';
import { alice, JSON_TYPE, overServices, service, statuses } from './suite';

const LOGIN = '/api/v1/auth/login';
const ME = '/api/v1/me';

const login = (body: object, headers: Record<string, string> = {}, remoteAddress?: string): Promise<Reply> =>
  service.send('POST', LOGIN, { headers: { ...JSON_TYPE, ...headers }, body: JSON.stringify(body), remoteAddress });
const good = { email: 'alice@example.com', password: PASSWORD };

overServices(() => {
  describe('signing in', () => {
    test('sets a cookie that scripts cannot read, and provides a CSRF token', async () => {
      const reply = await login(good);
      expect(reply).toMatchObject({ status: 204, text: '' });
      expect(reply.headers['set-cookie']).toMatch(
        /^capstan_session=[0-9A-Za-z]{43}; Path=\/; HttpOnly; SameSite=Strict; Max-Age=1209600$/,
      );
      const cookie = reply.headers['set-cookie'].split(';')[0];
      const me = await service.send('GET', ME, {
        headers: { cookie, 'x-session-secret': reply.headers['x-session-secret'] },
      });
      expect(me).toMatchObject({
        status: 200,
        body: {
          email: 'alice@example.com',
          name: 'alice',
          is_admin: false,
          has_totp: false,
          organizations: [],
          via: 'session',
          locale: 'en',
          theme: 'system',
        },
      });
      expect(me.body.csrf_token).toMatch(/^[\w-]{43}$/);
      expect(me.headers.etag).toBe(`"${me.body.rev}"`);
    });

    test('uses a __Host- cookie and HSTS over HTTPS', async () => {
      const secure = await Service.open({ isSecure: true });
      const bob = await secure.person('bob@example.com');
      expect(bob.cookie).toMatch(/^__Host-capstan=/);
      const reply = await bob.send('POST', LOGIN, { email: bob.email, password: PASSWORD });
      expect(reply.headers['set-cookie']).toMatch(/; Path=\/; HttpOnly; SameSite=Strict; Max-Age=\d+; Secure$/);
      expect(reply.headers['strict-transport-security']).toBe('max-age=31536000');
      // A cookie with the other name, which plain HTTP could have set, is ignored.
      expect(
        (
          await secure.send('GET', ME, {
            headers: { ...bob.credentials, cookie: bob.cookie.replace('__Host-capstan', 'capstan_session') },
          })
        ).status,
      ).toBe(401);
      await secure.close();
    });

    test('fails with the same text for all causes', async () => {
      const replies = [
        await login({ ...good, password: 'wrong password' }),
        await login({ email: 'unknown@example.com', password: PASSWORD }),
        await login({ email: 'unknown', password: '' }),
      ];
      for (const { status, body } of replies)
        expect({ status, code: body.code, detail: body.detail }).toEqual({
          status: 401,
          code: 'bad_credentials',
          detail: 'wrong email address or password',
        });
      expect(replies[0].headers['set-cookie']).toBeUndefined();
    });

    test('is delayed after too many failures from an address, for an account and for all accounts', async () => {
      for (let i = 0; i < 5; i++)
        expect((await login({ ...good, password: 'wrong password' }, {}, '198.51.100.9')).status).toBe(401);
      const locked = await login(good, {}, '198.51.100.9');
      expect(locked).toMatchObject({ status: 429, body: { code: 'too_many_attempts' } });
      expect(locked.headers['retry-after']).toBe('60');
      // No user can lock out another.
      expect((await login(good, {}, '198.51.100.10')).status).toBe(204);
      // From one address, over many accounts.
      for (let i = 0; i < 20; i++)
        expect((await login({ email: `user${i}@example.com`, password: 'x' }, {}, '203.0.113.5')).status).toBe(401);
      expect((await login({ email: 'other@example.com', password: 'x' }, {}, '203.0.113.5')).status).toBe(429);
      expect((await login({ email: 'other@example.com', password: 'x' }, {}, '203.0.113.6')).status).toBe(401);
      expect(service.logged.join('\n')).not.toContain('alice@example.com');
    });

    test('limits concurrent attempts like sequential ones', async () => {
      const replies = await Promise.all(
        Array.from({ length: 25 }, (_, i) =>
          login({ email: `user${i}@example.com`, password: 'x' }, {}, '203.0.113.7'),
        ),
      );
      expect(replies.filter(({ status }) => status === 401)).toHaveLength(20);
      expect(replies.filter(({ status }) => status === 429)).toHaveLength(5);
      service.clock.advance(60_000);
      // Successful attempts are not counted.
      for (let i = 0; i < 22; i++) expect((await login(good, {}, '203.0.113.7')).status).toBe(204);
    });

    test('replaces the previous session of the browser', async () => {
      const planted = alice.credentials;
      await alice.signIn();
      expect(alice.cookie).not.toBe(planted.cookie);
      expect((await service.send('GET', ME, { headers: planted })).status).toBe(401);
      expect((await alice.get('/api/v1/sessions')).body.data).toHaveLength(1);
    });
  });

  describe('a session', () => {
    test('expires after 12 idle hours, and after two weeks at the latest', async () => {
      service.clock.advance(12 * 3_600_000);
      expect((await alice.get(ME)).status).toBe(401);
      await alice.signIn();
      for (let hours = 0; hours < 14 * 24; hours += 8) {
        expect([hours, (await alice.get(ME)).status]).toEqual([hours, 200]);
        service.clock.advance(8 * 3_600_000);
      }
      expect((await alice.get(ME)).status).toBe(401);
    });

    test('is listed without its token, and can be ended from elsewhere', async () => {
      const phone = new Person(service, alice.userId, alice.email);
      await phone.signIn();
      const { body } = await alice.get('/api/v1/sessions');
      expect(body.data).toHaveLength(2);
      expect(body.data.filter((session: any) => session.is_current)).toHaveLength(1);
      expect(body.data[0]).toMatchObject({ ip: '192.0.2.1', created_at: expect.stringMatching(/^2027-/) });
      for (const { cookie } of [alice, phone]) expect(JSON.stringify(body)).not.toContain(cookie.split('=')[1]);
      const other = body.data.find((session: any) => !session.is_current).id;
      const bob = await service.person('bob@example.com');
      expect((await bob.send('DELETE', `/api/v1/sessions/${other}`)).status).toBe(404);
      expect((await alice.send('DELETE', `/api/v1/sessions/${other}`)).status).toBe(204);
      expect((await phone.get(ME)).status).toBe(401);
      await phone.signIn();
      expect((await alice.send('DELETE', '/api/v1/sessions')).status).toBe(204);
      expect([(await phone.get(ME)).status, (await alice.get(ME)).status]).toEqual([401, 200]);
    });

    test('ends its open streams, which do not keep it alive', async () => {
      const route = {
        method: 'GET',
        path: '/stream',
        summary: '',
        tag: '',
        auth: 'any',
        responses: { 200: 'text/event-stream' },
        handle: ({ signal }: ApiCall) =>
          Promise.resolve({
            stream: (reply: HttpReply) =>
              new Promise<void>((resolve) => {
                reply.stream(200, {}).write('open');
                signal.addEventListener('abort', () => resolve());
              }),
          }),
      } as const;
      const api = new Api({ routes: [route], context: service.context, recheckMs: 5 });
      const request: HttpRequest = {
        method: 'GET',
        path: '/stream',
        query: '',
        headers: [['host', HOST], ...Object.entries(alice.credentials)],
        remoteAddress: '192.0.2.1',
        signal: new AbortController().signal,
        readBody: () => Promise.resolve(Buffer.alloc(0)),
      };
      let hasEnded = false;
      let open!: () => void;
      const opened = new Promise<void>((resolve) => (open = resolve));
      const write = () => (open(), true);
      const streaming = api
        .handle(request, {
          hasStarted: false,
          send: () => {},
          stream: () => ({ write, drained: () => Promise.resolve(), end: () => {}, destroy: () => {} }),
        } as unknown as HttpReply)
        .then(() => {
          hasEnded = true;
        });
      await opened;
      service.clock.advance(11 * 3_600_000);
      await new Promise((resolve) => setTimeout(resolve, 50));
      expect([hasEnded, (await service.store.findSession(alice.cookie.split('=')[1], false))?.userId]).toEqual([
        false,
        alice.userId,
      ]);
      service.clock.advance(3_600_000);
      await streaming;
      expect((await alice.get(ME)).status).toBe(401);
    });

    test('ends at sign-out', async () => {
      const headers = alice.credentials;
      const reply = await alice.post('/api/v1/auth/logout');
      expect(reply.status).toBe(204);
      expect(reply.headers['set-cookie']).toMatch(/^capstan_session=; .*Max-Age=0$/);
      expect((await service.send('GET', ME, { headers })).status).toBe(401);
    });

    test('ends with a password change, which returns a new cookie', async () => {
      const phone = new Person(service, alice.userId, alice.email);
      await phone.signIn();
      const before = alice.credentials;
      expect(
        (await alice.post('/api/v1/me/password', { current: 'wrong password', password: 'another password' })).status,
      ).toBe(401);
      expect((await alice.post('/api/v1/me/password', { current: PASSWORD, password: 'short' })).status).toBe(422);
      expect(
        (await alice.post('/api/v1/me/password', { current: PASSWORD, password: 'another password' })).status,
      ).toBe(204);
      expect(alice.cookie).not.toBe(before.cookie);
      expect([
        (await alice.get(ME)).status,
        (await phone.get(ME)).status,
        (await service.send('GET', ME, { headers: before })).status,
      ]).toEqual([200, 401, 401]);
      expect([(await login(good)).status, (await login({ ...good, password: 'another password' })).status]).toEqual([
        401, 204,
      ]);
    });

    test('is not opened when another host has planted a second cookie', async () => {
      for (const cookie of [
        `capstan_session=x; ${alice.cookie}`,
        `${alice.cookie}; capstan_session=x`,
        'capstan_session=',
        'capstan_session=x',
        `other=1; x${alice.cookie}`,
      ]) {
        const headers = { ...alice.credentials, cookie };
        expect([cookie.length, (await service.send('GET', ME, { headers })).status]).toEqual([cookie.length, 401]);
      }
      const headers = { ...alice.credentials, cookie: `a=1; ${alice.cookie};b=2` };
      expect((await service.send('GET', ME, { headers })).status).toBe(200);
    });

    test('needs the secret of its sign-in: a deployment on another port gets the cookie alone, or plants one', async () => {
      const bob = await service.person('bob@example.com');
      expect(alice.sessionSecret).toMatch(/^[0-9A-Za-z]{43}$/);
      const statusWith = async (headers: Record<string, string>) => (await service.send('GET', ME, { headers })).status;
      expect(await statusWith(alice.credentials)).toBe(200);
      // A stolen cookie.
      expect(await statusWith({ cookie: alice.cookie })).toBe(401);
      expect(await statusWith({ cookie: alice.cookie, 'x-session-secret': '' })).toBe(401);
      expect(await statusWith({ cookie: alice.cookie, 'x-session-secret': alice.csrfToken })).toBe(401);
      // A planted cookie: the browser of Alice has her own secret.
      expect(await statusWith({ cookie: bob.cookie, 'x-session-secret': alice.sessionSecret })).toBe(401);
      expect(
        (
          await service.send('PATCH', ME, {
            headers: { cookie: alice.cookie, 'x-csrf-token': alice.csrfToken, origin: ORIGIN, ...JSON_TYPE },
            body: '{"theme":"dark"}',
          })
        ).status,
      ).toBe(401);
      expect((await alice.get(ME)).body).toMatchObject({ theme: 'system', session_guard: 'secret' });
      // Requests without the secret do not keep the session alive.
      service.clock.advance(11 * 3_600_000);
      expect(await statusWith({ cookie: alice.cookie })).toBe(401);
      service.clock.advance(3_600_000);
      expect((await alice.get(ME)).status).toBe(401);
      expect(service.logged.join('\n')).not.toContain(alice.sessionSecret);
    });

    test('needs no secret, but the right host name, where only the console has this name', async () => {
      const own = await Service.open({ isSecure: true, sessionGuard: 'own-host', consoleHost: 'console.test' });
      const bob = await own.person('bob@example.com');
      const get = async (host: string) => (await own.send('GET', ME, { headers: { host, cookie: bob.cookie } })).status;
      expect([await get('console.test:8090'), await get('Console.test'), await get('console.test:8091')]).toEqual([
        200, 200, 200,
      ]);
      expect([await get('127.0.0.1:8090'), await get('console.test.evil.example')]).toEqual([401, 401]);
      expect((await bob.get(ME)).body.session_guard).toBe('own-host');
      // No cookie is set under another name. Management tokens work under every name.
      const refused = await own.send('POST', LOGIN, {
        headers: { ...JSON_TYPE, host: '127.0.0.1:8090' },
        body: JSON.stringify({ email: bob.email, password: PASSWORD }),
      });
      expect(refused).toMatchObject({ status: 421, body: { code: 'wrong_host' } });
      expect(refused.headers['set-cookie']).toBeUndefined();
      const token = await bob.token('read');
      expect((await token('GET', ME, undefined, { host: '127.0.0.1:8090' })).status).toBe(200);
      await own.close();
    });
  });

  describe('another origin', () => {
    const change = (headers: Record<string, string>): Promise<Reply> =>
      service.send('PATCH', ME, {
        headers: { ...alice.credentials, 'x-csrf-token': alice.csrfToken, origin: ORIGIN, ...JSON_TYPE, ...headers },
        body: '{"theme":"dark"}',
      });

    test.each([
      ['another site', { origin: 'https://evil.example' }],
      ['a deployment on the next port', { origin: 'http://console.test:8091' }],
      ['another host of the same end', { origin: 'http://xconsole.test:8090' }],
      ['an opaque origin', { origin: 'null' }],
      ['a site that the browser names', { 'sec-fetch-site': 'cross-site' }],
      ['the same site on another port', { 'sec-fetch-site': 'same-site' }],
      ['no token', { 'x-csrf-token': '' }],
      ['a wrong token', { 'x-csrf-token': 'A'.repeat(43) }],
    ])('cannot change anything: %s', async (_name, headers) => {
      expect(await change(headers as Record<string, string>)).toMatchObject({
        status: 403,
        body: { code: 'cross_site' },
      });
      expect((await alice.get(ME)).body.theme).toBe('system');
    });

    test('the console can change things, with or without optional headers', async () => {
      expect((await change({})).status).toBe(200);
      expect((await change({ 'sec-fetch-site': 'same-origin' })).status).toBe(200);
      const withoutOrigin = await service.send('PATCH', ME, {
        headers: { ...alice.credentials, 'x-csrf-token': alice.csrfToken, ...JSON_TYPE },
        body: '{"theme":"light"}',
      });
      expect(withoutOrigin).toMatchObject({ status: 200, body: { theme: 'light' } });
    });

    test('cannot sign in, and a CSRF token of another session is refused', async () => {
      expect((await login(good, { origin: 'https://evil.example' })).status).toBe(403);
      expect((await login(good, { 'sec-fetch-site': 'cross-site' })).status).toBe(403);
      expect((await login(good, { origin: `http://${HOST}` })).status).toBe(204);
      const bob = await service.person('bob@example.com');
      expect((await change({ 'x-csrf-token': bob.csrfToken })).status).toBe(403);
    });

    test('gets no CORS headers, and cannot send a form', async () => {
      const preflight = await service.send('OPTIONS', ME, {
        headers: { origin: 'https://evil.example', 'access-control-request-method': 'PATCH' },
      });
      expect(preflight.status).toBe(405);
      for (const reply of [
        preflight,
        await service.send('GET', ME, { headers: { origin: 'https://evil.example', cookie: alice.cookie } }),
      ]) {
        expect(Object.keys(reply.headers).filter((name) => name.startsWith('access-control-'))).toEqual([]);
      }
      for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data', '']) {
        expect(
          (await service.send('POST', LOGIN, { headers: { 'content-type': type }, body: JSON.stringify(good) })).status,
        ).toBe(415);
      }
    });

    test('a configured proxy origin is trusted', async () => {
      const proxied = await Service.open({ ownOrigins: ['https://capstan.example'] });
      const bob = await proxied.person('bob@example.com');
      expect((await bob.send('PATCH', ME, { theme: 'dark' }, { origin: 'https://capstan.example' })).status).toBe(200);
      expect((await bob.send('PATCH', ME, { theme: 'dark' }, { origin: 'https://capstan.example.evil' })).status).toBe(
        403,
      );
      await proxied.close();
    });
  });

  test('every response has security headers', async () => {
    for (const reply of [
      await alice.get(ME),
      await service.send('GET', ME),
      await service.send('GET', '/api/v1/nothing'),
      await login(good),
    ]) {
      expect(reply.headers).toMatchObject({
        'content-security-policy': "default-src 'none'; frame-ancestors 'none'; sandbox",
        'x-content-type-options': 'nosniff',
        'x-frame-options': 'DENY',
        'referrer-policy': 'no-referrer',
        'cache-control': 'no-store',
        'cross-origin-resource-policy': 'same-origin',
        'x-request-id': expect.stringMatching(/^[0-9a-f]{32}$/),
      });
    }
    expect((await service.send('GET', ME, { headers: { 'x-request-id': 'mine' } })).body).toMatchObject({
      request_id: 'mine',
      status: 401,
      code: 'unauthenticated',
    });
  });

  describe('the second factor', () => {
    const code = (secret: string, offset = 0): string =>
      totpCode(secret, Math.floor(service.clock.now() / 30_000) + offset);

    const switchOn = async (): Promise<string> => {
      const { status, body } = await alice.post('/api/v1/me/totp', { password: PASSWORD });
      expect([status, body.url]).toEqual([
        201,
        `otpauth://totp/Capstan:alice%40example.com?secret=${body.secret}&issuer=Capstan&digits=6&period=30`,
      ]);
      expect(
        (await alice.send('PUT', '/api/v1/me/totp', { otp: '000000' === code(body.secret) ? '000001' : '000000' }))
          .status,
      ).toBe(422);
      // Not in force until it is confirmed.
      expect((await login(good)).status).toBe(204);
      const confirmed = await alice.send('PUT', '/api/v1/me/totp', { otp: code(body.secret) });
      expect(confirmed.status).toBe(200);
      recoveryCodes = confirmed.body.recovery_codes;
      service.clock.advance(30_000);
      return body.secret;
    };

    let recoveryCodes: string[];
    const codesLeft = async (): Promise<number> => (await alice.get(ME)).body.recovery_codes_left;

    test('comes with ten recovery codes, and each replaces one code', async () => {
      expect(await codesLeft()).toBe(0);
      const secret = await switchOn();
      expect(new Set(recoveryCodes).size).toBe(10);
      for (const text of recoveryCodes) expect(text).toMatch(/^[0-9a-hjkmnp-tv-z]{5}-[0-9a-hjkmnp-tv-z]{5}$/);
      expect(await codesLeft()).toBe(10);
      const [first, second, third] = recoveryCodes;
      expect(statuses([await login({ ...good, otp: first }), await login({ ...good, otp: first })])).toEqual([
        204, 401,
      ]);
      expect((await login({ ...good, password: 'wrong password', otp: second })).status).toBe(401);
      // As a user may type it.
      expect((await login({ ...good, otp: ` ${second.replace('-', ' ').toUpperCase()}` })).status).toBe(204);
      expect((await login({ ...good, otp: code(secret) })).status).toBe(204);
      const twice = await Promise.all([1, 2].map(() => login({ ...good, otp: third })));
      expect(statuses(twice).sort()).toEqual([204, 401]);
      await alice.signIn(PASSWORD, code(secret, 1));
      expect(await codesLeft()).toBe(7);
      const root = await service.admin();
      expect((await root.get('/api/v1/audit?action=account.recovery_code_used')).body.data).toMatchObject([
        { target: { type: 'user', id: alice.userId }, after: { left: 7 } },
        { after: { left: 8 } },
        { after: { left: 9 } },
      ]);
    });

    test('gets new recovery codes with the password, and loses them with the second factor', async () => {
      const renew = (password: string) => alice.post('/api/v1/me/recovery-codes', { password });
      expect(await renew(PASSWORD)).toMatchObject({ status: 409, body: { code: 'wrong_state' } });
      await switchOn();
      const [old] = recoveryCodes;
      expect((await renew('wrong password')).status).toBe(401);
      const renewed = await renew(PASSWORD);
      expect([renewed.status, renewed.body.recovery_codes.length]).toEqual([201, 10]);
      expect((await login({ ...good, otp: old })).status).toBe(401);
      expect((await login({ ...good, otp: renewed.body.recovery_codes[9] })).status).toBe(204);
      expect((await alice.send('DELETE', '/api/v1/me/totp', { password: PASSWORD })).status).toBe(204);
      expect(await codesLeft()).toBe(0);
      expect(
        await (
          await alice.token('write')
        )('POST', '/api/v1/me/recovery-codes', { password: PASSWORD }),
      ).toMatchObject({ status: 403, body: { code: 'session_required' } });
    });

    test('is required, and each code works once', async () => {
      const secret = await switchOn();
      expect((await alice.get(ME)).body.has_totp).toBe(true);
      expect(await login(good)).toMatchObject({ status: 401, body: { code: 'otp_required' } });
      expect(await login({ ...good, password: 'wrong password' })).toMatchObject({
        status: 401,
        body: { code: 'bad_credentials' },
      });
      expect(await login({ ...good, otp: code(secret, 5) })).toMatchObject({
        status: 401,
        body: { code: 'bad_credentials' },
      });
      expect((await login({ ...good, otp: code(secret) })).status).toBe(204);
      expect((await login({ ...good, otp: code(secret) })).status).toBe(401);
      service.clock.advance(30_000);
      expect((await login({ ...good, otp: code(secret) })).status).toBe(204);
    });

    test('one of two concurrent sign-ins with the same code succeeds', async () => {
      const secret = await switchOn();
      const replies = await Promise.all([1, 2].map(() => login({ ...good, otp: code(secret) })));
      expect(replies.map(({ status }) => status).sort()).toEqual([204, 401]);
    });

    test('is removed with the password, and created only in a session', async () => {
      await switchOn();
      expect((await alice.post('/api/v1/me/totp', { password: PASSWORD })).status).toBe(409);
      expect((await alice.send('DELETE', '/api/v1/me/totp', { password: 'wrong password' })).status).toBe(401);
      expect((await alice.send('DELETE', '/api/v1/me/totp', { password: PASSWORD })).status).toBe(204);
      expect((await login(good)).status).toBe(204);
      const byToken = await alice.token('write');
      expect(await byToken('POST', '/api/v1/me/totp', { password: PASSWORD })).toMatchObject({
        status: 403,
        body: { code: 'session_required' },
      });
      expect(
        (await byToken('POST', '/api/v1/me/password', { current: PASSWORD, password: 'another password' })).status,
      ).toBe(403);
    });
  });

  describe('the first administrator', () => {
    const spec = { email: 'root@example.com', name: 'Root', password: PASSWORD };
    const bootstrap = (token: string): Promise<Reply> =>
      service.send('POST', '/api/v1/bootstrap', { headers: JSON_TYPE, body: JSON.stringify({ ...spec, token }) });

    test('is created by the link, once, and signed in', async () => {
      const token = await service.store.createBootstrapLink();
      expect(await bootstrap('wrong')).toMatchObject({ status: 410, body: { code: 'gone' } });
      const reply = await bootstrap(token);
      expect(reply.status).toBe(204);
      const me = await service.send('GET', ME, {
        headers: {
          cookie: reply.headers['set-cookie'].split(';')[0],
          'x-session-secret': reply.headers['x-session-secret'],
        },
      });
      expect(me.body).toMatchObject({ email: 'root@example.com', is_admin: true });
      expect((await bootstrap(token)).status).toBe(410);
    });

    test('cannot be created by guessing the link', async () => {
      for (let i = 0; i < 20; i++) await bootstrap(`wrong${i}`);
      expect((await bootstrap(await service.store.createBootstrapLink())).status).toBe(429);
      service.clock.advance(60_000);
      expect((await bootstrap(await service.store.createBootstrapLink())).status).toBe(204);
    });
  });

  test('an account can change only its name, language and theme', async () => {
    const {
      headers: { etag },
    } = await alice.get(ME);
    const reply = await alice.send(
      'PATCH',
      ME,
      { name: 'Alice', locale: 'zh-CN', theme: 'dark' },
      { 'if-match': etag },
    );
    expect(reply).toMatchObject({ status: 200, body: { name: 'Alice', locale: 'zh-CN', theme: 'dark' } });
    expect((await alice.send('PATCH', ME, { name: 'B' }, { 'if-match': etag })).status).toBe(412);
    for (const body of [
      { is_admin: true },
      { rev: 5 },
      { email: 'x@y.z' },
      { password_hash: 'x' },
      { locale: 'fr' },
      { name: '' },
    ])
      expect([body, (await alice.send('PATCH', ME, body)).status]).toEqual([body, 400]);
    expect((await alice.send('PATCH', ME, { name: 'a\nb' })).status).toBe(422);
  });
});
