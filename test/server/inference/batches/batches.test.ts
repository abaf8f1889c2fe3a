/** Files and batches, through the official client. */
import type OpenAI from 'openai';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { loadPoolingEngine } from '../../../fakes/pooling-engine';
import { tinyModel } from '../../../fakes/tiny-model';
import { chatLine, gate, ids, openServer, readResults, type Setup, startBatch, until, upload } from './support';

/** The end of a multipart body with the boundary x. */
const END = '--x--\r\n';
let engine: Engine;
type Server = Awaited<ReturnType<typeof openServer>>;
const servers: Server[] = [];

async function serve(setup: Partial<Setup> = {}): Promise<Server> {
  const server = await openServer({ engine, ...setup });
  servers.push(server);
  return server;
}

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => fake.reset());
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close();
});
afterAll(() => engine.close());

describe.each(['uws', 'node'] as const)('over %s', (transport) => {
  test('runs the lines of a file, and writes results and errors by line', async () => {
    const server = await serve({ transport });
    const client = server.client();
    const lines = [
      chatLine('first', 'Hi', { seed: 7, max_tokens: 5 }),
      '',
      JSON.stringify(chatLine('exact')).replace('"body":{', '"body": {"seed":1152921504606846977,'),
      chatLine('unknown', 'Hi', { model: 'other' }),
      chatLine('streamed', 'Hi', { stream: true }),
      chatLine('broken', 'boom'),
    ];
    const input = await upload(client, lines, 'Größe 😀.jsonl');
    expect(input).toMatchObject({ object: 'file', purpose: 'batch', filename: 'Größe 😀.jsonl', status: 'processed' });
    expect(await client.files.retrieve(input.id)).toEqual(input);
    expect((await readResults(client, input.id)).length).toBe(5);
    const created = await client.batches.create({
      input_file_id: input.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      metadata: { team: 'a' },
    });
    expect(created).toMatchObject({
      object: 'batch',
      input_file_id: input.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      metadata: { team: 'a' },
      output_file_id: null,
      errors: null,
    });
    expect(created.expires_at! - created.created_at).toBe(86_400);
    const batch = await until(client, created, 'completed');
    expect(batch.request_counts).toEqual({ total: 5, completed: 2, failed: 3 });
    expect(batch.completed_at).toBeGreaterThanOrEqual(batch.in_progress_at!);

    const results = await readResults(client, batch.output_file_id);
    expect(ids(results)).toEqual(['exact', 'first']);
    for (const { id, response, error } of results) {
      expect(error).toBeNull();
      expect(response).toMatchObject({ status_code: 200, request_id: id });
      expect(response.body).toMatchObject({ object: 'chat.completion', model: 'tiny', id: `chatcmpl-${id}` });
    }
    expect(new Set(fake.requests.map(({ priority }) => priority))).toEqual(new Set([1]));
    expect(fake.requests.map(({ sampling }) => sampling.seed)).toContain(1152921504606846977n);

    const errors = await readResults(client, batch.error_file_id);
    expect(Object.fromEntries(errors.map((line) => [line.custom_id, line.response.body.error.code]))).toEqual({
      unknown: 'model_not_found',
      streamed: 'invalid_value',
      broken: 'internal_error',
    });
    const output = await client.files.retrieve(batch.output_file_id!);
    expect(output).toMatchObject({ purpose: 'batch_output', filename: `${batch.id}_output.jsonl` });
    expect(await client.files.delete(output.id)).toEqual({ id: output.id, object: 'file', deleted: true });
    await expect(client.files.content(output.id)).rejects.toMatchObject({ status: 404, code: 'file_not_found' });
    await client.files.delete(input.id);
    expect((await client.files.list()).data.map(({ id }) => id)).toEqual([batch.error_file_id]);
  });
});

test('reads a file of Windows, with a byte order mark and CRLF', async () => {
  const client = (await serve()).client();
  const lines = ['a', 'b'].map((id) => `${JSON.stringify(chatLine(id))}\r`);
  const done = await until(client, await startBatch(client, [`\uFEFF${lines[0]}`, lines[1], '\r']), 'completed');
  expect(ids(await readResults(client, done.output_file_id))).toEqual(['a', 'b']);
});

