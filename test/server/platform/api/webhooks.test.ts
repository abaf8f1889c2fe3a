import type { MemberRole } from '../../../../server/access/store/schema';
import { alice as ann, overServices, service } from './suite';

const PATH = '/api/v1/webhooks';
const HOOK = { url: 'https://hooks.example.com/in?token=x', events: ['deployment.*', 'key.created'] };

overServices(() => {
  beforeEach(() => {
    service.resolve = () => Promise.resolve([{ address: '93.184.215.14', family: 4 }]);
  });

  test('are created with a secret shown once, updated, disabled and deleted', async () => {
    const made = await ann.post(PATH, HOOK, { 'idempotency-key': 'one' });
    expect(made).toMatchObject({
      status: 201,
      body: {
        ...HOOK,
        state: 'active',
        reason: null,
        waiting: 0,
        dropped: 0,
        failing_since: null,
        owner: { type: 'user', id: ann.userId },
        secret: expect.stringMatching(/^whsec_[0-9A-Za-z+/]{43}=$/),
      },
    });
    expect((await ann.post(PATH, HOOK, { 'idempotency-key': 'one' })).body).toMatchObject({
      id: made.body.id,
      secret: null,
      replayed: true,
    });
    const one = `${PATH}/${made.body.id}`;
    const { body: list } = await ann.get(PATH);
    expect(list).toMatchObject({ data: [{ id: made.body.id, ...HOOK }], next: null });
    expect(list.data[0]).not.toHaveProperty('secret');
    const edited = await ann.send(
      'PATCH',
      one,
      { events: ['*', '*'], enabled: false },
      { 'if-match': `"${made.body.rev}"` },
    );
    expect(edited).toMatchObject({ status: 200, body: { events: ['*'], state: 'disabled', reason: null } });
    expect((await ann.send('PATCH', one, { enabled: true }, { 'if-match': `"${made.body.rev}"` })).status).toBe(412);
    expect((await ann.get(one)).body).toEqual(edited.body);
    expect((await ann.get(`${one}/deliveries`)).body).toEqual({ data: [], next: null });
    expect([(await ann.send('DELETE', one)).status, (await ann.get(one)).status]).toEqual([204, 404]);
  });

  test.each([
    [{ url: 'https://hooks.example.com/' }, 400, '/events'],
    [{ events: ['*'] }, 400, '/url'],
    [{ ...HOOK, events: [] }, 400, '/events'],
    [{ ...HOOK, events: ['everything'] }, 400, '/events/0'],
    [{ ...HOOK, secret: 'mine' }, 400, '/secret'],
    [{ ...HOOK, events: ['deployment.exploded'] }, 422, 'events: unknown event deployment.exploded'],
    [{ ...HOOK, url: 'gopher://x' }, 422, 'url: expected an http:// or https:// URL'],
  ])('refuses %j with %d', async (body, status, text) => {
    const reply = await ann.post(PATH, body);
    expect(reply.status).toBe(status);
    expect(reply.text).toContain(text);
    expect((await ann.get(PATH)).body.data).toEqual([]);
  });

  test.each([
    'http://169.254.169.254/latest/meta-data/',
    'http://127.0.0.1:8090/api/v1/me',
    'http://[::ffff:127.0.0.1]/',
    'https://inside.example.com/',
  ])('refuses %s at creation and in an update', async (url) => {
    service.resolve = (name) =>
      Promise.resolve([{ address: name === 'inside.example.com' ? '10.0.0.1' : '93.184.215.14', family: 4 }]);
    const refused = {
      status: 422,
      body: { code: 'invalid_argument', detail: expect.stringContaining('not a public address') },
    };
    expect(await ann.post(PATH, { ...HOOK, url })).toMatchObject(refused);
    const {
      body: { id },
    } = await ann.post(PATH, HOOK);
    expect(await ann.send('PATCH', `${PATH}/${id}`, { url })).toMatchObject(refused);
    expect((await ann.get(`${PATH}/${id}`)).body.url).toBe(HOOK.url);
  });

  test('a test returns its outcome, and tests are limited', async () => {
    const {
      body: { id },
    } = await ann.post(PATH, HOOK);
    // The name now resolves to a private address.
    service.resolve = () => Promise.resolve([{ address: '127.0.0.1', family: 4 }]);
    const reply = await ann.post(`${PATH}/${id}/test`);
    expect(reply).toMatchObject({
      status: 200,
      body: {
        event: 'webhook.test',
        event_seq: null,
        state: 'failed',
        attempts: [
          {
            status: null,
            error: expect.stringContaining('not a public address'),
            duration_ms: expect.any(Number),
          },
        ],
      },
    });
    expect((await ann.get(`${PATH}/${id}/deliveries`)).body.data).toEqual([reply.body]);
    expect((await ann.get(`${PATH}/${id}`)).body).toMatchObject({ state: 'active', failing_since: null });
    let last = reply.status;
    for (let i = 0; i < 40 && last === 200; i++) last = (await ann.post(`${PATH}/${id}/test`)).status;
    expect(last).toBe(429);
  });

  test('rotation shows the new secret once, keeps the old one for its grace period, and is audited', async () => {
    const { body: made } = await ann.post(PATH, HOOK);
    const one = `${PATH}/${made.id}`;
    const rotated = await ann.post(
      `${one}/rotate`,
      { grace_s: 60 },
      { 'idempotency-key': 'one', 'if-match': `"${made.rev}"` },
    );
    expect(rotated).toMatchObject({
      status: 200,
      body: {
        id: made.id,
        secret: expect.stringMatching(/^whsec_/),
        rotating_until: new Date(service.clock.now() + 60_000).toISOString(),
      },
    });
    expect(rotated.body.secret).not.toBe(made.secret);
    expect(
      (await ann.post(`${one}/rotate`, { grace_s: 60 }, { 'idempotency-key': 'one', 'if-match': `"${made.rev}"` }))
        .body,
    ).toMatchObject({ secret: null, replayed: true });
    const again = [
      await ann.post(`${one}/rotate`, {}, { 'if-match': `"${made.rev}"` }),
      await ann.post(`${one}/rotate`, { grace_s: 60 }),
      await ann.post(`${one}/rotate`, { grace_s: -1 }),
      await ann.post(`${one}/rotate`, { grace_s: 2_592_001 }),
    ];
    expect(again.map(({ status }) => status)).toEqual([412, 409, 400, 400]);
    expect(await ann.post(`${one}/rotate/finish`)).toMatchObject({ status: 200, body: { rotating_until: null } });
    expect((await ann.post(`${one}/rotate`)).body).toMatchObject({ rotating_until: null, secret: expect.any(String) });
    const { data } = (await (await service.admin()).get(`/api/v1/audit?target=${made.id}`)).body;
    expect(data.map(({ action }: { action: string }) => action)).toEqual([
      'webhook.rotated',
      'webhook.rotation_finished',
      'webhook.rotated',
      'webhook.created',
    ]);
  });

  test('users who may change the webhook can send a message again', async () => {
    const {
      body: { id },
    } = await ann.post(PATH, HOOK);
    await ann.post('/api/v1/keys', { name: 'k' });
    await service.store.queueWebhookEvents();
    const {
      body: {
        data: [delivery],
      },
    } = await ann.get(`${PATH}/${id}/deliveries`);
    const [message] = await service.store.takeWebhookMessages([], 1);
    await service.store.endWebhookAttempt(message.id, {
      at: service.clock.now(),
      durationMs: 1,
      status: 204,
      error: null,
    });
    const again = `${PATH}/${id}/deliveries/${delivery.id}/redeliver`;
    const bob = await service.person('bob@example.com');
    expect([
      (await bob.post(again)).status,
      (await (await ann.token('read'))('POST', again)).status,
      (await ann.post(`${PATH}/${id}/deliveries/whd_x/redeliver`)).status,
    ]).toEqual([404, 403, 404]);
    expect(await ann.post(again)).toMatchObject({
      status: 202,
      body: { id: delivery.id, state: 'pending', attempts: [{ status: 204 }] },
    });
    expect(await ann.post(again)).toMatchObject({ status: 409, body: { code: 'conflict' } });
    expect(await service.store.takeWebhookMessages([], 1)).toMatchObject([{ id: delivery.id }]);
  });

  test('webhooks of an organization belong to its admins and owners', async () => {
    const {
      body: { id: org },
    } = await ann.post('/api/v1/orgs', { name: 'Lab', slug: 'lab' });
    const {
      body: { id },
    } = await ann.post(PATH, { ...HOOK, owner: { type: 'org', id: org } });
    const seen: Partial<Record<MemberRole, unknown>> = {};
    for (const role of ['admin', 'developer', 'viewer'] as const) {
      const person = await service.person(`${role}@example.com`);
      const {
        body: { token },
      } = await ann.post(`/api/v1/orgs/${org}/invitations`, { email: person.email, role });
      await person.post('/api/v1/invitations/accept', { token });
      const made = await person.post(PATH, { ...HOOK, owner: { type: 'org', id: org } });
      seen[role] = [(await person.get(PATH)).body.data.length, (await person.get(`${PATH}/${id}`)).status, made.status];
    }
    expect(seen).toEqual({ admin: [2, 200, 201], developer: [0, 403, 403], viewer: [0, 403, 403] });
    expect((await ann.send('DELETE', `/api/v1/orgs/${org}?confirm=lab`)).status).toBe(204);
    expect([(await ann.get(PATH)).body.data, (await ann.get(`${PATH}/${id}`)).status]).toEqual([[], 404]);
  });

  test('a read-only token reads and changes nothing', async () => {
    const {
      body: { id },
    } = await ann.post(PATH, HOOK);
    const read = await ann.token('read');
    expect([
      (await read('GET', PATH)).status,
      (await read('GET', `${PATH}/${id}`)).status,
      (await read('GET', `${PATH}/${id}/deliveries`)).status,
    ]).toEqual([200, 200, 200]);
    expect([
      (await read('POST', PATH, HOOK)).status,
      (await read('PATCH', `${PATH}/${id}`, { enabled: false })).status,
      (await read('POST', `${PATH}/${id}/test`, {})).status,
      (await read('DELETE', `${PATH}/${id}`)).status,
    ]).toEqual([403, 403, 403, 403]);
  });

  test('an owner has at most twenty webhooks', async () => {
    for (let i = 0; i < 20; i++) expect((await ann.post(PATH, HOOK)).status).toBe(201);
    expect(await ann.post(PATH, HOOK)).toMatchObject({ status: 403, body: { code: 'quota_exceeded' } });
  });
});
