/** Files and batches that a start finds in its folders. */
import { existsSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type BatchOrder, BatchService } from '../../../../server/storage/batches/batch-service';
import { temporaryFolder } from '../../../fakes/temporary-folder';

const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };

function openStores(dataDir: string, fields: object = {}): Promise<BatchService | undefined> {
  return BatchService.open({ dataDir, log: log as never, maxStorageBytes: 1_000, maxOpenBatches: 10, ...fields });
}

test.each(['files', 'batches'])(
  'a record of %s that cannot be read is an error, and nothing is deleted',
  async (kind) => {
    const dataDir = temporaryFolder('unreadable');
    const files = join(dataDir, 'batches', 'files');
    const record = join(dataDir, 'batches', kind, 'x.json');
    for (const folder of [files, join(record, '..')]) mkdirSync(folder, { recursive: true });
    writeFileSync(join(files, 'x.jsonl'), '{}\n');
    // A link to itself cannot be read, even by root.
    symlinkSync('x.json', record);
    await expect(openStores(dataDir)).rejects.toThrow(/cannot read .*x\.json: ELOOP.*Make it readable/);
    expect(existsSync(join(files, 'x.jsonl'))).toBe(true);
  },
);

test.each(['{"id":', 'null', '{"id":7}'])('a damaged record %j is removed with its content', async (text) => {
  const dataDir = temporaryFolder('damaged');
  const files = join(dataDir, 'batches', 'files');
  mkdirSync(files, { recursive: true });
  writeFileSync(join(files, 'x.jsonl'), '{}\n');
  writeFileSync(join(files, 'x.json'), text);
  const service = await openStores(dataDir);
  await service!.close();
  expect(['x.json', 'x.jsonl'].map((name) => existsSync(join(files, name)))).toEqual([false, false]);
});

test('results count as files of their owner, and a batch counts as two', async () => {
  const dataDir = temporaryFolder('many');
  const files = join(dataDir, 'batches', 'files');
  mkdirSync(files, { recursive: true });
  const addFile = (ownerId: string, i: number, purpose = 'batch_output') => {
    const id = `file_${ownerId}${i}`;
    writeFileSync(
      join(files, `${id}.json`),
      JSON.stringify({ id, ownerId, bytes: 0, createdAt: 1, filename: 'x', purpose }),
    );
    return id;
  };
  const inputFileId = addFile('ada', 0, 'batch');
  for (let i = 1; i < 2_499; i++) addFile('ada', i);
  const service = (await openStores(dataDir, { ownerShare: 0.25 }))!;
  service.serve({ execute: () => Promise.resolve({ kind: 'halt' }), numPlaces: () => 0, endpoints: () => [] });
  const order = (ownerId: string, file: string): BatchOrder => ({
    identity: { ownerId, keyId: '', cacheSalt: '', done: () => {} },
    inputFileId: file,
    endpoint: '/v1/chat/completions',
    completionWindow: '24h',
    windowS: 86_400,
    metadata: null,
    address: '192.0.2.1',
  });
  await expect(service.create(order('ada', inputFileId))).rejects.toMatchObject({
    code: 'storage_full',
    message: 'The server keeps at most 2500 files of one owner, two results of each batch included: delete some',
  });
  await service.files.delete(service.files.get('ada', 'file_ada1'));
  expect(await service.create(order('ada', inputFileId))).toMatchObject({ ownerId: 'ada' });
  await service.close();
});
