import { lingering } from '../../../../server/platform/gateway/forward/linger';

beforeEach(() => jest.useFakeTimers());
afterEach(() => jest.useRealTimers());

test('a signal lingers for a limited time', () => {
  const client = new AbortController();
  const signal = lingering(client.signal, undefined, 1_000);
  jest.advanceTimersByTime(5_000);
  client.abort('the client has left');
  jest.advanceTimersByTime(999);
  expect(signal.aborted).toBe(false);
  jest.advanceTimersByTime(1);
  expect(signal.reason).toBe('the client has left');
});

test('a client that has left already, and a limit that ends at once', () => {
  const limit = new AbortController();
  const signals = [
    lingering(AbortSignal.abort(), undefined, 1_000),
    lingering(AbortSignal.abort(), limit.signal, 1_000),
  ];
  limit.abort('the time is over');
  expect(signals.map(({ aborted }) => aborted)).toEqual([false, true]);
  jest.advanceTimersByTime(1_000);
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, true]);
});
