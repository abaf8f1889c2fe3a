import { WaitingRoom } from '../../ts/waiting-room';

const state = { numWaiting: 0, queuedPromptTokens: 0 };

function room(maxRequests: number, maxTokens = Infinity): WaitingRoom {
  return new WaitingRoom({ maxRequests, maxTokens, waiting: () => state });
}

const full = (message: string): unknown => expect.objectContaining({ code: 'queue_full', message });

beforeEach(() => Object.assign(state, { numWaiting: 0, queuedPromptTokens: 0 }));

test('calls on their way count like those that the engine holds', () => {
  const waiting = room(3);
  state.numWaiting = 1;
  const first = waiting.enter();
  waiting.enter();
  expect(() => waiting.check()).toThrow(full('The queue is full: 3 of at most 3 sequences wait') as Error);
  expect(() => waiting.enter()).toThrow(full('The queue is full: 3 of at most 3 sequences wait') as Error);
  first.leave();
  first.leave();
  expect(() => waiting.check()).not.toThrow();
  state.numWaiting = 2;
  expect(() => waiting.check()).toThrow();
});

test('prompt tokens count: by their text at first, then as they are', () => {
  const waiting = room(10, 100);
  state.queuedPromptTokens = 40;
  const place = waiting.enter();
  place.expect('x'.repeat(240));
  expect(() => waiting.check()).toThrow(full('The queue is full: 100 of at most 100 prompt tokens wait') as Error);
  place.expect(new Int32Array(59));
  expect(() => waiting.check()).not.toThrow();
  expect(() => place.expect(new Int32Array(61))).toThrow(
    full('The queue is full: 101 of at most 100 prompt tokens wait') as Error,
  );
  place.leave();
  place.expect('x'.repeat(4000));
  expect(() => waiting.check()).not.toThrow();
});

test('whoever leaves lets go of what is made for it', () => {
  const place = room(1).enter();
  const { signal } = place;
  expect(signal.aborted).toBe(false);
  place.leave();
  expect([signal.aborted, place.signal.aborted]).toEqual([true, true]);
});

test('a prompt longer than the limit may wait alone', () => {
  const waiting = room(10, 100);
  waiting.enter().expect(new Int32Array(500));
  expect(() => waiting.check()).toThrow();
});