test('runs completions, and embeddings of a model that has them', async () => {
  const client = (await serve()).client();
  const line = { custom_id: 'a', method: 'POST', url: '/v1/completions', body: { prompt: 'One', max_tokens: 3 } };
  const done = await until(client, await startBatch(client, [line], { endpoint: '/v1/completions' }), 'completed');
  expect((await readResults(client, done.output_file_id))[0].response.body.object).toBe('text_completion');

  const pooling = await loadPoolingEngine('embed');
  const embedder = (await serve({ engine: pooling })).client();
  const input = { custom_id: 'b', method: 'POST', url: '/v1/embeddings', body: { input: ['One', 'Two'] } };
  const batch = await startBatch(embedder, [input], { endpoint: '/v1/embeddings' });
  const embedded = await until(embedder, batch, 'completed');
  expect((await readResults(embedder, embedded.output_file_id))[0].response.body.data).toHaveLength(2);
  await pooling.close();
});

test.each<[string, string[], object[]]>([
  ['nothing', [' ', ''], [{ code: 'empty_file', line: null }]],
  [
    'no JSON',
    ['{"custom_id":', '[]'],
    [
      { code: 'invalid_json_line', line: 1 },
      { code: 'invalid_json_line', line: 2 },
    ],
  ],
  [
    'lines of other kinds',
    [
      { ...chatLine('a'), custom_id: 1 },
      { ...chatLine('a'), custom_id: '' },
      { ...chatLine('a'), method: 'GET' },
      { ...chatLine('a'), url: '/v1/completions' },
      { ...chatLine('a'), body: [] },
      chatLine('a'),
      chatLine('b'),
      chatLine('a'),
    ].map((line) => JSON.stringify(line)),
    [
      { code: 'invalid_custom_id', line: 1, param: 'custom_id' },
      { code: 'invalid_custom_id', line: 2, param: 'custom_id' },
      { code: 'invalid_method', line: 3, param: 'method' },
      { code: 'mismatched_endpoint', line: 4, param: 'url' },
      { code: 'invalid_body', line: 5, param: 'body' },
      { code: 'duplicate_custom_id', line: 8, param: 'custom_id' },
    ],
  ],
  [
    'too many lines',
    Array.from({ length: 50_001 }, (_, i) => JSON.stringify({ ...chatLine(`${i}`), body: {} })),
    [{ code: 'too_many_lines', line: null }],
  ],
  [
    'lines that are too long',
    [
      JSON.stringify(chatLine('a', 'x'.repeat((8 << 20) + 1))),
      '{',
      ' '.repeat((8 << 20) + 1),
      JSON.stringify(chatLine('b', 'x'.repeat(7 << 20))),
    ],
    [
      { code: 'line_too_long', line: 1, message: expect.stringContaining('8388608 bytes') },
      { code: 'invalid_json_line', line: 2 },
      { code: 'line_too_long', line: 3 },
    ],
  ],
  ['too many blank lines', Array.from({ length: 100_002 }, () => ''), [{ code: 'too_many_lines', line: null }]],
  [
    'lines that take long to parse',
    [
      `{"custom_id": "a", "body": ${'['.repeat(300)}${']'.repeat(300)}}`,
      `{"custom_id": "a", "body": [${'[],'.repeat(100_000)}[]]}`,
      `{"custom_id": "a", "body": {${'"a":1,'.repeat(100_000)}"a":1}}`,
    ],
    [1, 2, 3].map((line) => ({ code: 'invalid_json_line', line, message: expect.stringContaining('256 levels') })),
  ],
  [
    'too many models',
    Array.from({ length: 101 }, (_, i) => JSON.stringify(chatLine(`${i}`, 'Hi', { model: `m${i}` }))),
    [{ code: 'too_many_models', line: 101, param: 'model' }],
  ],
  [
    'too many errors',
    Array.from({ length: 200 }, () => '{'),
    Array.from({ length: 100 }, () => ({ code: 'invalid_json_line' })),
  ],
])('a file with %s fails before a line runs', async (_name, lines, errors) => {
  const client = (await serve()).client();
  const batch = await until(client, await startBatch(client, lines), 'failed');
  expect(batch.errors!.data).toEqual(errors.map((error) => expect.objectContaining(error)));
  expect([batch.output_file_id, batch.error_file_id, fake.requests.length]).toEqual([null, null, 0]);
  expect(batch.failed_at).toBeGreaterThan(0);
});

