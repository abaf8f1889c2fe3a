/** Logs on disk: numbers without gaps even after crashes, searching, following, expiry. */
import { appendFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync } from 'node:fs';
import * as fsPromises from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { generateKey, redactKeys } from '../../../../server/base/key-format';
import type { LogLine, NewLogLine } from '../../../../server/platform/driver/logs/log-line';
import { LogExpiredError, LogStore } from '../../../../server/platform/driver/logs/log-store';

const LOG = 'ver_01TEST';
let folder: string;
let store: LogStore;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'capstan-logs-'));
  store = open();
});
afterEach(async () => {
  await store.close();
  rmSync(folder, { recursive: true });
});

function open(options: Partial<ConstructorParameters<typeof LogStore>[0]> = {}): LogStore {
  return new LogStore({ folder, redact: redactKeys, ...options });
}
const reopen = async (options = {}): Promise<void> => {
  await store.close();
  store = open(options);
};
const line = (text: string, more: Partial<NewLogLine> = {}): NewLogLine => ({
  at: 1_000,
  stream: 'stdout',
  replica: 0,
  text,
  ...more,
});
const numbered = (from: number, to: number): NewLogLine[] =>
  Array.from({ length: to - from + 1 }, (_, i) => line(`line ${from + i}`, { at: (from + i) * 1000 }));
const texts = (lines: readonly LogLine[]): string[] => lines.map(({ text }) => text);
const seqs = (lines: readonly LogLine[]): number[] => lines.map(({ seq }) => seq);
const segmentsOf = (): string[] => readdirSync(join(folder, LOG)).sort();

test('numbers lines from 1 without gaps over writes, segments and restarts', async () => {
  await reopen({ segmentBytes: 200 });
  await Promise.all([store.append(LOG, numbered(1, 3)), store.append(LOG, numbered(4, 30))]);
  await reopen({ segmentBytes: 200 });
  await store.append(LOG, numbered(31, 40));
  const { lines, next, firstSeq, lastSeq } = await store.read(LOG, { after: 0, limit: 100 });
  expect(seqs(lines)).toEqual(Array.from({ length: 40 }, (_, i) => i + 1));
  expect(texts(lines)).toEqual(numbered(1, 40).map(({ text }) => text));
  expect([next, firstSeq, lastSeq]).toEqual([undefined, 1, 40]);
  expect(segmentsOf().length).toBeGreaterThan(1);
});

test('pages end at their limit and say where to continue, both ways', async () => {
  await reopen({ segmentBytes: 300 });
  for (let i = 1; i <= 50; i += 10) await store.append(LOG, numbered(i, i + 9));
  const found: number[] = [];
  for (let after: number | undefined = 0; after !== undefined;) {
    const page: Awaited<ReturnType<LogStore['read']>> = await store.read(LOG, { after, limit: 7 });
    found.push(...seqs(page.lines));
    after = page.next;
  }
  expect(found).toEqual(Array.from({ length: 50 }, (_, i) => i + 1));
  const last = await store.read(LOG, { limit: 7 });
  expect([seqs(last.lines), last.next]).toEqual([[44, 45, 46, 47, 48, 49, 50], 44]);
  const backwards: number[] = [];
  for (let before: number | undefined = 51; before !== undefined;) {
    const page: Awaited<ReturnType<LogStore['read']>> = await store.read(LOG, { before, limit: 7 });
    backwards.unshift(...seqs(page.lines));
    before = page.next;
  }
  expect(backwards).toEqual(found);
});

test('finds lines by stream, replica, time and plain text, ignoring case', async () => {
  await store.append(LOG, [
    line('Alpha (beta)', { at: 10 }),
    line('alpha', { at: 20, stream: 'stderr' }),
    line('gamma', { at: 30, replica: 1 }),
    line('a+b', { at: 40, stream: 'system' }),
  ]);
  const find = async (filter: object): Promise<number[]> =>
    seqs((await store.read(LOG, { after: 0, limit: 10, ...filter })).lines);
  expect(await find({ stream: 'stderr' })).toEqual([2]);
  expect(await find({ replica: 1 })).toEqual([3]);
  expect(await find({ since: 20, until: 30 })).toEqual([2, 3]);
  expect(await find({ text: 'ALPHA' })).toEqual([1, 2]);
  expect(await find({ text: '(beta' })).toEqual([1]);
  expect(await find({ text: 'a.b' })).toEqual([]);
  expect(seqs((await store.read(LOG, { limit: 1, text: 'alpha' })).lines)).toEqual([2]);
});

