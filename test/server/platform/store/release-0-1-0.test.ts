/**
 * A database that release 0.1.0 wrote, opened by this release. `fixtures/release-0.1.0.sql` is its dump. It has two
 * deployments, an organization, two users, keys of each kind, requests, a webhook and a container. The service ended
 * while its replicas ran.
 */
import fs from 'node:fs';
import path from 'node:path';
import { Access } from '../../../../server/access';
import { LibsqlDatabase } from '../../../../server/access/store/database';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { DEFAULT_CONTROL_POLICY } from '../../../../server/platform/control/records';
import { SERVICE_COMPONENTS } from '../../../../server/platform/store/change';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { bearer, makeFolder } from '../../access/support';
import { Person, Service } from '../api/support';
import { actorOf, machine } from '../support';

/** The key of the secrets in the database. */
const SECRET_KEY = Buffer.from('b14e1020b7c8f272bfecc31b2525ea02471a156dddb302ddb74a132fed0f995c', 'hex');
/** A minute after the last change of the service. */
const NOW = Date.parse('2026-11-24T12:43:00Z');
const ADA = {
  userId: 'usr_01m86s362gmymr9rgqd481g199',
  email: 'ada@example.com',
  password: 'correct horse battery 010',
};
const BOB = { userId: 'usr_01m86s6ewz650kjgcvyz3788a1', email: 'bob@example.com', password: 'battery staple 010' };
const TOKEN = 'mt-oaKEndH94m1uKIOOb1NfEA03DEXhAIOoOseRrgPzbLy';
const LAB = 'org_01m86s4x82y1eypb6en45gdyee';
const CHAT = { id: 'dep_01m86s4v93dcgafzvtvs2bnr2w', ownerId: ADA.userId };
const SHARED = { id: 'dep_01m86s4zh2h8b2hn0txgnb4yj4', ownerId: LAB };
const REPLICA = 'rep_01m86s68nbqdvwx5k4csrm225j';

/** The secrets of the keys, and the status of a request to each deployment. `later` expires in 2099. */
const KEYS: readonly [name: string, secret: string, chat: number, shared: number][] = [
  ['user-level', 'sk-cap1_pxTyhXiCh5dG_mdGkL35z55E4g3WJ0aq4pXCEiYAlNrHk1qbIkn', 200, 403],
  ['bound to chat', 'sk-cap1_Et3HCxwqYMUq_uQpUh5ldOYzlww82TWhyS3fTVSk2p5kx4UWeJO', 200, 403],
  ['user-level of lab', 'sk-cap1_nAgXP7awNs8l_PRvIOHrkvPJVCe38IaJ1SJmgy84ZMCGh2hgOm8', 403, 200],
  ['bound to shared', 'sk-cap1_dZjX5N1ygg7m_0xrB7QbRBS5GFpMOwzc32zJrRvKWhL1r2GvUlM', 403, 200],
  ['disabled', 'sk-cap1_q1KE36JrKSGU_NoHA078A8cZdRQSJDGZgMxQIng0KTY1H45e6aH', 401, 401],
  ['expired', 'sk-cap1_4yY85jNAeCRd_rlbOZe3uc4q6NCgTvYFHCoED1W8zmap74XqRAT', 401, 401],
  ['later', 'sk-cap1_Mt5KJjgMwyvM_LLrye03r6YJIqIIDYdXgbFicOmn52odP2VH0eS', 200, 403],
  ['rotated, old secret', 'sk-cap1_01xzyI4KQ974_JoMZCcgAY5i2KoKDcxU5MpUmdaFPCvLW0tF2OL', 200, 403],
  ['rotated, new secret', 'sk-cap1_01xzyI4KQ974_2IURAG510fg6qzRVYD1BBAS8WFFJfcuY147kEV', 200, 403],
  ['deleted', 'sk-cap1_uFlDHDmOFKR1_OHAJTXQHHtl8OMW5ygNaRxBzJxlV1cf43pl07f', 401, 401],
];

let location: Extract<DatabaseLocation, { kind: 'file' }>;
let store: ServiceStore;
let access: Access;
let service: Service;

beforeAll(async () => {
  location = { kind: 'file', file: path.join(makeFolder(), 'capstan.db') };
  const raw = new LibsqlDatabase(location.file);
  // The dump lists the tables by name.
  raw.pragma('foreign_keys = OFF');
  raw.exec(fs.readFileSync(path.join(__dirname, 'fixtures/release-0.1.0.sql'), 'utf8'));
  raw.close();
  store = await openServiceStore({ location, secretKey: SECRET_KEY, version: '0.2.0', machine: machine() }, () => NOW);
  access = await Access.open({ store, now: () => NOW });
  service = await Service.open({}, location, undefined, store);
});
afterAll(async () => {
  await access.close();
  await service.close();
});

const ada = actorOf(ADA.userId, { isAdmin: true });

test('the tables are those of this release', () => {
  const raw = new LibsqlDatabase(location.file);
  const versions = raw.prepare('select component, version from schema_versions order by component').all();
  const violations = raw.pragma('foreign_key_check');
  raw.close();
  expect(versions).toEqual(
    SERVICE_COMPONENTS.map(({ name, steps }) => ({ component: name, version: steps.length })).sort((a, b) =>
      a.component.localeCompare(b.component),
    ),
  );
  expect(violations).toEqual([]);
});

