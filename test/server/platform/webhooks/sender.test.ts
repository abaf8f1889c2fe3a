import { createHmac } from 'node:crypto';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import type { ServiceActor } from '../../../../server/platform/accounts/actor';
import { openServiceDatabase } from '../../../../server/platform/store/change';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { FAILING_MS, MAX_ATTEMPTS, MAX_WAITING } from '../../../../server/platform/webhooks/webhook-queue';
import type { Address } from '../../../../server/platform/outbound/endpoint';
import { WebhookSender } from '../../../../server/platform/webhooks/webhook-sender';
import { overBackends } from '../../access/support';
import { actorOf, annOf, FakeClock, machine, STORE_OPTIONS, withAnn } from '../support';

interface Received {
  headers: http.IncomingHttpHeaders;
  body: string;
}

overBackends((make) => {
  let location: DatabaseLocation;
  let clock: FakeClock;
  let store: ServiceStore;
  let sender: WebhookSender;
  let ann: ServiceActor;
  let received: Received[];
  let status: number;
  let server: http.Server;
  let url: string;
  let logged: string;

  const log = {
    info: () => {},
    warn: (fields: object, message: string) => {
      logged += JSON.stringify(fields) + message;
    },
  };
  const openStore = () => openServiceStore({ location, ...STORE_OPTIONS, machine: machine() }, clock.now);
  const openSender = (more: Partial<ConstructorParameters<typeof WebhookSender>[0]> = {}) =>
    new WebhookSender({
      store,
      log,
      allowsPrivate: true,
      clock,
      resolve: () => Promise.resolve([{ address: '127.0.0.1', family: 4 }]),
      ...more,
    });
  /** Sends everything that is due now. */
  const send = async () => {
    for (let before = -1; before !== received.length;) {
      before = received.length;
      await sender.poll();
      await sender.settled();
    }
  };
  const advance = async (ms: number) => {
    await clock.advance(ms, () => Promise.resolve());
    await send();
  };
  const create = (events: string[], more: object = {}) => store.createWebhook(ann, { url, events, ...more });
  const deliveries = async ({ id }: { id: string }) =>
    (await store.pageWebhookDeliveries(ann, id, { limit: 100 })).data;

  beforeEach(async () => {
    [received, status, logged] = [[], 204, ''];
    clock = new FakeClock();
    location = await make(withAnn);
    ann = actorOf(annOf(location));
    store = await openStore();
    server = http.createServer((request, reply) => {
      let body = '';
      request
        .setEncoding('utf8')
        .on('data', (text: string) => {
          body += text;
        })
        .on('end', () => {
          received.push({ headers: request.headers, body });
          reply.writeHead(status).end('a secret of the receiver');
        });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    url = `http://hooks.example.com:${(server.address() as AddressInfo).port}/in?token=hush-hush`;
    sender = openSender();
  });
  afterEach(async () => {
    await sender.close();
    await store.close();
    await new Promise((resolve) => {
      server.closeAllConnections();
      server.close(resolve);
    });
  });

  test('sends signed events to the webhooks that subscribe to them', async () => {
    const { webhook, secret } = await create(['deployment.*']);
    const { webhook: other } = await create(['key.created']);
    const deployment = await store.createDeployment(ann, { name: 'chat' });
    await send();
    expect(received.map(({ body }) => JSON.parse(body))).toEqual([
      {
        type: 'deployment.created',
        timestamp: expect.stringMatching(/^\d{4}-.*Z$/),
        seq: expect.any(Number),
        owner: { type: 'user', id: ann.userId },
        target: { type: 'deployment', id: deployment.id },
        data: expect.objectContaining({ name: 'chat' }),
      },
    ]);
    const [{ headers, body }] = received;
    expect(headers).toMatchObject({
      'content-type': 'application/json',
      'webhook-timestamp': String(clock.now() / 1000),
      'user-agent': expect.stringMatching(/^capstan\//),
    });
    const key = Buffer.from(secret.replace(/^whsec_/, ''), 'base64');
    expect(headers['webhook-signature']).toBe(
      `v1,${createHmac('sha256', key)
        .update(`${headers['webhook-id'] as string}.${headers['webhook-timestamp'] as string}.${body}`)
        .digest('base64')}`,
    );
    expect(await deliveries(webhook)).toEqual([
      expect.objectContaining({
        id: headers['webhook-id'],
        event: 'deployment.created',
        state: 'delivered',
        next_at: null,
        attempts: [expect.objectContaining({ status: 204, error: null })],
      }),
    ]);
    expect(await deliveries(other)).toEqual([]);
  });

  test('sends only events of its owner, and none from before its creation', async () => {
    const bob = actorOf(
      (await store.createAccount({ email: 'bob@example.com', name: 'Bob', password: 'correct horse battery' })).userId,
    );
    await store.createDeployment(ann, { name: 'before' });
    await create(['deployment.created']);
    await store.createDeployment(bob, { name: 'his' });
    await store.createDeployment(ann, { name: 'mine' });
    await send();
    expect(received.map(({ body }) => JSON.parse(body).data.name)).toEqual(['mine']);
  });

  test('retries a failed attempt with backoff and the same id, up to a limit', async () => {
    status = 500;
    const { webhook } = await create(['deployment.created']);
    await store.createDeployment(ann, { name: 'chat' });
    await send();
    expect((await deliveries(webhook))[0]).toMatchObject({
      state: 'pending',
      attempts: [{ status: 500, error: 'status 500' }],
    });
    await advance(9_999);
    expect(received).toHaveLength(1);
    await advance(1);
    expect(received).toHaveLength(2);
    await advance(39_999);
    expect(received).toHaveLength(2);
    await advance(86_400_000);
    for (let i = received.length; i < MAX_ATTEMPTS + 3; i++) await advance(6 * 3_600_000);
    expect(received).toHaveLength(MAX_ATTEMPTS);
    expect(new Set(received.map(({ headers }) => headers['webhook-id'])).size).toBe(1);
    const [delivery] = await deliveries(webhook);
    expect([delivery.state, delivery.attempts.length, delivery.next_at]).toEqual(['failed', MAX_ATTEMPTS, null]);
    // Only the status of a response is kept.
    expect(JSON.stringify(delivery)).not.toContain('secret of the receiver');
  });

  test('signs with both secrets during a rotation, and then with the new one only', async () => {
    const { webhook, secret: old } = await create(['deployment.created']);
    const expectSignatures = async (name: string, secrets: string[]) => {
      await store.createDeployment(ann, { name });
      await send();
      const { headers, body } = received.at(-1)!;
      const sign = (secret: string) =>
        `v1,${createHmac('sha256', Buffer.from(secret.replace(/^whsec_/, ''), 'base64'))
          .update(`${headers['webhook-id'] as string}.${headers['webhook-timestamp'] as string}.${body}`)
          .digest('base64')}`;
      expect([name, headers['webhook-signature']]).toEqual([name, secrets.map(sign).join(' ')]);
    };
    await expectSignatures('before', [old]);
    const { webhook: rotating, secret: second } = await store.rotateWebhook(ann, webhook.id, 3_600_000);
    expect([second === old, rotating.rotating_until]).toEqual([false, new Date(clock.now() + 3_600_000).toISOString()]);
    await expectSignatures('in its grace', [second, old]);
    await expect(store.rotateWebhook(ann, webhook.id, 1_000)).rejects.toMatchObject({ code: 'conflict' });
    await advance(3_600_000);
    expect((await store.getWebhook(ann, webhook.id)).rotating_until).toBeNull();
    await expectSignatures('after it', [second]);
    const { secret: third } = await store.rotateWebhook(ann, webhook.id, 3_600_000);
    await store.finishWebhookRotation(ann, webhook.id);
    await expectSignatures('its grace cut off', [third]);
    const { secret: last } = await store.rotateWebhook(ann, webhook.id, 0);
    await expectSignatures('without one', [last]);
    await store.rotateWebhook(ann, webhook.id, 1_000);
    await advance(600_000);
    const db = await openServiceDatabase(location);
    expect(await db.selectFrom('webhooks').select(['old_secret', 'old_secret_until']).execute()).toEqual([
      { old_secret: null, old_secret_until: null },
    ]);
    await db.destroy();
  });

  test('redelivers a message with its id and a new set of attempts', async () => {
    const { webhook } = await create(['deployment.created']);
    await store.createDeployment(ann, { name: 'chat' });
    await send();
    const [{ id }] = await deliveries(webhook);
    status = 500;
    expect(await store.redeliverWebhook(ann, webhook.id, id)).toMatchObject({ id, state: 'pending' });
    await expect(store.redeliverWebhook(ann, webhook.id, id)).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('still pending'),
    });
    await send();
    expect(received.map(({ headers }) => headers['webhook-id'])).toEqual([id, id]);
    expect(received[1].body).toBe(received[0].body);
    expect((await deliveries(webhook))[0]).toMatchObject({
      state: 'pending',
      attempts: [{ status: 204 }, { status: 500 }],
    });
    for (let i = 0; i < 2 * MAX_ATTEMPTS; i++) await advance(6 * 3_600_000);
    expect(received).toHaveLength(1 + MAX_ATTEMPTS);
    expect((await deliveries(webhook))[0].state).toBe('failed');
    status = 204;
    for (let i = 0; i < 20; i++) {
      await store.redeliverWebhook(ann, webhook.id, id);
      await send();
    }
    const [{ state, attempts }] = await deliveries(webhook);
    expect([state, attempts.length, received.length]).toEqual(['delivered', 20, 21 + MAX_ATTEMPTS]);
    const { id: testId } = await store.createTestDelivery(ann, webhook.id);
    await expect(store.redeliverWebhook(ann, webhook.id, testId)).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('a test message'),
    });
    await store.editWebhook(ann, webhook.id, { enabled: false });
    await expect(store.redeliverWebhook(ann, webhook.id, id)).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('the webhook is disabled'),
    });
    await expect(store.redeliverWebhook(ann, webhook.id, 'whd_x')).rejects.toMatchObject({ code: 'not_found' });
  });

  test('treats a redirect as a failure', async () => {
    status = 302;
    const { webhook } = await create(['deployment.created']);
    await store.createDeployment(ann, { name: 'chat' });
    await send();
    expect(received).toHaveLength(1);
    expect((await deliveries(webhook))[0].attempts).toEqual([
      expect.objectContaining({ status: 302, error: 'status 302' }),
    ]);
  });

  test('continues after a restart and repeats an attempt that a crash interrupted', async () => {
    const { webhook } = await create(['deployment.created']);
    await store.createDeployment(ann, { name: 'chat' });
    await store.queueWebhookEvents();
    // Leased by a process that is killed before it records the attempt.
    expect(await store.takeWebhookMessages([], 10)).toHaveLength(1);
    await sender.close();
    await store.close();
    store = await openStore();
    sender = openSender();
    await send();
    expect(received).toEqual([]);
    await advance(60_000);
    expect(received).toHaveLength(1);
    expect((await deliveries(webhook))[0].state).toBe('delivered');
    await advance(600_000);
    expect(received).toHaveLength(1);
  });

  test('disables a webhook that fails for days with the reason, and starts fresh when it is enabled again', async () => {
    const { webhook } = await create(['deployment.created']);
    const { webhook: watcher } = await create(['webhook.disabled']);
    const stop = await store.createWebhook(ann, { url: 'http://dead.example.com/', events: ['deployment.created'] });
    await sender.close();
    sender = openSender({
      resolve: (name) =>
        name === 'dead.example.com'
          ? Promise.reject(new Error('ENOTFOUND'))
          : Promise.resolve([{ address: '127.0.0.1', family: 4 }]),
    });
    await store.createDeployment(ann, { name: 'one' });
    await send();
    expect(await store.getWebhook(ann, stop.webhook.id)).toMatchObject({
      state: 'active',
      failing_since: expect.any(String),
      waiting: 1,
    });
    await advance(FAILING_MS);
    await store.createDeployment(ann, { name: 'two' });
    await send();
    expect(await store.getWebhook(ann, stop.webhook.id)).toMatchObject({
      state: 'disabled',
      reason: expect.stringMatching(
        /^no message was delivered since .*; last error: cannot resolve dead\.example\.com/,
      ),
      waiting: 0,
    });
    expect(logged).toContain('webhook disabled');
    expect((await store.getWebhook(ann, webhook.id)).state).toBe('active');
    expect((await deliveries(watcher)).map(({ event }) => event)).toEqual(['webhook.disabled']);
    const before = (await deliveries(stop.webhook)).length;
    await store.createDeployment(ann, { name: 'three' });
    await send();
    expect(await deliveries(stop.webhook)).toHaveLength(before);
    expect(await store.editWebhook(ann, stop.webhook.id, { enabled: true, url })).toMatchObject({
      state: 'active',
      reason: null,
      failing_since: null,
    });
    await store.createDeployment(ann, { name: 'four' });
    await send();
    expect((await deliveries(stop.webhook)).map(({ state }) => state)).toEqual([
      'delivered',
      ...Array<string>(before).fill('failed'),
    ]);
  });

  test('a slow webhook does not delay others', async () => {
    await create(['deployment.created']);
    await store.createWebhook(ann, { url: 'http://slow.example.com/', events: ['deployment.created'] });
    let release: (addresses: Address[]) => void = () => {};
    await sender.close();
    sender = openSender({
      resolve: (name) =>
        name === 'slow.example.com'
          ? new Promise((resolve) => {
              release = resolve;
            })
          : Promise.resolve([{ address: '127.0.0.1', family: 4 }]),
    });
    for (const name of ['one', 'two']) await store.createDeployment(ann, { name });
    const arrived = async (num: number) => {
      while (received.length < num) {
        await sender.poll();
        await new Promise(setImmediate);
      }
    };
    await arrived(2);
    expect(received.map(({ body }) => JSON.parse(body).data.name)).toEqual(['one', 'two']);
    release([{ address: '127.0.0.1', family: 4 }]);
  });

  test('bounds the queue and counts dropped events', async () => {
    const { webhook } = await create(['deployment.created']);
    const db = await openServiceDatabase(location);
    const { event_seq: seq } = await db.selectFrom('auth_state').select('event_seq').executeTakeFirstOrThrow();
    const more = 5;
    const rows = Array.from({ length: MAX_WAITING + more }, (_, i) => ({
      seq: seq + 1 + i,
      at: clock.now(),
      type: 'deployment.created',
      owner_id: ann.userId,
      target_type: 'deployment' as const,
      target_id: 'dep_x',
      data: '{}',
    }));
    for (let at = 0; at < rows.length; at += 500)
      await db
        .insertInto('events')
        .values(rows.slice(at, at + 500))
        .execute();
    await db
      .updateTable('auth_state')
      .set({ event_seq: seq + rows.length })
      .execute();
    await db.destroy();
    await store.queueWebhookEvents();
    expect(await store.getWebhook(ann, webhook.id)).toMatchObject({ waiting: MAX_WAITING, dropped: more });
  });

  test('refuses a name that resolves to a private address at delivery (DNS rebinding)', async () => {
    const answers: Address[][] = [[{ address: '93.184.215.14', family: 4 }], [{ address: '127.0.0.1', family: 4 }]];
    await sender.close();
    sender = openSender({ allowsPrivate: false, resolve: () => Promise.resolve(answers.shift()!) });
    await sender.check(url);
    const { webhook } = await create(['deployment.created']);
    await store.createDeployment(ann, { name: 'chat' });
    await send();
    expect(received).toEqual([]);
    expect((await deliveries(webhook))[0].attempts).toEqual([
      expect.objectContaining({
        status: null,
        error: expect.stringContaining('127.0.0.1, which is not a public address'),
      }),
    ]);
  });

  test('encrypts secrets in the database and keeps URLs out of events and the audit', async () => {
    const { webhook, secret } = await create(['*']);
    await store.editWebhook(ann, webhook.id, { events: ['key.*'] });
    await send();
    const db = await openServiceDatabase(location);
    const dump = JSON.stringify([
      await db.selectFrom('webhooks').select(['secret']).execute(),
      await db.selectFrom('events').selectAll().execute(),
      await db.selectFrom('audit_events').selectAll().execute(),
      await db.selectFrom('webhook_deliveries').selectAll().execute(),
    ]);
    await db.destroy();
    expect(dump).toContain('webhook.updated');
    for (const hidden of [secret, secret.replace('whsec_', ''), 'hush-hush']) expect(dump).not.toContain(hidden);
  });

  test('deletes old deliveries', async () => {
    const { webhook } = await create(['deployment.created']);
    await store.createDeployment(ann, { name: 'chat' });
    await send();
    expect(await deliveries(webhook)).toHaveLength(1);
    await advance(7 * 86_400_000 + 1);
    expect(await deliveries(webhook)).toEqual([]);
  });
});