test('files and batches of another owner do not exist', async () => {
  const server = await serve({ hasAccess: true });
  const [alice, bob] = [server.client('alice'), server.client('bob')];
  const batch = await until(alice, await startBatch(alice, [chatLine('a')]), 'completed');
  const notFound = (code: string) => ({ status: 404, code });
  await expect(bob.batches.retrieve(batch.id)).rejects.toMatchObject(notFound('batch_not_found'));
  await expect(bob.batches.cancel(batch.id)).rejects.toMatchObject(notFound('batch_not_found'));
  for (const id of [batch.input_file_id, batch.output_file_id!]) {
    await expect(bob.files.retrieve(id)).rejects.toMatchObject(notFound('file_not_found'));
    await expect(bob.files.content(id)).rejects.toMatchObject(notFound('file_not_found'));
    await expect(bob.files.delete(id)).rejects.toMatchObject(notFound('file_not_found'));
  }
  const order = {
    input_file_id: batch.input_file_id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  } as const;
  await expect(bob.batches.create(order)).rejects.toMatchObject(notFound('file_not_found'));
  expect((await bob.files.list()).data).toEqual([]);
  expect((await bob.batches.list()).data).toEqual([]);
  expect((await alice.batches.list()).data.map(({ id }) => id)).toEqual([batch.id]);
  // The line counts against the key that created the batch.
  expect(server.used.filter(([key, tokens]) => key === 'alice' && tokens > 0)).toHaveLength(1);
  expect(fake.requests[0].cacheSalt).toBe('alice/');
});

test('cancelling keeps the results so far', async () => {
  const client = (await serve()).client();
  const started = await startBatch(client, [chatLine('done'), chatLine('endless', 'forever')]);
  while ((await client.batches.retrieve(started.id)).request_counts!.completed < 1);
  await expect(client.files.delete(started.input_file_id)).rejects.toMatchObject({ status: 400, param: 'file_id' });
  expect((await client.batches.cancel(started.id)).status).toMatch(/^cancell/);
  const batch = await until(client, started, 'cancelled');
  expect(batch.request_counts).toEqual({ total: 2, completed: 1, failed: 0 });
  expect(ids(await readResults(client, batch.output_file_id))).toEqual(['done']);
  expect([batch.error_file_id, fake.aborted.length]).toEqual([null, 1]);
  expect(batch.cancelled_at).toBeGreaterThanOrEqual(batch.cancelling_at!);
  await expect(client.batches.cancel(started.id)).rejects.toMatchObject({ status: 400, param: 'batch_id' });
});

test('lines that did not run before the end of the completion window are errors', async () => {
  const client = (await serve({ options: { engine: { maxNumSeqs: 2 } } })).client();
  const lines = [chatLine('done'), ...['x', 'y', 'z'].map((id) => chatLine(id, 'forever'))];
  const started = await startBatch(client, lines, { completion_window: '600s' as never });
  while ((await client.batches.retrieve(started.id)).request_counts!.completed < 1);
  const { now } = Date;
  const clock = jest.spyOn(Date, 'now').mockImplementation(() => now() + 600_000);
  const batch = await until(client, started, 'expired');
  clock.mockRestore();
  expect(batch.request_counts).toEqual({ total: 4, completed: 1, failed: 3 });
  expect(ids(await readResults(client, batch.output_file_id))).toEqual(['done']);
  const errors = await readResults(client, batch.error_file_id);
  expect(ids(errors)).toEqual(['x', 'y', 'z']);
  expect(errors[0]).toMatchObject({ response: null, error: { code: 'batch_expired' } });
});

