import { QueueLimiter } from '../../ts/queue-limiter';

const state = { numWaiting: 0, queuedPromptTokens: 0 };

function makeLimiter(maxRequests: number, maxTokens = Infinity): QueueLimiter {
  return new QueueLimiter({ maxRequests, maxTokens, stats: () => state });
}

function queueFull(message: string): Error {
  return expect.objectContaining({ code: 'queue_full', message: `The queue is full: ${message}` }) as Error;
}

beforeEach(() => Object.assign(state, { numWaiting: 0, queuedPromptTokens: 0 }));

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
