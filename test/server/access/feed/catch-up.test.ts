import { CatchUp } from '../../../../server/access/feed/catch-up';
import { fakeClock } from '../support';

afterEach(() => {
  jest.useRealTimers();
});

function setUp() {
  const clock = fakeClock(0);
  const reads: { end: () => void; fail: (error: Error) => void }[] = [];
  const catchUp = new CatchUp(
    () => new Promise<void>((end, fail) => reads.push({ end, fail })),
    () => clock.now(),
  );
  return { clock, reads, catchUp };
}

/** Runs what is ready to run. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

test('a flood shares one read, and all but 256 do not wait', async () => {
  const { reads, catchUp } = setUp();
  const waits = Array.from({ length: 10_000 }, () => catchUp.wait()).filter((wait) => wait !== undefined);
  expect(waits).toHaveLength(256);
  await settle();
  expect(reads).toHaveLength(1);
  reads[0].end();
  await Promise.all(waits);
  expect(catchUp.wait()).toBeDefined();
});

test('a request that comes during a read waits for another one, which starts 50 ms after the first', async () => {
  jest.useFakeTimers({ doNotFake: ['setImmediate'] });
  const { clock, reads, catchUp } = setUp();
  const first = catchUp.wait();
  await settle();
  clock.advance(20);
  let isOver = false;
  const second = catchUp.wait()?.then(() => (isOver = true));
  reads[0].end();
  await first;
  await jest.advanceTimersByTimeAsync(29);
  expect([isOver, reads.length]).toEqual([false, 1]);
  await jest.advanceTimersByTimeAsync(1);
  expect([isOver, reads.length]).toEqual([false, 2]);
  reads[1].end();
  await second;
});

test('a read that fails or hangs ends the wait, and the table decides', async () => {
  const { clock, reads, catchUp } = setUp();
  const failing = catchUp.wait();
  await settle();
  reads[0].fail(new Error('the database is gone'));
  await failing;
  jest.useFakeTimers();
  clock.advance(50);
  const hanging = catchUp.wait();
  await jest.advanceTimersByTimeAsync(1_000);
  expect(reads).toHaveLength(2);
  await hanging;
});
