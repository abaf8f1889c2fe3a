/**
 * Two owners, every route for what is kept, both addresses: an object of the other owner responds as if it did not
 * exist. The cases come from the lists of routes, so a new route without an entry fails.
 */
import type OpenAI from 'openai';
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
  type BuiltinReplica,
  type Kept,
  openTenants,
  type OwnerKey,
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

  beforeAll(async () => {
    process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
    fake.reset();
    engine = await Engine.load(tinyModel());
    ({ access, tenants } = await openTenants(await make()));
    replica = await startBuiltin(engine);
    kept = await startKept({ access, tenants, replica });
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

  const send = (key: string | undefined, prefix: string, name: string) => {
    const { path, body } = CASES[name];
    const [method] = name.split(' ');
    const model = prefix === '' ? 'chat' : 'tiny';
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
    expect(await alice.responses.retrieve(objects.response)).toMatchObject({ id: objects.response });
    expect(await alice.chat.completions.retrieve(objects.completion)).toMatchObject({ metadata: {} });
    expect(await alice.files.retrieve(objects.file)).toMatchObject({ id: objects.file });
    expect(await alice.batches.retrieve(objects.batch)).toMatchObject({ status: 'completed' });
  });
});
