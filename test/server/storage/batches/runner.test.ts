/** In which order lines run, how many at the same time, and what becomes of results without space. */
import { join } from 'node:path';
import { ApiError } from '../../../../server/base/errors';
import {
  BatchRunner,
  type BatchRunnerOptions,
  type LineOutcome,
} from '../../../../server/storage/batches/batch-runner';
import { BatchService } from '../../../../server/storage/batches/batch-service';
import { BatchStore } from '../../../../server/storage/batches/batch-store';
import { FileStore } from '../../../../server/storage/batches/file-store';
import { type BatchRecord, type BatchStatus, isOpen } from '../../../../server/storage/batches/records';
import { ANONYMOUS } from '../../../../server/http/routes';
import { temporaryFolder } from '../../../fakes/temporary-folder';

const running: BatchRunner[] = [];
afterEach(async () => {
  log.warn.mockClear();
  for (const runner of running.splice(0)) await runner.close();
});

const DONE: LineOutcome = { kind: 'done', result: { status: 200, body: '{}', requestId: 'r' } };
const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
const nextTurn = () => new Promise((resolve) => setImmediate(resolve));

async function until(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) await nextTurn();
}

interface Line {
  id: string;
  model?: string;
  body?: string;
}

async function start(options: Partial<BatchRunnerOptions> & { maxBytes?: number; folder?: string } = {}) {
  const { folder = temporaryFolder('batches') } = options;
  const files = await FileStore.open(join(folder, 'files'), {
    maxBytes: options.maxBytes ?? 1 << 30,
    ownerShare: 1,
    writerOf: () => '',
    log: log as never,
  });
  const batches = await BatchStore.open(join(folder, 'batches'), log as never);
  const runner = new BatchRunner({
    files,
    batches,
    log: log as never,
    execute: () => Promise.resolve(DONE),
    numPlaces: () => 16,
    maxRunningBatches: 100,
    storageRetryMs: 1,
    ...options,
  });
  running.push(runner);
  let numBatches = 0;
  const add = async (lines: readonly Line[], fields: Partial<BatchRecord> = {}): Promise<BatchRecord> => {
    const { ownerId = '' } = fields;
    const text = lines
      .map(({ id, model = 'm', body = '' }) =>
        JSON.stringify({ custom_id: id, method: 'POST', url: '/v1/x', body: { model, body } }),
      )
      .join('\n');
    const { id: inputFileId } = await files.create({ ownerId }, 'in.jsonl', Buffer.from(text));
    const n = numBatches++;
    const record: BatchRecord = {
      id: `batch_${n}`,
      ownerId,
      address: '192.0.2.1',
      cacheSalt: '',
      endpoint: '/v1/x',
      inputFileId,
      outputFileId: `file_out${n}`,
      errorFileId: `file_err${n}`,
      completionWindow: '24h',
      metadata: null,
      createdAt: 0,
      expiresAt: Math.floor(Date.now() / 1000) + 86_400,
      status: 'validating',
      times: {},
      hasOutput: false,
      hasErrors: false,
      counts: { total: 0, completed: 0, failed: 0 },
      errors: [],
      ...fields,
    };
    await batches.add(record);
    runner.add(record);
    return record;
  };
  return { folder, files, batches, runner, add };
}

const lines = (count: number, model: string): Line[] =>
  Array.from({ length: count }, (_, i) => ({ id: `${model}${i}`, model }));

test('lines of a model that cannot run now do not keep other lines of the batch from running', async () => {
  const ran: string[] = [];
  let isPaused = true;
  const { add } = await start({
    execute: async (_batch, line) => {
      ran.push(line.customId);
      await nextTurn();
      const { model } = JSON.parse(line.body.toString()) as { model: string };
      return model === 'paused' && isPaused ? { kind: 'retry', afterMs: 50 } : DONE;
    },
  });
  const record = await add([...lines(16, 'paused'), ...lines(100, 'healthy')]);
  await until(() => record.counts.completed === 100);
  expect(record.status).toBe('in_progress');
  isPaused = false;
  await until(() => record.status === 'completed');
  expect(record.counts).toEqual({ total: 116, completed: 116, failed: 0 });
  // Each healthy line ran once.
  expect(ran.filter((id) => id.startsWith('healthy'))).toHaveLength(100);
});

