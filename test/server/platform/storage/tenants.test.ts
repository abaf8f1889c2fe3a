/**
 * Every route for what is kept, both addresses: an object of another owner responds as if it did not exist, and so does
 * one of the same owner that a key for some deployments may not have. The cases come from the lists of routes, so a new
 * route without an entry fails.
 */
import OpenAI from 'openai';
import type { Access } from '../../../../server/access';
import { batchRoutes } from '../../../../server/storage/batches/routes';
import { STORED_COMPLETION_ROUTES } from '../../../../server/storage/responses/stored-completions';
import { STORED_RESPONSE_ROUTES } from '../../../../server/storage/responses/stored-responses';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { tinyModel } from '../../../fakes/tiny-model';
import { overBackends } from '../../access/support';
import { chatLine, startBatch, until } from '../../inference/batches/support';
import { closeAll } from '../gateway/support';
import {
  builtinTarget,
  type BuiltinReplica,
  type Kept,
  openTenants,
  type OwnerKey,
  OWNERS,
  slugOf,
  startBuiltin,
  startKept,
  type Tenant,
} from './support';

/** Objects of Alice. */
interface Objects {
  completion: string;
  response: string;
  file: string;
  batch: string;
}

interface Case {
  path: (objects: Objects) => string;
  body?: (objects: Objects) => object;
  /** What another owner gets. `list`: a list without the objects. */
  foreign: 404 | 'list' | 'own';
}

const BATCH = { endpoint: '/v1/chat/completions', completion_window: '24h' };
const CASES: Readonly<Record<string, Case>> = {
  'GET /v1/responses/{response_id}': { path: ({ response }) => `/v1/responses/${response}`, foreign: 404 },
  'DELETE /v1/responses/{response_id}': { path: ({ response }) => `/v1/responses/${response}`, foreign: 404 },
  'POST /v1/responses/{response_id}/cancel': {
    path: ({ response }) => `/v1/responses/${response}/cancel`,
    foreign: 404,
  },
  'GET /v1/responses/{response_id}/input_items': {
    path: ({ response }) => `/v1/responses/${response}/input_items`,
    foreign: 404,
  },
  'GET /v1/chat/completions': { path: () => '/v1/chat/completions', foreign: 'list' },
  'GET /v1/chat/completions/{completion_id}': {
    path: ({ completion }) => `/v1/chat/completions/${completion}`,
    foreign: 404,
  },
  'POST /v1/chat/completions/{completion_id}': {
    path: ({ completion }) => `/v1/chat/completions/${completion}`,
    body: () => ({ metadata: { stolen: 'yes' } }),
    foreign: 404,
  },
  'DELETE /v1/chat/completions/{completion_id}': {
    path: ({ completion }) => `/v1/chat/completions/${completion}`,
    foreign: 404,
  },
  'GET /v1/chat/completions/{completion_id}/messages': {
    path: ({ completion }) => `/v1/chat/completions/${completion}/messages`,
    foreign: 404,
  },
  'POST /v1/responses': {
    path: () => '/v1/responses',
    body: ({ response }) => ({ input: 'x', previous_response_id: response }),
    foreign: 404,
  },
  'POST /v1/responses/input_tokens': {
    path: () => '/v1/responses/input_tokens',
    body: ({ response }) => ({ input: 'x', previous_response_id: response }),
    foreign: 404,
  },
  // Makes an object of the caller.
  'POST /v1/files': { path: () => '/v1/files', foreign: 'own' },
  'GET /v1/files': { path: () => '/v1/files', foreign: 'list' },
  'GET /v1/files/{file_id}': { path: ({ file }) => `/v1/files/${file}`, foreign: 404 },
  'GET /v1/files/{file_id}/content': { path: ({ file }) => `/v1/files/${file}/content`, foreign: 404 },
  'DELETE /v1/files/{file_id}': { path: ({ file }) => `/v1/files/${file}`, foreign: 404 },
  'POST /v1/batches': {
    path: () => '/v1/batches',
    body: ({ file }) => ({ ...BATCH, input_file_id: file }),
    foreign: 404,
  },
  'GET /v1/batches': { path: () => '/v1/batches', foreign: 'list' },
  'GET /v1/batches/{batch_id}': { path: ({ batch }) => `/v1/batches/${batch}`, foreign: 404 },
  'POST /v1/batches/{batch_id}/cancel': { path: ({ batch }) => `/v1/batches/${batch}/cancel`, foreign: 404 },
};

