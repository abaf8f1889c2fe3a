/** Batches of the service: lines are requests of the key through the gateway. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type OpenAI from 'openai';
import type { Access } from '../../../../server/access';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { temporaryFolder } from '../../../fakes/temporary-folder';
import { tinyModel } from '../../../fakes/tiny-model';
import { mountSmallDisk } from '../../../models/small-disk';
import { BACKENDS, LAB } from '../../access/support';
import {
  chatLine,
  gate,
  ids,
  type Line,
  readResults,
  startBatch,
  until,
  upload,
} from '../../inference/batches/support';
import { closeAll } from '../gateway/support';
import {
  type BuiltinReplica,
  builtinTarget,
  type Kept,
  type KeptSetup,
  openTenants,
  type OwnerKey,
  slugOf,
  startBuiltin,
  startKept,
  type Tenant,
} from './support';

let engine: Engine;
let access: Access;
let tenants: Record<OwnerKey, Tenant>;
let replica: BuiltinReplica;
const open: Kept[] = [];

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
  ({ access, tenants } = await openTenants(await BACKENDS[0].make()));
  replica = await startBuiltin(engine);
});
beforeEach(() => fake.reset());
afterEach(async () => {
  for (const kept of open.splice(0)) await kept.close();
  await closeAll();
});
afterAll(async () => {
  await replica.close();
  await access.close();
  await engine.close();
  await BACKENDS[0].dispose();
});

async function start(fields: Partial<KeptSetup> = {}): Promise<Kept> {
  const kept = await startKept({ access, tenants, replica, ...fields });
  open.push(kept);
  return kept;
}

const line = (id: string, content = 'Hi', model = 'chat'): Line => chatLine(id, content, { model });
const CHAT = `/d/${slugOf('alice', 'chat')}`;

test('each line is a request of its key, and its result is there once', async () => {
  const kept = await start();
  const client = kept.client('alice');
  const lines = [line('a'), line('b', 'Hi', 'open'), line('c', 'Hi', 'unknown'), line('d', 'boom')];
  const batch = await until(client, await startBatch(client, lines), 'completed');
  expect(batch.request_counts).toEqual({ total: 4, completed: 2, failed: 2 });
  const results = await readResults(client, batch.output_file_id);
  expect(ids(results)).toEqual(['a', 'b']);
  expect(results[0].response).toMatchObject({ status_code: 200, body: { object: 'chat.completion' } });
  const errors = await readResults(client, batch.error_file_id);
  expect(Object.fromEntries(errors.map(({ custom_id: id, response }) => [id, response.status_code]))).toEqual({
    c: 404,
    d: 500,
  });
  expect(fake.requests.map(({ priority }) => priority)).toEqual([1, 1, 1]);
  const own = kept.records.filter(({ deploymentId }) => deploymentId === tenants.alice.chat.id);
  expect(own.map(({ status }) => status).sort()).toEqual([200, 500]);
  const [{ keyId, usage }] = own.filter(({ status }) => status === 200);
  expect([keyId, usage]).toEqual([expect.stringMatching(/^key_/), expect.objectContaining({ cachedTokens: 0 })]);
});

test('at the URL of a deployment, lines name its own models', async () => {
  const kept = await start();
  const client = kept.client('alice', CHAT);
  const lines = ['a', 'b'].map((id) => chatLine(id));
  const batch = await until(client, await startBatch(client, lines), 'completed');
  expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
  // The owner sees the same batch at both addresses.
  expect(await kept.client('alice').batches.retrieve(batch.id)).toEqual(batch);
  expect(kept.records.at(-1)).toMatchObject({ deploymentId: tenants.alice.chat.id });
});

test('lines for /v1/responses are kept as other responses', async () => {
  const kept = await start();
  const client = kept.client('alice');
  const { id: inputId } = await upload(client, [
    { custom_id: 'a', method: 'POST', url: '/v1/responses', body: { model: 'chat', input: 'Hi' } },
  ]);
  const order = { input_file_id: inputId, endpoint: '/v1/responses', completion_window: '24h' } as const;
  const batch = await until(client, await client.batches.create(order), 'completed');
  const [{ response }] = await readResults(client, batch.output_file_id);
  expect(await client.responses.retrieve(response.body.id)).toMatchObject({ store: true });
});

test("another owner's files and batches are 404 and in no list", async () => {
  const kept = await start();
  const held = gate();
  const client = kept.client('alice');
  const batch = await startBatch(client, [line('a', held.text)]);
  for (const who of ['bob', 'lab'] as const) {
    for (const path of ['', `/d/${slugOf(who, 'chat')}`]) {
      const other = kept.client(who, path);
      const order = { input_file_id: batch.input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' };
      for (const refused of [
        () => other.files.retrieve(batch.input_file_id),
        () => other.files.content(batch.input_file_id),
        () => other.files.delete(batch.input_file_id),
        () => other.batches.retrieve(batch.id),
        () => other.batches.cancel(batch.id),
        () => other.batches.create(order as OpenAI.BatchCreateParams),
      ])
        await expect(refused()).rejects.toMatchObject({ status: 404 });
      expect([(await other.files.list()).data, (await other.batches.list()).data]).toEqual([[], []]);
      await expect(other.files.list({ after: batch.input_file_id })).rejects.toMatchObject({ status: 400 });
    }
  }
  for (const path of [
    '/v1/files',
    '/v1/batches',
    `/v1/batches/${batch.id}`,
    `/v1/files/${batch.input_file_id}/content`,
  ])
    for (const prefix of ['', CHAT]) expect((await fetch(kept.url + prefix + path)).status).toBe(401);
  held.open();
  await until(client, batch, 'completed');
});

test('a batch wakes its deployment from zero, with one line', async () => {
  const targets = { tenants, replica };
  const held: number[] = [];
  const kept: Kept = await start({
    gateway: {
      onWake: () => {
        held.push(kept.gateway.numHeldRequests);
        setImmediate(() => setImmediate(() => kept.targets.set(builtinTarget('alice', 'chat', targets))));
      },
    },
  });
  kept.targets.set(builtinTarget('alice', 'chat', targets, { replicas: [], state: 'scaled_to_zero' }));
  kept.targets.set(builtinTarget('alice', 'open', targets, { replicas: [], state: 'scaled_to_zero' }));
  const client = kept.client('alice');
  const lines = Array.from({ length: 20 }, (_, i) => line(`${i}`));
  const batch = await until(client, await startBatch(client, lines), 'completed');
  expect(batch.request_counts).toEqual({ total: 20, completed: 20, failed: 0 });
  expect(kept.woken).toEqual([tenants.alice.chat.id]);
  expect(held).toEqual([0]);
});

test('a batch waits for a deployment that is stopped, and others run meanwhile', async () => {
  const kept = await start();
  kept.targets.set(builtinTarget('alice', 'chat', { tenants, replica }, { replicas: [], state: 'paused' }));
  const client = kept.client('alice');
  const waiting = await startBatch(client, [line('a')]);
  const other = await until(client, await startBatch(client, [line('b', 'Hi', 'open')]), 'completed');
  expect(other.request_counts!.completed).toBe(1);
  const { status, request_counts: counts } = await client.batches.retrieve(waiting.id);
  expect([status, counts]).toEqual(['in_progress', { total: 1, completed: 0, failed: 0 }]);
  await client.batches.cancel(waiting.id);
  expect((await until(client, waiting, 'cancelled')).request_counts!.completed).toBe(0);
});

test('lines of a deployment that is stopped do not hold up those of others in their batch', async () => {
  const kept = await start();
  kept.targets.set(builtinTarget('alice', 'chat', { tenants, replica }, { replicas: [], state: 'paused' }));
  const client = kept.client('alice');
  const lines = Array.from({ length: 40 }, (_, i) => line(`${i}`, 'Hi', i < 20 ? 'chat' : 'open'));
  const started = await startBatch(client, lines);
  while ((await client.batches.retrieve(started.id)).request_counts!.completed < 20);
  await client.batches.cancel(started.id);
  const batch = await until(client, started, 'cancelled');
  expect(batch.request_counts).toEqual({ total: 40, completed: 20, failed: 0 });
});

test('after the end of the service, lines without a result run again', async () => {
  const first = await start();
  const held = gate();
  const lines = [line('a'), line('b'), line('held', held.text)];
  const started = await startBatch(first.client('alice'), lines);
  while ((await first.client('alice').batches.retrieve(started.id)).request_counts!.completed < 2);
  await first.close();
  open.splice(0);
  const second = await start({ dataDir: first.dataDir });
  held.open();
  const client = second.client('alice');
  const batch = await until(client, started, 'completed');
  expect(ids(await readResults(client, batch.output_file_id))).toEqual(['a', 'b', 'held']);
  expect(batch.error_file_id).toBeNull();
});

test('limits of a key hold for lines, which wait for them', async () => {
  const { secret } = await access.createKey({
    owner: LAB,
    name: 'narrow',
    type: 'user-level',
    limits: { rpm: null, tpm: null, parallel: 1 },
  });
  const kept = await start();
  let most = 0;
  let numOpen = 0;
  fake.answer = () => {
    most = Math.max(most, ++numOpen);
    return { text: 'x', isOver: () => (numOpen--, true) };
  };
  const client = kept.client('lab').withOptions({ apiKey: secret });
  const batch = await until(client, await startBatch(client, [line('a'), line('b')]), 'completed');
  expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
  expect(most).toBe(1);
}, 30_000);

test('the batch of a key that is disabled fails, and keeps its results', async () => {
  const { key, secret } = await access.createKey({ owner: LAB, name: 'short', type: 'user-level' });
  const kept = await start();
  const held = gate();
  const client = kept.client('lab').withOptions({ apiKey: secret });
  const started = await startBatch(client, [line('a'), line('b', held.text), line('c')]);
  while ((await client.batches.retrieve(started.id)).request_counts!.completed < 2);
  await access.setKeyEnabled(key.id, false);
  const other = kept.client('lab');
  const batch = await until(other, started, 'failed');
  expect(batch.errors!.data![0].code).toBe('invalid_api_key');
  expect(ids(await readResults(other, batch.output_file_id))).toEqual(['a', 'c']);
  held.open();
});

test('one owner cannot take all places and all space', async () => {
  const kept = await start({ options: { batches: { maxOpenBatches: 4, maxStorageBytes: 40_000 } } });
  const held = gate();
  const alice = kept.client('alice');
  await startBatch(alice, [line('a', held.text)]);
  await expect(startBatch(alice, [line('a')])).rejects.toMatchObject({ status: 429, code: 'queue_full' });
  await expect(upload(alice, [line('x', 'x'.repeat(10_000))])).rejects.toMatchObject({
    status: 507,
    code: 'storage_full',
  });
  const bob = kept.client('bob');
  await until(bob, await startBatch(bob, [line('a')]), 'completed');
  held.open();
});

test('the results of one owner leave space for those of others', async () => {
  const kept = await start({ options: { batches: { maxOpenBatches: 8, maxStorageBytes: 40_000 } } });
  const alice = kept.client('alice');
  const lines = Array.from({ length: 30 }, (_, i) => line(`${i}`));
  const started = await startBatch(alice, lines);
  let batch = started;
  while (kept.log.warn.mock.calls.length === 0 && batch.status !== 'completed')
    batch = await alice.batches.retrieve(started.id);
  const warnings = kept.log.warn.mock.calls as [{ err: Error }][];
  expect(warnings.map(([{ err }]) => err.message)).toEqual([
    expect.stringMatching(/^The files of one owner, results of batches included, may take 10000 bytes together/),
  ]);
  expect((await alice.batches.retrieve(started.id)).status).toBe('in_progress');
  const bob = kept.client('bob');
  await until(bob, await startBatch(bob, [line('a')]), 'completed');
});

test('bodies and their sum are bounded', async () => {
  const kept = await start();
  const headers = { Authorization: `Bearer ${tenants.alice.key}`, 'Content-Type': 'application/json' };
  const large = await fetch(`${kept.url}/v1/batches`, { method: 'POST', headers, body: 'x'.repeat(1_100_000) });
  expect(large.status).toBe(413);
  const pieces = new ReadableStream({
    pull: (controller) => controller.enqueue(new Uint8Array(100_000)),
  });
  const chunked = await fetch(`${kept.url}/v1/batches`, {
    method: 'POST',
    headers,
    body: pieces,
    duplex: 'half',
  } as RequestInit);
  expect(chunked.status).toBe(413);
  expect((await fetch(`${kept.url}/v1/batches`, { method: 'PUT', headers })).status).toBe(405);
});

test('files and batches of a deleted owner are deleted, also while lines run', async () => {
  const first = await start();
  const alice = first.client('alice');
  const bob = first.client('bob');
  await until(bob, await startBatch(bob, [line('a')]), 'completed');
  await startBatch(bob, [line('a', 'forever')]);
  await until(alice, await startBatch(alice, [line('a')]), 'completed');
  await first.close();
  open.splice(0);
  let numReads = 0;
  const second = await start({
    dataDir: first.dataDir,
    options: {
      readOwners: () => Promise.resolve([tenants.alice.ownerId, ...(numReads++ < 0 ? [tenants.bob.ownerId] : [])]),
      sweepMs: 1,
    },
  });
  const folder = join(first.dataDir, 'batches');
  const records = () =>
    readdirSync(join(folder, 'batches')).map((name) => readFileSync(join(folder, 'batches', name), 'utf8'));
  while (records().some((text) => text.includes(tenants.bob.ownerId)))
    await new Promise((resolve) => setTimeout(resolve, 5));
  const files = readdirSync(join(folder, 'files')).filter((name) => name.endsWith('.json'));
  while (readdirSync(join(folder, 'files')).filter((name) => name.endsWith('.json')).length > 2)
    await new Promise((resolve) => setTimeout(resolve, 5));
  expect(files.length).toBeGreaterThanOrEqual(2);
  expect((await second.client('alice').batches.list()).data).toHaveLength(1);
});

test('files and batches of deleted owners are deleted on a full disk, also while lines run', async () => {
  const folder = temporaryFolder('small-disk');
  const disk = mountSmallDisk(folder, 4);
  if (disk === undefined) {
    // This machine does not allow mounts.
    expect(spawnSync('mount', ['-t', 'tmpfs', 'tmpfs', folder]).status).not.toBe(0);
    return;
  }
  try {
    const dataDir = join(folder, 'data');
    mkdirSync(dataDir);
    const kept = await start({ dataDir, options: { sweepMs: 1 } });
    for (const who of ['bob', 'lab'] as const) {
      const client = kept.client(who);
      await until(client, await startBatch(client, [line('a')]), 'completed');
      const running = await startBatch(client, [line('a'), line('b', 'forever')]);
      while ((await client.batches.retrieve(running.id)).request_counts!.completed < 1);
    }
    const alice = kept.client('alice');
    await until(alice, await startBatch(alice, [line('a')]), 'completed');
    disk.fill();
    kept.owners.splice(0, 3, tenants.alice.ownerId);
    // A change makes the service look for deleted owners.
    await access.createKey({ owner: LAB, name: 'any', type: 'user-level' });
    const names = () => ['files', 'batches'].map((kind) => readdirSync(join(dataDir, 'batches', kind)).length);
    // The input and the output of Alice, with their records.
    while (JSON.stringify(names()) !== '[4,1]') await new Promise((resolve) => setTimeout(resolve, 5));
    expect((await alice.batches.list()).data).toHaveLength(1);
  } finally {
    disk.empty();
    for (const kept of open.splice(0)) await kept.close();
    disk.remove();
  }
});