test('lines use only the slots that other requests leave', async () => {
  const small = await Engine.load(tinyModel(), { maxNumSeqs: 2 });
  const client = (await serve({ engine: small, options: { engine: { maxNumSeqs: 2 } } })).client();
  const held = gate();
  const ask = () => client.chat.completions.create({ model: 'tiny', messages: [{ role: 'user', content: held.text }] });
  const urgent = [ask(), ask()];
  while (fake.requests.length < 2) await new Promise((resolve) => setImmediate(resolve));
  const started = await startBatch(client, [chatLine('a'), chatLine('b'), chatLine('c')]);
  await until(client, started, 'in_progress');
  await client.models.list();
  expect(fake.requests.map(({ priority }) => priority)).toEqual([0, 0]);
  held.open();
  await Promise.all(urgent);
  const batch = await until(client, started, 'completed');
  expect(batch.request_counts!.completed).toBe(3);
  await small.close();
});

test('lines wait while the queue is full', async () => {
  const small = await Engine.load(tinyModel(), { maxNumSeqs: 1, maxQueuedRequests: 0 });
  const client = (await serve({ engine: small, options: { engine: { maxNumSeqs: 8 } } })).client();
  const lines = Array.from({ length: 3 }, (_, i) => chatLine(`${i}`));
  const batch = await until(client, await startBatch(client, lines), 'completed');
  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
  await small.close();
});

test('several batches run in turn', async () => {
  const client = (await serve({ options: { engine: { maxNumSeqs: 1 } } })).client();
  const long = Array.from({ length: 12 }, (_, i) => chatLine(`${i}`));
  const [first, second] = await Promise.all([startBatch(client, long), startBatch(client, [chatLine('short')])]);
  await until(client, second, 'completed');
  expect((await client.batches.retrieve(first.id)).status).toBe('in_progress');
  expect((await until(client, first, 'completed')).request_counts!.completed).toBe(12);
});

