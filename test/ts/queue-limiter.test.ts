import { QueueLimiter } from '../../ts/queue-limiter';

const state = { numRunning: 0, numWaiting: 0, numBackground: 0, queuedPromptTokens: 0, queuedBackgroundTokens: 0 };

function makeLimiter(maxRequests: number, maxTokens = Infinity, maxRunning = 0): QueueLimiter {
  return new QueueLimiter({ maxRunning, maxRequests, maxTokens, stats: () => state });
}

function queueFull(message: string): Error {
  return expect.objectContaining({ code: 'queue_full', message: `The queue is full: ${message}` }) as Error;
}

beforeEach(() =>
  Object.assign(state, {
    numRunning: 0,
    numWaiting: 0,
    numBackground: 0,
    queuedPromptTokens: 0,
    queuedBackgroundTokens: 0,
  }),
);

test('counts calls in preparation like those in the engine', () => {
  const limiter = makeLimiter(3);
  state.numWaiting = 1;
  const first = limiter.reserve();
  limiter.reserve();
  expect(() => limiter.check()).toThrow(queueFull('3 of at most 3 sequences are waiting'));
  expect(() => limiter.reserve()).toThrow(queueFull('3 of at most 3 sequences are waiting'));
  first.release();
  first.release();
  expect(() => limiter.check()).not.toThrow();
  state.numWaiting = 2;
  expect(() => limiter.check()).toThrow();
});

test('free running slots count before the queue', () => {
  const limiter = makeLimiter(2, Infinity, 2);
  const calls = Array.from({ length: 4 }, () => limiter.reserve());
  expect(() => limiter.reserve()).toThrow(queueFull('2 of at most 2 sequences are waiting'));
  calls.forEach((call) => call.release());
  Object.assign(state, { numRunning: 2, numWaiting: 1 });
  expect(() => limiter.check()).not.toThrow();
  state.numWaiting = 2;
  expect(() => limiter.check()).toThrow(queueFull('2 of at most 2 sequences are waiting'));
});

test('estimates the tokens of a text, then counts its real tokens', () => {
  const limiter = makeLimiter(10, 100);
  state.queuedPromptTokens = 40;
  const reservation = limiter.reserve();
  reservation.setPrompt('x'.repeat(240));
  expect(() => limiter.check()).toThrow(queueFull('100 of at most 100 prompt tokens are waiting'));
  reservation.setPrompt(new Int32Array(59));
  expect(() => limiter.check()).not.toThrow();
  expect(() => reservation.setPrompt(new Int32Array(61))).toThrow(
    queueFull('101 of at most 100 prompt tokens are waiting'),
  );
  reservation.release();
  reservation.setPrompt('x'.repeat(4000));
  expect(() => limiter.check()).not.toThrow();
});

test('aborts the signal of a reservation when it is released', () => {
  const reservation = makeLimiter(1).reserve();
  const { signal } = reservation;
  expect(signal.aborted).toBe(false);
  reservation.release();
  expect([signal.aborted, reservation.signal.aborted]).toEqual([true, true]);
});

test('accepts a prompt over the limit if nothing else waits', () => {
  const limiter = makeLimiter(10, 100);
  limiter.reserve().setPrompt(new Int32Array(500));
  expect(() => limiter.check()).toThrow();
});

test('background work counts against background work only', () => {
  const limiter = makeLimiter(1, 10);
  Object.assign(state, { numWaiting: 1, numBackground: 1, queuedPromptTokens: 10, queuedBackgroundTokens: 10 });
  expect(() => limiter.check(1)).toThrow(queueFull('1 of at most 1 sequences are waiting'));
  expect(() => limiter.check()).not.toThrow();
  const urgent = limiter.reserve(-1);
  expect(() => limiter.reserve()).toThrow(queueFull('1 of at most 1 sequences are waiting'));
  urgent.release();
  Object.assign(state, { numWaiting: 0, numBackground: 0, queuedPromptTokens: 0, queuedBackgroundTokens: 0 });
  const background = limiter.reserve(1);
  background.setPrompt(new Int32Array(10));
  expect(() => limiter.reserve(2)).toThrow(queueFull('1 of at most 1 sequences are waiting'));
  limiter.reserve().release();
  background.release();
  expect(() => limiter.check(1)).not.toThrow();
});
