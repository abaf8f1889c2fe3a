/** Batches over the end of their server, and on a disk that is full. */
import { spawnSync } from 'node:child_process';
import { appendFileSync, mkdirSync, readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { killAll, prepare, startServer } from '../../../fakes/server-process';
import { temporaryFolder } from '../../../fakes/temporary-folder';
import { tinyModel } from '../../../fakes/tiny-model';
import { mountSmallDisk } from '../../../models/small-disk';
import { chatLine, gate, ids, openServer, readResults, startBatch, until, upload } from './support';

afterAll(killAll);

/** The batch is not done before the server is killed. */
const FEW_LINES = ['--batch-concurrency', '3'];

/** The content of files of results. */
function resultFiles(dataDir: string): string[] {
  const folder = join(dataDir, 'batches', 'files');
  return readdirSync(folder)
    .filter((name) => name.endsWith('.jsonl'))
    .map((name) => readFileSync(join(folder, name), 'utf8'))
    .filter((text) => text.includes('"response":'));
}

test('after kill -9, each custom_id is once in the output', async () => {
  const env = { ...prepare() };
  const dataDir = temporaryFolder('killed');
  const serve = () =>
    startServer(
      [tinyModel(), '--served-model-name', 'tiny', '--data-dir', dataDir, '--disable-access-log', ...FEW_LINES],
      env,
    );
  const clientOf = ({ url }: { url: string }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: 'x', maxRetries: 0 });
  let server = await serve();
  let client = clientOf(server);
  const numLines = 200;
  const held = gate();
  const lines = Array.from({ length: numLines }, (_, i) => chatLine(`line ${i}`, i % 10 === 0 ? 'boom' : 'Hi'));
  lines[1] = chatLine('line 1', held.text);
  const started = await startBatch(client, lines);
  const earlier: string[] = [];
  for (const share of [0.2, 0.6]) {
    let counts = { completed: 0, failed: 0 };
    while (counts.completed + counts.failed < share * numLines)
      counts = (await client.batches.retrieve(started.id)).request_counts!;
    earlier.push(...resultFiles(dataDir));
    server.process.kill('SIGKILL');
    await server.exited;
    server = await serve();
    client = clientOf(server);
  }
  held.open();
  const batch = await until(client, started, 'completed');
  expect(batch.request_counts).toEqual({ total: numLines, completed: 180, failed: 20 });
  const results = [
    ...(await readResults(client, batch.output_file_id)),
    ...(await readResults(client, batch.error_file_id)),
  ];
  expect(ids(results)).toEqual(lines.map(({ custom_id: id }) => id).sort());
  // No complete result was lost, or ran again.
  const ended = resultFiles(dataDir);
  expect(earlier.length).toBeGreaterThanOrEqual(2);
  for (const text of earlier) {
    const whole = text.slice(0, text.lastIndexOf('\n') + 1);
    expect(ended.some((file) => file.startsWith(whole))).toBe(true);
  }
  server.process.kill('SIGTERM');
  expect(await server.exited).toEqual([0, null]);
  expect(server.output().stderr).toContain('continuing with batches');
  // Three starts of a server.
}, 240_000);