test('a line that runs again runs after the others of its model', async () => {
  const ran: string[] = [];
  const { add } = await start({
    numPlaces: () => 1,
    execute: (_batch, { customId, numFailures }) => {
      ran.push(customId);
      const isBad = customId === 'm0' && numFailures < 2;
      return Promise.resolve(isBad ? { kind: 'retry', afterMs: 0, isFailure: true } : DONE);
    },
  });
  const record = await add(lines(4, 'm'));
  await until(() => record.status === 'completed');
  expect(ran).toEqual(['m0', 'm1', 'm2', 'm3', 'm0', 'm0']);
});

test('no line runs without space for its result', async () => {
  let numRun = 0;
  const { add, files } = await start({
    maxBytes: 10_000,
    execute: () => {
      numRun++;
      return Promise.resolve(DONE);
    },
  });
  const ballast = await files.create({ ownerId: '' }, 'ballast', Buffer.alloc(9_000));
  const record = await add([{ id: 'a' }, { id: 'b', body: 'x'.repeat(810) }]);
  files.setUnpublished('rest', 10_000 - 9_000 - files.list('')[0].bytes, '');
  await until(() => log.warn.mock.calls.length > 0);
  for (let i = 0; i < 100; i++) await nextTurn();
  expect([numRun, record.status]).toEqual([0, 'in_progress']);
  await files.delete(ballast);
  await until(() => record.status === 'completed');
  expect(numRun).toBe(2);
});

test('a result that finds no space is kept, and its line does not run again', async () => {
  const ran: string[] = [];
  const { add, files } = await start({
    maxBytes: 10_000,
    execute: async (_batch, { customId }) => {
      ran.push(customId);
      await nextTurn();
      return { kind: 'done', result: { status: 200, body: `{"text":"${'x'.repeat(1_000)}"}`, requestId: 'r' } };
    },
  });
  const ballast = await files.create({ ownerId: '' }, 'ballast', Buffer.alloc(7_000));
  const [first, second] = [await add(lines(20, 'm')), await add(lines(2, 'n'))];
  await until(() => ran.length >= 16 && log.warn.mock.calls.length > 0);
  for (let i = 0; i < 600; i++) await nextTurn();
  // 16 at first, one in place of the line whose result found space, and the two of the other batch.
  expect(ran.length).toBeLessThan(20);
  await files.delete(ballast);
  // The rest needs more space than there is.
  files.setUnpublished('more', -100_000, '');
  await until(() => first.status === 'completed' && second.status === 'completed');
  expect(ran.sort()).toEqual([...lines(20, 'm'), ...lines(2, 'n')].map(({ id }) => id).sort());
  expect([first.counts.completed, second.counts.completed]).toEqual([20, 2]);
});

test('a batch that is cancelled keeps the results that found no space', async () => {
  let numRun = 0;
  const { add, files, runner } = await start({
    maxBytes: 2_000,
    numPlaces: () => 1,
    execute: () => {
      numRun++;
      files.setUnpublished('full', 10_000, '');
      return Promise.resolve(DONE);
    },
  });
  const record = await add([{ id: 'a' }, { id: 'b' }]);
  await until(() => numRun === 1);
  await runner.cancel(record);
  for (let i = 0; i < 50; i++) await nextTurn();
  expect(record.status).toBe('cancelling');
  files.setUnpublished('full', 0, '');
  await until(() => record.status === 'cancelled');
  expect([numRun, record.counts.completed, files.has(record.outputFileId)]).toEqual([1, 1, true]);
});

