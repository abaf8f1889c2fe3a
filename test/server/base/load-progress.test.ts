import { formatBytes } from '../../../server/base/bytes';
import { LoadProgress } from '../../../server/base/load-progress';

const done = (doneBytes: number, stage: 'load' | 'download' = 'load') => ({ stage, doneBytes, totalBytes: 100 });

function onTerminal() {
  const state = { text: '', nowMs: 0 };
  const io = { isTty: true, write: (piece: string) => void (state.text += piece), now: () => state.nowMs };
  return { state, progress: new LoadProgress(() => fail('no line on a terminal'), io) };
}

function fail(message: string): never {
  throw new Error(message);
}

test('shows the share of a load in place on a terminal', () => {
  const { state, progress } = onTerminal();
  for (const bytes of [0, 0, 42.5, 100]) progress.update(done(bytes));
  progress.end();
  expect(state.text).toBe(
    '\r\x1b[KLoading the model: 0 %\r\x1b[KLoading the model: 42 %\r\x1b[KLoading the model: 100 %\r\x1b[K',
  );
});

test('shows the share, speed and remaining time of a download, ten times per second', () => {
  const { state, progress } = onTerminal();
  progress.update(done(20, 'download'));
  state.nowMs = 50;
  progress.update(done(21, 'download'));
  state.nowMs = 2000;
  progress.update(done(40, 'download'));
  expect(state.text).toBe(
    '\r\x1b[KDownloading the model: 20 % of 100 B\r\x1b[KDownloading the model: 40 % of 100 B, 10 B/s, 6 s left',
  );
});

test('writes a line every ten seconds without a terminal', () => {
  let nowMs = 0;
  const lines: unknown[][] = [];
  const io = { isTty: false, write: () => fail('no terminal'), now: () => nowMs };
  const progress = new LoadProgress((...line) => lines.push(line), io);
  for (nowMs = 0; nowMs <= 25_000; nowMs += 1000)
    progress.update(done(nowMs / 1000, nowMs < 15_000 ? 'download' : 'load'));
  progress.end();
  expect(lines).toEqual([
    ['downloading the model: 10 % of 100 B, 1 B/s, 90 s left', { percent: 10, ...done(10, 'download') }],
    ['loading the model', { percent: 20, ...done(20) }],
  ]);
});

test.each([
  [0, '0 B'],
  [999, '999 B'],
  [1000, '1.0 kB'],
  [99_940, '99.9 kB'],
  [99_960, '100 kB'],
  [999_600, '1.0 MB'],
  [1_234_567_890, '1.2 GB'],
  [5e15, '5000 TB'],
])('%d bytes are %s', (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text);
});