test('searches a whole log in bounded steps, both ways', async () => {
  await reopen({ segmentBytes: 50 });
  await store.append(LOG, [line('needle')]);
  for (let i = 2; i <= 120; i++) await store.append(LOG, [line(`hay ${i}`)]);
  await store.append(LOG, [line('needle')]);
  const found: number[] = [];
  let numPages = 0;
  for (let before: number | undefined = 1_000; before !== undefined; numPages++) {
    const page: Awaited<ReturnType<LogStore['read']>> = await store.read(LOG, { before, limit: 10, text: 'needle' });
    found.push(...seqs(page.lines));
    before = page.next;
  }
  for (let after: number | undefined = 0; after !== undefined; numPages++) {
    const page: Awaited<ReturnType<LogStore['read']>> = await store.read(LOG, { after, limit: 10, text: 'needle' });
    found.push(...seqs(page.lines));
    after = page.next;
  }
  expect(found).toEqual([121, 1, 1, 121]);
  expect(numPages).toBe(4);
});

test('keeps any text unchanged and does not split it at a line feed', async () => {
  const odd = ['', ' leading', '# ver_x 1 2', '1 2 o0 fake', 'tab\tand \u001b[31mred\u001b[0m', '运行中 🚀', '\u2028'];
  await store.append(
    LOG,
    odd.map((text) => line(text)),
  );
  await store.append(LOG, [line('a\nb')]);
  await reopen();
  expect(texts((await store.read(LOG, { after: 0, limit: 10 })).lines)).toEqual([...odd, 'a\u2028b']);
});

test('writes no access key to disk, and keeps text that only resembles one', async () => {
  const { secret } = generateKey();
  const typo = `${secret.slice(0, -1)}${secret.endsWith('a') ? 'b' : 'a'}`;
  await store.append(LOG, [line(`key=${secret} and ${typo}`)]);
  const written = readFileSync(join(folder, LOG, segmentsOf()[0]), 'utf8');
  expect(written).not.toContain(secret);
  expect(written).toContain(typo);
});

test('drops a partial write of a crash, with its position', async () => {
  await store.append(LOG, numbered(1, 3), { replicaId: 'rep_a', position: { file: 1, offset: 30 } });
  await store.close();
  appendFileSync(join(folder, LOG, segmentsOf()[0]), '4 4000 o0 line 4\n5 5000 o0 li');
  store = open();
  expect(await store.positionOf(LOG, 'rep_a')).toEqual({ file: 1, offset: 30 });
  await store.append(LOG, numbered(4, 5), { replicaId: 'rep_a', position: { file: 1, offset: 50 } });
  await reopen();
  expect(texts((await store.read(LOG, { after: 0, limit: 10 })).lines)).toEqual(numbered(1, 5).map(({ text }) => text));
  expect(await store.positionOf(LOG, 'rep_a')).toEqual({ file: 1, offset: 50 });
});

test('positions outlive the segment they were written to', async () => {
  await reopen({ segmentBytes: 100, maxBytes: 200 });
  await store.append(LOG, numbered(1, 2), { replicaId: 'rep_a', position: { file: 7, offset: 9 } });
  for (let i = 3; i < 60; i++)
    await store.append(LOG, numbered(i, i), { replicaId: 'rep_b', position: { file: 1, offset: i } });
  await reopen();
  expect(await store.positionOf(LOG, 'rep_a')).toEqual({ file: 7, offset: 9 });
  expect(await store.positionOf(LOG, 'rep_b')).toEqual({ file: 1, offset: 59 });
});