describe('in one process', () => {
  let engine: Engine;
  beforeAll(async () => {
    process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
    engine = await Engine.load(tinyModel());
  });
  beforeEach(() => fake.reset());
  afterAll(() => engine.close());

  test('a part of a line, and lines that are no results, are removed and run again', async () => {
    const first = await openServer({ engine });
    const held = gate();
    const lines = [...['a', 'b', 'c'].map((id) => chatLine(id)), chatLine('held', held.text)];
    const started = await startBatch(first.client(), lines);
    while ((await first.client().batches.retrieve(started.id)).request_counts!.completed < 3);
    await first.close();
    const folder = join(first.dataDir, 'batches', 'files');
    const output = readdirSync(folder)
      .filter((name) => name.endsWith('.jsonl'))
      .map((name) => join(folder, name))
      .find((path) => readFileSync(path, 'utf8').includes('"response"'))!;
    const whole = readFileSync(output);
    const secondLine = whole.indexOf('\n') + 1;
    truncateSync(output, whole.indexOf('\n', secondLine) - 5);
    appendFileSync(output, '\n{"custom_id":"c"');
    writeFileSync(join(folder, 'file_x.json.0a.tmp'), 'x');
    writeFileSync(join(folder, 'file_y.jsonl'), 'x');

    const second = await openServer({ engine, dataDir: first.dataDir });
    held.open();
    const batch = await until(second.client(), started, 'completed');
    const results = await readResults(second.client(), batch.output_file_id);
    expect(ids(results)).toEqual(['a', 'b', 'c', 'held']);
    expect(readFileSync(output).subarray(0, secondLine)).toEqual(whole.subarray(0, secondLine));
    expect(readdirSync(folder).filter((name) => /_[xy]\./.test(name))).toEqual([]);
    await second.close();
  });

  test('a batch ends as it would have, whatever its status was when the server ended', async () => {
    const first = await openServer({ engine, options: { engine: { maxNumSeqs: 2 } } });
    const client = first.client();
    const cancelled = await startBatch(client, [chatLine('a', 'forever')]);
    const expired = await startBatch(client, [chatLine('a', 'forever')], { completion_window: '1h' as never });
    const damaged = await startBatch(client, [chatLine('a', 'forever')]);
    for (const batch of [cancelled, expired]) await until(client, batch, 'in_progress');
    await first.close();
    const records = join(first.dataDir, 'batches', 'batches');
    const edit = (id: string, changes: object) => {
      const path = join(records, `${id}.json`);
      writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, 'utf8')), ...changes }));
    };
    edit(cancelled.id, { status: 'cancelling' });
    edit(expired.id, { expiresAt: 1 });
    edit(damaged.id, { inputFileId: 'file_gone' });
    writeFileSync(join(records, 'batch_bad.json'), '{');
    const second = await openServer({ engine, dataDir: first.dataDir });
    await until(second.client(), cancelled, 'cancelled');
    const ended = await until(second.client(), expired, 'expired');
    expect(ended.request_counts).toEqual({ total: 1, completed: 0, failed: 1 });
    const failed = await until(second.client(), damaged, 'failed');
    expect(failed.errors!.data![0].code).toBe('internal_error');
    expect((await second.client().batches.list()).data).toHaveLength(3);
    await second.close();
  });

  test('after a failure of the engine, lines wait for the next start', async () => {
    const first = await openServer({ engine, options: { engine: { maxNumSeqs: 1 } } });
    fake.answer = () => {
      fake.failure = 'device gone';
      return { text: 'so far', reason: 'error', errorCode: 'internal_error' };
    };
    const started = await startBatch(
      first.client(),
      ['a', 'b', 'c'].map((id) => chatLine(id)),
    );
    while (fake.requests.length === 0) await first.client().models.list();
    for (let i = 0; i < 20; i++) await first.client().models.list();
    expect((await first.client().batches.retrieve(started.id)).request_counts!.failed).toBe(0);
    expect(fake.requests).toHaveLength(1);
    await first.close();
    fake.reset();
    const second = await openServer({ engine, dataDir: first.dataDir });
    const batch = await until(second.client(), started, 'completed');
    expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
    await second.close();
  });

  test('batches pause at the storage limit, and go on when files are deleted', async () => {
    const first = await openServer({ engine, options: { batches: { maxOpenBatches: 2, maxStorageBytes: 5_000 } } });
    const client = first.client();
    const ballast = await upload(client, [chatLine('x', 'x'.repeat(4_000))]);
    const started = await startBatch(client, [chatLine('a'), chatLine('b'), chatLine('c')]);
    while (first.log.warn.mock.calls.length === 0) await client.models.list();
    const [[, text]] = first.log.warn.mock.calls as [object, string][];
    expect(text).toBe('batches pause, because there is no space for their results');
    const paused = await client.batches.retrieve(started.id);
    expect([paused.status, paused.request_counts!.failed]).toEqual(['in_progress', 0]);
    await client.files.delete(ballast.id);
    await first.close();
    const second = await openServer({ engine, dataDir: first.dataDir });
    const batch = await until(second.client(), started, 'completed');
    expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
    expect(first.log.warn).toHaveBeenCalledTimes(1);
    await second.close();
  });

  test('a full disk refuses uploads and loses no result', async () => {
    const folder = temporaryFolder('small-disk');
    const disk = mountSmallDisk(folder, 4);
    if (disk === undefined) {
      // This machine does not allow mounts.
      expect(spawnSync('mount', ['-t', 'tmpfs', 'tmpfs', folder]).status).not.toBe(0);
      return;
    }
    try {
      mkdirSync(join(folder, 'data'));
      const first = await openServer({ engine, dataDir: join(folder, 'data') });
      const client = first.client();
      const held = gate();
      const lines = Array.from({ length: 30 }, (_, i) => chatLine(`${i}`, i < 2 ? 'Hi' : held.text));
      const started = await startBatch(client, lines);
      while ((await client.batches.retrieve(started.id)).request_counts!.completed < 2);
      disk.fill();
      await expect(upload(client, [chatLine('x')])).rejects.toMatchObject({ status: 507, code: 'storage_full' });
      expect((await client.files.list()).data).toHaveLength(1);
      held.open();
      while (first.log.warn.mock.calls.length === 0) await client.models.list();
      // Some fit into the last block of the file.
      expect((await client.batches.retrieve(started.id)).request_counts!.completed).toBeLessThan(30);
      await first.close();
      disk.empty();
      const second = await openServer({ engine, dataDir: join(folder, 'data') });
      const batch = await until(second.client(), started, 'completed');
      expect(ids(await readResults(second.client(), batch.output_file_id))).toEqual(
        lines.map(({ custom_id: id }) => id).sort(),
      );
      await second.close();
    } finally {
      disk.remove();
    }
  });
});