test.each(KEYS)('the key %s is accepted and refused as before', async (_name, secret, chat, shared) => {
  const statusAt = async (target: { id: string; ownerId: string }) => {
    const outcome = await access.check({ ...bearer(secret), remoteAddress: '127.0.0.1' }, target);
    return outcome.ok ? 200 : outcome.status;
  };
  expect([await statusAt(CHAT), await statusAt(SHARED)]).toEqual([chat, shared]);
});

test('a key keeps its limits, its networks, its budget and its use', async () => {
  expect(await store.getKey('bound')).toMatchObject({
    type: 'deployment-level',
    owner: { type: 'user', name: ADA.email },
    deployments: [{ id: CHAT.id, name: 'chat' }],
    limits: { rpm: 1_000, tpm: 100_000, parallel: 8 },
    allowedCidrs: ['127.0.0.0/8'],
    budget: { tokens: 1_000_000, period: 'day' },
    lastUsedIp: '127.0.0.1',
  });
  expect(await access.check(bearer(KEYS[1][1]), CHAT)).toMatchObject({ ok: false, code: 'ip_not_allowed' });
});

test('versions and their secrets are as before', async () => {
  const { data } = await store.pageVersions(ada, CHAT.id, { limit: 10 });
  expect(data).toMatchObject([
    {
      number: 2,
      state: 'running',
      is_active: true,
      note: 'second',
      spec: { runtime: { max_model_len: 1_024, task: null } },
    },
    { number: 1, state: 'stopped', is_active: false, spec: { env: { PLAIN: '1' } } },
  ]);
  expect(await store.readLaunch(REPLICA)).toMatchObject({
    env: { PLAIN: '1', SECRET: 'swordfish' },
    runtimeArgs: expect.not.arrayContaining(['--task']) as string[],
  });
});

test.each([
  [ADA, 'owner'],
  [BOB, 'developer'],
])('%j signs in and has the same role', async ({ userId, email, password }, role) => {
  const person = new Person(service, userId, email);
  expect((await person.signIn(password)).status).toBe(204);
  expect((await person.signIn('wrong wrong wrong')).status).toBe(401);
  const members = await person.get(`/api/v1/orgs/${LAB}/members`);
  expect(members.body.data).toContainEqual(expect.objectContaining({ user_id: userId, role }));
});

test('the quotas of an account are kept, and new ones are open', async () => {
  const { body } = await service.send('GET', `/api/v1/quotas/${BOB.userId}`, {
    headers: { authorization: `Bearer ${TOKEN}` },
  });
  expect(body).toMatchObject({ quota_deployments: 3, quota_gpu: null, quota_versions: null });
});

test('every list answers for the management token', async () => {
  const get = async (target: string) =>
    service.send('GET', `/api/v1${target}`, { headers: { authorization: `Bearer ${TOKEN}` } });
  const counts = {
    '/deployments': 2,
    [`/deployments/${CHAT.id}/versions`]: 2,
    '/containers': 1,
    // The built-in runtime of this release is a further image.
    '/images': 3,
    '/orgs': 1,
    '/tokens': 1,
    '/keys?scope=user': 6,
    [`/keys?scope=org&org=${LAB}`]: 2,
    '/webhooks': 1,
    '/quotas': 3,
  };
  const found: Record<string, number> = {};
  for (const target of Object.keys(counts)) {
    const { status, body } = await get(target);
    expect([target, status]).toEqual([target, 200]);
    found[target] = body.data.length;
  }
  expect(found).toEqual(counts);
  for (const target of ['/me', '/audit', `/deployments/${CHAT.id}/events`, '/compute'])
    expect([target, (await get(target)).status]).toEqual([target, 200]);
});

test('requests of the last minutes are in the metrics', async () => {
  const { body } = await service.send(
    'GET',
    `/api/v1/deployments/${CHAT.id}/metrics?from=2026-11-24T12:00:00Z&to=2026-11-24T13:00:00Z`,
    { headers: { authorization: `Bearer ${TOKEN}` } },
  );
  const totals = body.keys.map(({ name, requests }: { name: string | null; requests: number }) => [name, requests]);
  expect(Object.fromEntries(totals)).toEqual({
    bound: 1,
    later: 1,
    rotated: 2,
    user: 1,
    null: 5,
  });
});

test('waiting webhook deliveries are signed with their secret', async () => {
  const messages = await store.takeWebhookMessages([], 10);
  expect(JSON.stringify(messages)).toContain('whsec_3NCBcdy7dGulTO/ctfYTLKSFsBTgxZlZ+jQzkrC49eU=');
});

test('the audit log is complete', async () => {
  expect(await store.verifyAudit()).toBeUndefined();
});

test('the control loop continues: a replica that is lost starts again', async () => {
  const epoch = await store.takeLease('gtw_new', await store.readLease());
  const step = () =>
    store.reconcileDeployment(
      { epoch: epoch!, startedAt: NOW },
      CHAT.id,
      [
        { type: 'lost', replicaId: REPLICA },
        { type: 'gone', replicaId: REPLICA },
      ],
      { numOpen: 0, lastAt: NOW, minOpen: 0, maxOpen: 0 },
      DEFAULT_CONTROL_POLICY,
    );
  await step();
  expect(await store.getVersion(ada, CHAT.id, 2)).toMatchObject({ state: 'starting', replicas: [{ ordinal: 0 }] });
  expect(await store.getDeployment(ada, SHARED.id)).toMatchObject({ state: 'running', idle_timeout_s: 900 });
});
