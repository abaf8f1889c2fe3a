/** Where responses are kept: in memory and in a folder, with the same behaviour. */
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FolderResponseStore } from '../../../../server/storage/responses/folder-store';
import { openResponseStore } from '../../../../server/inference/responses/open-store';
import { MemoryResponseStore, type ResponseStore } from '../../../../server/storage/responses/store';

let folder: string;
let nowMs: number;
const now = () => nowMs;
const KIB = 1024;
const LIMITS = { maxBytes: 100 * KIB, ttlMs: 1_000_000 };

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'capstan-responses-'));
  nowMs = Date.now();
});
afterEach(() => rmSync(folder, { recursive: true }));

describe.each<[string, () => Promise<ResponseStore> | ResponseStore]>([
  ['in memory', () => new MemoryResponseStore(LIMITS, now)],
  ['in a folder', () => FolderResponseStore.open(join(folder, 'responses'), LIMITS, now)],
])('%s', (_name, open) => {
  let store: ResponseStore;

  beforeEach(async () => {
    store = await open();
  });

  test('a response belongs to its owner', async () => {
    await store.put('ada', 'resp_1', 'a');
    expect(await store.get('ada', 'resp_1')).toBe('a');
    expect(await store.get('bob', 'resp_1')).toBeUndefined();
    expect(await store.delete('bob', 'resp_1')).toBe(false);
    expect(await store.delete('ada', 'resp_1')).toBe(true);
    expect(await store.delete('ada', 'resp_1')).toBe(false);
    expect(await store.get('ada', 'resp_1')).toBeUndefined();
  });

  test('the ids of an owner are listed, and a look at a response does not use it', async () => {
    expect(await store.ids('ada')).toEqual([]);
    await store.put('ada', 'resp_1', '1'.repeat(40 * KIB));
    await store.put('ada', 'resp_2', '2'.repeat(40 * KIB));
    await store.put('bob', 'resp_3', '3');
    expect((await store.ids('ada')).sort()).toEqual(['resp_1', 'resp_2']);
    expect(await store.peek('ada', 'resp_3')).toBeUndefined();
    expect((await store.peek('ada', 'resp_1'))?.length).toBe(40 * KIB);
    await store.put('ada', 'resp_4', '4'.repeat(40 * KIB));
    expect((await store.ids('ada')).sort()).toEqual(['resp_2', 'resp_4']);
    // The time of a file is that of the disk.
    nowMs += 2 * LIMITS.ttlMs;
    expect(await store.peek('ada', 'resp_2')).toBeUndefined();
  });

  test('a response is updated if there is one, within the size limit', async () => {
    await store.put('ada', 'resp_1', 'a');
    expect(await store.update('ada', 'resp_1', (text) => `${text}b`)).toBe(true);
    expect(await store.get('ada', 'resp_1')).toBe('ab');
    expect(await store.update('ada', 'resp_1', () => 'x'.repeat(101 * KIB))).toBe(false);
    expect(await store.update('bob', 'resp_1', () => 'x')).toBeUndefined();
    expect(await store.get('ada', 'resp_1')).toBe('ab');
  });

  test('updates at the same time are all kept, and a deleted response does not return', async () => {
    await store.put('ada', 'resp_1', '');
    const updates = Array.from({ length: 8 }, (_, i) => store.update('ada', 'resp_1', (text) => `${text}${i}`));
    expect(await Promise.all(updates)).toEqual(updates.map(() => true));
    expect(await store.get('ada', 'resp_1')).toBe('01234567');
    const last = store.update('ada', 'resp_1', () => 'x');
    expect(await store.delete('ada', 'resp_1')).toBe(true);
    await last;
    expect(await store.get('ada', 'resp_1')).toBeUndefined();
    expect(await store.update('ada', 'resp_1', () => 'x')).toBeUndefined();
  });

  test('a failed update hinders no other', async () => {
    await store.put('ada', 'resp_1', 'a');
    const failed = store.update('ada', 'resp_1', () => {
      throw new Error('no');
    });
    const next = store.update('ada', 'resp_1', () => 'b');
    await expect(failed).rejects.toThrow('no');
    expect(await next).toBe(true);
  });

  const kept = async (owner: string, ...ids: string[]): Promise<string[]> => {
    const found: string[] = [];
    for (const id of ids) if ((await store.get(owner, id)) !== undefined) found.push(id);
    return found;
  };

  test('above the size limit the least recently used are dropped', async () => {
    expect(await store.put('ada', 'resp_1', '1'.repeat(40 * KIB))).toBe(true);
    await store.put('ada', 'resp_2', '2'.repeat(40 * KIB));
    await store.get('ada', 'resp_1');
    await store.put('ada', 'resp_3', '3'.repeat(40 * KIB));
    expect(await kept('ada', 'resp_1', 'resp_2', 'resp_3')).toEqual(['resp_1', 'resp_3']);
  });

  test('the owner with the most bytes loses responses first', async () => {
    await store.put('bob', 'resp_1', '1'.repeat(30 * KIB));
    for (const id of ['resp_2', 'resp_3', 'resp_4', 'resp_5']) await store.put('ada', id, 'x'.repeat(30 * KIB));
    expect(await kept('bob', 'resp_1')).toEqual(['resp_1']);
    expect(await kept('ada', 'resp_2', 'resp_3', 'resp_4', 'resp_5')).toEqual(['resp_4', 'resp_5']);
    // What was just stored stays, even if its owner has the most bytes now.
    await store.put('eve', 'resp_6', 'x'.repeat(95 * KIB));
    expect(await kept('eve', 'resp_6')).toEqual(['resp_6']);
  });

  test('a short response counts 4 KiB, so that the limit bounds their number', async () => {
    const ids = Array.from({ length: 26 }, (_, i) => `resp_${i}`);
    for (const id of ids) await store.put('ada', id, 'a');
    expect(await kept('ada', ...ids)).toEqual(ids.slice(1));
  });

  test('a response that is too large is not stored, and pushes out no other', async () => {
    await store.put('ada', 'resp_1', '1'.repeat(90 * KIB));
    expect(await store.put('bob', 'resp_2', '2'.repeat(101 * KIB))).toBe(false);
    expect(await kept('bob', 'resp_2')).toEqual([]);
    expect(await kept('ada', 'resp_1')).toEqual(['resp_1']);
  });

  test('a response expires, and each use renews its time', async () => {
    await store.put('ada', 'resp_1', 'a');
    nowMs += 900_000;
    expect(await store.get('ada', 'resp_1')).toBe('a');
    nowMs += 900_000;
    expect(await store.get('ada', 'resp_1')).toBe('a');
    nowMs += 1_001_000;
    expect(await store.get('ada', 'resp_1')).toBeUndefined();
  });
});