const routes = [
  { method: 'POST', path: '/v1/responses' },
  { method: 'POST', path: '/v1/responses/input_tokens' },
  ...STORED_RESPONSE_ROUTES,
  ...STORED_COMPLETION_ROUTES,
  ...batchRoutes(() => {
    throw new Error('no route is called here');
  }),
].map(({ method, path }) => `${method} ${path}`);

test('every route has an entry, and every entry a route', () => {
  expect(Object.keys(CASES).sort()).toEqual([...routes].sort());
});

overBackends((make) => {
  let engine: Engine;
  let access: Access;
  let tenants: Record<OwnerKey, Tenant>;
  let replica: BuiltinReplica;
  let kept: Kept;
  let alice: OpenAI;
  let objects: Objects;
  /** Another deployment of Alice, and a key for it alone. */
  let lab: { id: string; ownerId: string };
  let labKey: string;

  beforeAll(async () => {
    process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
    fake.reset();
    engine = await Engine.load(tinyModel());
    ({ access, tenants } = await openTenants(await make()));
    replica = await startBuiltin(engine);
    kept = await startKept({ access, tenants, replica });
    lab = await access.openDeployment(OWNERS.alice, 'lab');
    kept.targets.set(
      builtinTarget('alice', 'chat', { tenants, replica }, { deploymentId: lab.id, slug: 'alice-lab', name: 'lab' }),
    );
    labKey = (
      await access.createKey({ owner: OWNERS.alice, name: 'lab', type: 'deployment-level', deployments: [lab.id] })
    ).secret;
    alice = kept.client('alice');
    const response = await alice.responses.create({ model: 'chat', input: 'secret' });
    const batch = await until(alice, await startBatch(alice, [chatLine('a', 'Hi', { model: 'chat' })]), 'completed');
    const completion = await alice.chat.completions.create({
      model: 'chat',
      messages: [{ role: 'user', content: 'secret' }],
      store: true,
    });
    objects = { completion: completion.id, response: response.id, file: batch.input_file_id, batch: batch.id };
  });
  afterAll(async () => {
    await kept.close();
    await closeAll();
    await replica.close();
    await access.close();
    await engine.close();
  });

  async function checkUnchanged(): Promise<void> {
    expect(await alice.responses.retrieve(objects.response)).toMatchObject({ id: objects.response });
    expect(await alice.chat.completions.retrieve(objects.completion)).toMatchObject({ metadata: {} });
    expect(await alice.files.retrieve(objects.file)).toMatchObject({ id: objects.file });
    expect(await alice.batches.retrieve(objects.batch)).toMatchObject({ status: 'completed' });
  }

  const send = (key: string | undefined, prefix: string, name: string, deployment = 'chat') => {
    const { path, body } = CASES[name];
    const [method] = name.split(' ');
    const model = prefix === '' ? deployment : 'tiny';
    const sent = body === undefined ? undefined : JSON.stringify({ model, ...body(objects) });
    return fetch(kept.url + prefix + path(objects), {
      method,
      headers: {
        ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }),
        ...(sent === undefined ? {} : { 'Content-Type': 'application/json' }),
      },
      ...(sent === undefined ? {} : { body: sent }),
    });
  };

  test.each(Object.keys(CASES))('%s', async (name) => {
    const { foreign } = CASES[name];
    const own = `/d/${slugOf('alice', 'chat')}`;
    for (const who of ['bob', 'lab'] as const) {
      const { key } = tenants[who];
      for (const prefix of ['', `/d/${slugOf(who, 'chat')}`]) {
        const response = await send(key, prefix, name);
        const text = await response.text();
        for (const id of Object.values(objects)) if (foreign === 'list') expect(text).not.toContain(id);
        if (foreign === 404) expect([prefix, response.status]).toEqual([prefix, 404]);
        if (foreign === 'list') expect(JSON.parse(text)).toMatchObject({ data: [] });
      }
      expect((await send(key, own, name)).status).toBe(403);
    }
    for (const prefix of ['', own]) expect((await send(undefined, prefix, name)).status).toBe(401);
    await checkUnchanged();
  });

  test.each(Object.keys(CASES))('%s with a key for another deployment of the same owner', async (name) => {
    const { foreign } = CASES[name];
    for (const prefix of ['', `/d/${'alice-lab'}`]) {
      const response = await send(labKey, prefix, name, 'lab');
      const text = await response.text();
      for (const id of Object.values(objects)) if (foreign === 'list') expect(text).not.toContain(id);
      if (foreign === 404) expect([prefix, response.status]).toEqual([prefix, 404]);
      if (foreign === 'list') expect([prefix, JSON.parse(text)]).toMatchObject([prefix, { data: [] }]);
    }
    expect((await send(labKey, `/d/${slugOf('alice', 'chat')}`, name)).status).toBe(403);
    await checkUnchanged();
  });

  test('a key has what keys for the same deployments made, and what was made at the URL of one', async () => {
    const both = await access.createKey({
      owner: OWNERS.alice,
      name: 'both',
      type: 'deployment-level',
      deployments: [tenants.alice.chat.id, lab.id],
    });
    const lines = [chatLine('a', 'Hi', { model: 'chat' }), chatLine('b', 'Hi', { model: 'lab' })];
    const clientOf = (apiKey: string, path = '') =>
      new OpenAI({ baseURL: `${kept.url}${path}/v1`, apiKey, maxRetries: 0 });
    const mine = clientOf(both.secret);
    const ofBoth = await until(mine, await startBatch(mine, lines), 'completed');
    const ofLab = clientOf(labKey);
    const refused = await until(ofLab, await startBatch(ofLab, lines), 'completed');
    // The line of the other deployment is an error.
    expect(refused.request_counts).toMatchObject({ completed: 1, failed: 1 });
    const atUrl = clientOf(tenants.alice.key, `/d/${'alice-lab'}`);
    const ofUrl = await until(atUrl, await startBatch(atUrl, [chatLine('a', 'Hi', { model: 'tiny' })]), 'completed');
    const idsOf = async (client: OpenAI) => (await client.batches.list()).data.map(({ id }) => id);
    expect(await idsOf(ofLab)).toEqual([ofUrl.id, refused.id]);
    expect(await idsOf(mine)).toEqual([ofUrl.id, refused.id, ofBoth.id]);
    expect(await idsOf(alice)).toEqual([ofUrl.id, refused.id, ofBoth.id, objects.batch]);
    const contentStatus = (client: OpenAI, id: string | null | undefined) =>
      client.files.content(id!).then(
        ({ status }) => status,
        (error: { status: number }) => error.status,
      );
    for (const client of [ofLab, mine, alice]) {
      expect(await contentStatus(client, ofUrl.output_file_id)).toBe(200);
      expect(await contentStatus(client, refused.error_file_id)).toBe(200);
    }
    expect(await contentStatus(ofLab, ofBoth.output_file_id)).toBe(404);
    expect(await contentStatus(mine, ofBoth.output_file_id)).toBe(200);
    expect(await contentStatus(mine, objects.file)).toBe(404);
  });

  test('a conversation does not continue over a response that the key may not have', async () => {
    const first = await alice.responses.create({ model: 'chat', input: 'secret' });
    const second = await alice.responses.create({ model: 'lab', input: 'And?', previous_response_id: first.id });
    const { responses } = new OpenAI({ baseURL: `${kept.url}/v1`, apiKey: labKey, maxRetries: 0 });
    expect(await responses.retrieve(second.id)).not.toHaveProperty('deployment_id');
    await expect(responses.create({ model: 'lab', input: 'x', previous_response_id: second.id })).rejects.toMatchObject(
      { status: 404, code: 'response_not_found' },
    );
    const [item] = first.output;
    await expect(
      responses.create({ model: 'lab', input: [{ type: 'item_reference', id: item.id! }] }),
    ).rejects.toMatchObject({ status: 404 });
    const own = await responses.create({ model: 'lab', input: 'mine' });
    expect(await responses.create({ model: 'lab', input: 'x', previous_response_id: own.id })).toMatchObject({
      previous_response_id: own.id,
    });
    await responses.delete(own.id);
    await alice.responses.delete(first.id);
    await alice.responses.delete(second.id);
  });
});