test('removes the oldest segments by size and age, and rejects reads of expired lines', async () => {
  await reopen({ segmentBytes: 200, maxBytes: 600 });
  for (let i = 1; i <= 100; i++) await store.append(LOG, numbered(i, i));
  const { firstSeq, lastSeq } = await store.read(LOG, { limit: 1 });
  expect(firstSeq).toBeGreaterThan(50);
  expect(lastSeq).toBe(100);
  await expect(store.read(LOG, { after: 5, limit: 1 })).rejects.toThrow(LogExpiredError);
  expect(seqs((await store.read(LOG, { after: firstSeq! - 1, limit: 1 })).lines)).toEqual([firstSeq]);
  // The log is not open and completely expired. Its last segment stays.
  await store.close();
  const old = new Date(Date.now() - 40 * 86_400_000);
  for (const name of segmentsOf()) utimesSync(join(folder, LOG, name), old, old);
  store = open();
  await store.expire();
  expect(segmentsOf()).toHaveLength(1);
  expect((await store.read(LOG, { limit: 1 })).lastSeq).toBe(100);
});

test('follows from a number with existing and new lines until the signal aborts', async () => {
  await store.append(LOG, numbered(1, 3));
  const controller = new AbortController();
  const received: number[] = [];
  const following = (async () => {
    for await (const lines of store.follow(LOG, 1, {}, controller.signal)) {
      received.push(...seqs(lines));
      if (received.at(-1) === 600) controller.abort();
    }
  })();
  await store.append(LOG, numbered(4, 5));
  await store.append(LOG, numbered(6, 599));
  await store.append(LOG, numbered(600, 600));
  await following;
  expect(received).toEqual(Array.from({ length: 599 }, (_, i) => i + 2));
  for await (const lines of store.follow(LOG, 600, {}, controller.signal))
    throw new Error(`expected nothing, got ${lines.length}`);
});

test('a follower with a filter gets only matching lines', async () => {
  const controller = new AbortController();
  const first = store.follow(LOG, 0, { text: 'wanted' }, controller.signal).next();
  await store.append(LOG, [line('other')]);
  await store.append(LOG, [line('other'), line('wanted')]);
  expect(seqs((await first).value as LogLine[])).toEqual([3]);
  controller.abort();
});

test('a full disk rejects the whole write, and the log notes the gap afterwards', async () => {
  await store.append(LOG, numbered(1, 1));
  const file = join(folder, LOG, segmentsOf()[0]);
  const before = readFileSync(file);
  const prototype = Object.getPrototypeOf(
    await fsPromises.open(file, 'r').then(async (handle) => {
      await handle.close();
      return handle;
    }),
  ) as { write(...args: unknown[]): Promise<unknown> };
  const full = jest.spyOn(prototype, 'write').mockImplementation(function (this: {
    appendFile(text: string): Promise<void>;
  }) {
    return this.appendFile('2 2000 o0 li').then(() =>
      Promise.reject(Object.assign(new Error('no space left on device'), { code: 'ENOSPC' })),
    );
  });
  await expect(store.append(LOG, numbered(2, 3))).rejects.toThrow('no space');
  await store.note(LOG, 0, 'started');
  full.mockRestore();
  expect(readFileSync(file).equals(before)).toBe(true);
  await store.append(LOG, numbered(2, 3));
  const { lines } = await store.read(LOG, { after: 0, limit: 10 });
  expect(texts(lines)).toEqual([
    'line 1',
    expect.stringContaining('could not be written since'),
    'started',
    'line 2',
    'line 3',
  ]);
  expect(seqs(lines)).toEqual([1, 2, 3, 4, 5]);
});

test('deletes a log and refuses invalid names', async () => {
  await store.append(LOG, numbered(1, 1));
  await store.delete(LOG);
  expect(existsSync(join(folder, LOG))).toBe(false);
  expect(await store.read(LOG, { limit: 5 })).toEqual({
    lines: [],
    next: undefined,
    firstSeq: undefined,
    lastSeq: undefined,
  });
  for (const bad of ['../x', '', 'ver_', 'ver_a/b'])
    await expect(store.append(bad, [])).rejects.toThrow('expected an id');
});