test('a folder keeps its responses for the next start, within the limits, and only its user may read them', async () => {
  const path = join(folder, 'responses');
  const store = await FolderResponseStore.open(path, LIMITS, now);
  await store.put('ada', 'resp_1', 'x'.repeat(60 * KIB));
  nowMs += 500_000;
  await store.put('ada', 'resp_2', 'y'.repeat(30 * KIB));
  const again = await FolderResponseStore.open(path, LIMITS, now);
  expect(await again.get('ada', 'resp_2')).toBe('y'.repeat(30 * KIB));
  const [owner] = readdirSync(path);
  expect(owner).not.toContain('ada');
  const file = join(path, owner, 'resp_2.json');
  expect([statSync(file).mode & 0o777, statSync(path).mode & 0o777]).toEqual([0o600, 0o700]);
  // The oldest is dropped, also after a restart.
  const smaller = await FolderResponseStore.open(path, { ...LIMITS, maxBytes: 50 * KIB }, now);
  expect([await smaller.get('ada', 'resp_1'), await smaller.get('ada', 'resp_2')]).toEqual([
    undefined,
    'y'.repeat(30 * KIB),
  ]);
  utimesSync(file, 0, 0);
  await FolderResponseStore.open(path, LIMITS, now);
  expect(existsSync(file)).toBe(false);
});

test('one response has at most 4 MiB, whatever the limit of all', async () => {
  const store = new MemoryResponseStore({ ...LIMITS, maxBytes: 2 ** 30 }, now);
  expect(await store.put('ada', 'resp_1', 'x'.repeat(2 ** 22))).toBe(true);
  expect(await store.put('ada', 'resp_2', 'x'.repeat(2 ** 22 + 1))).toBe(false);
});

test('a start deletes old unfinished files, and survives a file that vanishes', async () => {
  const path = join(folder, 'responses');
  await (await FolderResponseStore.open(path, LIMITS, now)).put('ada', 'resp_1', 'a');
  const [owner] = readdirSync(path);
  const [old, fresh] = ['0'.repeat(12), '1'.repeat(12)].map((hex) => join(path, owner, `resp_2.json.${hex}`));
  for (const file of [old, fresh]) writeFileSync(file, 'half');
  utimesSync(old, nowMs / 1000 - 7200, nowMs / 1000 - 7200);
  // As a file that another server deletes between the list of the folder and the look at the file.
  symlinkSync(join(path, 'missing'), join(path, owner, 'resp_3.json'));
  const again = await FolderResponseStore.open(path, LIMITS, now);
  expect([existsSync(old), existsSync(fresh), await again.get('ada', 'resp_1')]).toEqual([false, true, 'a']);
});

test('a folder that cannot be written is an error at the start', async () => {
  writeFileSync(join(folder, 'file'), '');
  await expect(FolderResponseStore.open(join(folder, 'file', 'responses'), LIMITS, now)).rejects.toThrow();
});

test('a server keeps responses in its data directory, in memory without one, and nowhere behind a gateway', async () => {
  const open = (options: object) =>
    openResponseStore({ dataDir: undefined, replicaSecret: undefined, storedResponses: LIMITS, ...options });
  expect(await open({})).toBeInstanceOf(MemoryResponseStore);
  expect(await open({ dataDir: folder })).toBeInstanceOf(FolderResponseStore);
  expect(existsSync(join(folder, 'responses'))).toBe(true);
  expect(await open({ dataDir: folder, replicaSecret: 'secret' })).toBeUndefined();
  expect(await open({ storedResponses: { ...LIMITS, maxBytes: 0 } })).toBeUndefined();
});

test('an update does not restore what another server has deleted', async () => {
  const path = join(folder, 'responses');
  const store = await FolderResponseStore.open(path, LIMITS, now);
  await store.put('ada', 'resp_1', 'a');
  const updated = await store.update('ada', 'resp_1', () => {
    rmSync(path, { recursive: true });
    return 'b';
  });
  expect(updated).toBeUndefined();
  expect(await store.get('ada', 'resp_1')).toBeUndefined();
});