test('lists come in pages', async () => {
  const client = (await serve()).client();
  const files: OpenAI.FileObject[] = [];
  for (let i = 0; i < 3; i++) files.push(await upload(client, [chatLine('a')]));
  const batches: string[] = [];
  for (const { id } of files)
    batches.push(
      (await client.batches.create({ input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' }))
        .id,
    );
  const collect = async <T extends { id: string }>(items: AsyncIterable<T>) => {
    const found: string[] = [];
    for await (const { id } of items) found.push(id);
    return found;
  };
  const fileIds = files.map(({ id }) => id);
  expect(await collect(client.files.list({ limit: 2, purpose: 'batch' }))).toEqual(fileIds.toReversed());
  expect(await collect(client.files.list({ limit: 1, order: 'asc', purpose: 'batch' }))).toEqual(fileIds);
  expect(await collect(client.batches.list({ limit: 2 }))).toEqual(batches.toReversed());
  const page = await client.batches.list({ limit: 2 });
  expect([page.has_more, page.data.length]).toEqual([true, 2]);
  await expect(client.batches.list({ limit: 0 })).rejects.toMatchObject({ status: 400, param: 'limit' });
  await expect(client.batches.list({ after: 'x' })).rejects.toMatchObject({ status: 400, param: 'after' });
  await expect(client.files.list({ order: 'up' as never })).rejects.toMatchObject({ status: 400, param: 'order' });
});

test('refuses what it cannot run, by the name of the field', async () => {
  const server = await serve({ options: { batches: { maxOpenBatches: 1, maxStorageBytes: 1000 } } });
  const client = server.client();
  const { id } = await upload(client, [chatLine('a', 'forever')]);
  const create = (changes: object) =>
    client.batches.create({
      input_file_id: id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      ...changes,
    });
  const bad = (param: string | null, code: string, status = 400) => ({ status, param, code });
  await expect(create({ endpoint: '/v1/models' })).rejects.toMatchObject(bad('endpoint', 'invalid_value'));
  await expect(create({ completion_window: '1 day' })).rejects.toMatchObject(bad('completion_window', 'invalid_value'));
  await expect(create({ completion_window: '31d' })).rejects.toMatchObject(bad('completion_window', 'invalid_value'));
  await expect(create({ metadata: { a: 1 } })).rejects.toMatchObject(bad('metadata', 'invalid_type'));
  await expect(create({ output_expires_after: {} })).rejects.toMatchObject(
    bad('output_expires_after', 'unsupported_value'),
  );
  await expect(create({ input_file_id: 'file_x' })).rejects.toMatchObject(bad('input_file_id', 'file_not_found', 404));
  await until(client, await create({}), 'in_progress');
  await expect(create({})).rejects.toMatchObject({ status: 429, code: 'queue_full' });
  await expect(upload(client, [chatLine('a', 'x'.repeat(1000))])).rejects.toMatchObject({
    status: 507,
    code: 'storage_full',
  });
});

test.each<[string, string, string, number, string]>([
  ['JSON', 'application/json', '{}', 415, 'unsupported_media_type'],
  ['no boundary', 'multipart/form-data', '', 400, 'malformed_request'],
  ['no parts', 'multipart/form-data; boundary=x', '', 400, 'malformed_request'],
  ['too many parts', 'multipart/form-data; boundary=x', '--x\r\n'.repeat(100), 400, 'malformed_request'],
  [
    'too many parts behind another boundary',
    'multipart/form-data; x=";boundary=y"; boundary=x',
    '--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'.repeat(100) + END,
    400,
    'malformed_request',
  ],
  [
    'two boundaries',
    'multipart/form-data; boundary=y; boundary=x',
    part('purpose', 'vision') + END,
    400,
    'malformed_request',
  ],
  [
    'long headers of a part',
    'multipart/form-data; boundary=x',
    part('purpose', 'batch') + part('file', 'a', 'f'.repeat(20_000)) + END,
    400,
    'malformed_request',
  ],
  ['no purpose', 'multipart/form-data; boundary=x', part('file', 'a', 'f') + END, 400, 'missing_required_parameter'],
  ['another purpose', 'multipart/form-data; boundary=x', part('purpose', 'vision') + END, 400, 'unsupported_value'],
  ['no file', 'multipart/form-data; boundary=x', part('purpose', 'batch') + END, 400, 'missing_required_parameter'],
  [
    'a field for the file',
    'multipart/form-data; boundary="x"',
    part('purpose', 'batch') + part('file', 'a') + END,
    400,
    'invalid_type',
  ],
  [
    'an expiry',
    'multipart/form-data; boundary=x',
    part('purpose', 'batch') + part('expires_after[seconds]', '1') + END,
    400,
    'unsupported_value',
  ],
])('an upload with %s is refused', async (_name, type, body, status, code) => {
  const { url } = await serve();
  const response = await fetch(`${url}/v1/files`, { method: 'POST', body, headers: { 'Content-Type': type } });
  expect([response.status, ((await response.json()) as any).error.code]).toEqual([status, code]);
});

function part(name: string, value: string, filename?: string): string {
  const file = filename === undefined ? '' : `; filename="${filename}"`;
  return `--x\r\nContent-Disposition: form-data; name="${name}"${file}\r\n\r\n${value}\r\n`;
}

test('without a folder, behind a gateway and in the folder of another server, the routes say why there are none', async () => {
  const message = async (setup: Partial<Setup>) => {
    const { url } = await serve(setup);
    const response = await fetch(`${url}/v1/batches`);
    expect(response.status).toBe(501);
    return ((await response.json()) as any).error.message as string;
  };
  expect(await message({ options: { dataDir: undefined } })).toContain('--data-dir');
  expect(await message({ options: { replicaSecret: 's' } })).toContain('public deployment');
  const { dataDir } = await serve();
  expect(await message({ dataDir })).toContain('Another server');
});

test('a batch fails when its key has lost access, and waits while its budget is used up', async () => {
  let denial: string | undefined = 'budget_exceeded';
  const asked: string[] = [];
  const server = await serve({
    hasAccess: true,
    resume: (keyId) => {
      asked.push(keyId);
      return denial === undefined
        ? { ok: true, keyId, ownerId: keyId, done: () => {} }
        : ({ ok: false, code: denial, message: 'refused' } as never);
    },
  });
  const client = server.client();
  const waiting = await startBatch(client, [chatLine('a')]);
  while (asked.length === 0) await client.models.list();
  expect((await client.batches.retrieve(waiting.id)).status).toBe('in_progress');
  denial = 'invalid_api_key';
  const failed = await until(client, await startBatch(client, [chatLine('b'), chatLine('c')]), 'failed');
  expect(failed.errors!.data).toEqual([{ code: 'invalid_api_key', message: 'refused', param: null, line: null }]);
  expect(fake.requests).toEqual([]);
});