test('one owner holds only its share of the places, and lines without a place are not read', async () => {
  let numOpen = 0;
  const ended: (() => void)[] = [];
  const { add } = await start({
    numPlaces: () => 40,
    numPlacesOfOwner: () => 20,
    enter: (_batch, model) => (model === 'full' ? undefined : () => {}),
    execute: async ({ ownerId }, { customId }, signal) => {
      expect(customId).not.toContain('full');
      if (ownerId === 'bob') return DONE;
      numOpen++;
      await new Promise<void>((resolve) => {
        ended.push(resolve);
        signal.addEventListener('abort', () => resolve());
      });
      return { kind: 'retry', afterMs: 0 };
    },
  });
  const warned = jest.fn();
  process.on('warning', warned);
  for (let i = 0; i < 4; i++) await add(lines(i === 0 ? 30 : 3, 'hangs'), { ownerId: 'alice' });
  await add(lines(10, 'full'), { ownerId: 'carol' });
  await until(() => numOpen === 20);
  const bobs = await add(lines(100, 'm'), { ownerId: 'bob' });
  await until(() => bobs.status === 'completed');
  expect(numOpen).toBe(20);
  expect(warned).not.toHaveBeenCalled();
  process.off('warning', warned);
});

test('the requests in memory are bounded', async () => {
  const sizes: number[] = [];
  const held: (() => void)[] = [];
  const { add } = await start({
    numPlaces: () => 100,
    maxBytes: 2 ** 31,
    execute: async (_batch, { body }, signal) => {
      sizes.push(body.length);
      await new Promise<void>((resolve) => {
        held.push(resolve);
        signal.addEventListener('abort', () => resolve());
      });
      return DONE;
    },
  });
  const large = 'x'.repeat(7 << 20);
  await add(Array.from({ length: 20 }, (_, i) => ({ id: `${i}`, body: large })));
  // 18 lines of 7 MiB are less than half of 256 MiB.
  await until(() => sizes.length === 18);
  for (let i = 0; i < 50; i++) await nextTurn();
  expect(sizes).toHaveLength(18);
  held[0]();
  await until(() => sizes.length === 19);
});

test.each([false, true])(
  'a batch that has expired stays so if its end cannot be saved (restart: %s)',
  async (isRestart) => {
    const { folder, batches, add, runner } = await start();
    let numRefused = 0;
    failMoves(batches, 'expired', () => numRefused++ < 1 || isRestart);
    const record = await add(lines(2, 'm'), { expiresAt: 1 });
    await until(() => numRefused > 0);
    let ended = record;
    if (isRestart) {
      await runner.close();
      const second = await start({ folder });
      ended = second.batches.get('', record.id);
      expect(ended.status).toBe('finalizing');
      second.runner.add(ended);
    }
    await until(() => !isOpen(ended));
    expect([ended.status, ended.counts]).toEqual(['expired', { total: 2, completed: 0, failed: 2 }]);
  },
);

test('the results of a batch cannot be deleted before it has ended', async () => {
  const service = await BatchService.open({
    dataDir: temporaryFolder('service'),
    log: log as never,
    maxStorageBytes: 1 << 20,
    maxOpenBatches: 1,
  });
  const { files, batches } = service!;
  failMoves(batches, 'completed', () => true);
  service!.serve({ endpoints: () => [], numPlaces: () => 1, execute: () => Promise.resolve(DONE) });
  const text = JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/x', body: {} });
  const input = await files.create({ ownerId: '' }, 'in.jsonl', Buffer.from(text));
  const { outputFileId, inputFileId } = await service!.create({
    endpoint: '/v1/x',
    inputFileId: input.id,
    completionWindow: '24h',
    windowS: 86_400,
    metadata: null,
    identity: ANONYMOUS,
    address: '192.0.2.1',
  });
  await until(() => files.has(outputFileId));
  for (const [id, use] of [
    [outputFileId, 'writes'],
    [inputFileId, 'reads'],
  ])
    await expect(service!.deleteFile(files.get('', id))).rejects.toThrow(`expected a file that no batch ${use}`);
  await service!.close();
});

/** Lets no batch reach a status, while `isRefused` returns true. */
function failMoves(batches: BatchStore, refused: BatchStatus, isRefused: () => boolean): void {
  const move = batches.move.bind(batches);
  batches.move = async (record, from, status) => {
    if (status === refused && isRefused()) throw new ApiError('storage_full', 'The disk is full');
    return move(record, from, status);
  };
}
