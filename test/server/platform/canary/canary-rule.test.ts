/** The statistics of the roll-back, with seeded random outcomes. */
import { CanaryMeter } from '../../../../server/platform/canary/canary-rule';
import { random } from '../control/random';

/** Runs a canary beside a stable version. Returns after how many canary requests it is rolled back, or undefined. */
function rolledBackAfter(
  seed: number,
  numRequests: number,
  rates: { canary: number; stable: number },
  meter = new CanaryMeter(),
): number | undefined {
  const { next } = random(seed);
  for (let i = 1; i <= numRequests; i++) {
    for (let k = 0; k < 9; k++) meter.record('stable', { isError: next() < rates.stable });
    if (meter.record('canary', { isError: next() < rates.canary }) !== undefined) return i;
  }
  return undefined;
}

const seeds = Array.from({ length: 500 }, (_, i) => i + 1);

test('a canary that fails every fifth request is back within 50 of them', () => {
  const meter = new CanaryMeter();
  let numRequests = 0;
  let reason: string | undefined;
  while (reason === undefined) reason = meter.record('canary', { isError: ++numRequests % 5 === 0 });
  expect(numRequests).toBeLessThanOrEqual(50);
  expect(reason).toBe(`errors: ${numRequests / 5} of ${numRequests} requests, and 0 of 0 of the active version`);
});

test('a canary that fails 20 % of its requests at random is back within 50 of them', () => {
  const ends = seeds.map((seed) => rolledBackAfter(seed, 50, { canary: 0.2, stable: 0 }) ?? Infinity);
  const numBack = ends.filter((end) => end <= 50).length;
  expect(numBack / seeds.length).toBeGreaterThan(0.96);
  expect(ends.sort((a, b) => a - b)[seeds.length / 2]).toBeLessThan(25);
  // The others are found a little later.
  expect(seeds.filter((seed) => rolledBackAfter(seed, 100, { canary: 0.2, stable: 0 }) === undefined)).toEqual([]);
});

test.each([
  ['without errors', 0, 0],
  ['with the errors of the active version', 0.01, 0.01],
  ['with 5 % errors like the stable version', 0.05, 0.05],
  ['better than a bad stable version', 0.1, 0.3],
])('a healthy canary stays: %s', (_name, canary, stable) => {
  const numBack = seeds
    .slice(0, 100)
    .filter((seed) => rolledBackAfter(seed, 500, { canary, stable }) !== undefined).length;
  expect(numBack).toBeLessThanOrEqual(1);
});

test('one that gets worse after 10,000 good requests is found as well', () => {
  const meter = new CanaryMeter();
  for (let i = 0; i < 10_000; i++) meter.record('canary', { isError: false });
  const end = rolledBackAfter(1, 100, { canary: 0.2, stable: 0 }, meter);
  expect(end).toBeLessThanOrEqual(100);
});

test('a slow canary is back when both medians are known, and a slightly slower one stays', () => {
  const run = (canaryMs: number) => {
    const meter = new CanaryMeter();
    for (let i = 1; i <= 200; i++) {
      // Outliers do not count.
      meter.record('stable', { isError: false, firstTokenMs: i % 10 === 0 ? 60_000 : 100 });
      const reason = meter.record('canary', { isError: false, firstTokenMs: i % 10 === 0 ? 60_000 : canaryMs });
      if (reason !== undefined) return { i, reason };
    }
    return undefined;
  };
  expect(run(400)).toEqual({ i: 20, reason: 'first token: 400 ms, and 100 ms of the active version (medians)' });
  expect(run(290)).toBeUndefined();
});

test('continues with saved statistics', () => {
  const meter = new CanaryMeter();
  for (let i = 0; i < 30; i++) meter.record('stable', { isError: i === 0, firstTokenMs: 50 });
  meter.record('canary', { isError: true });
  const saved = meter.stats;
  expect(saved).toMatchObject({
    stable: { requests: 30, errors: 1, first_token_ms: 50 },
    canary: { requests: 1, errors: 1, first_token_ms: null },
  });
  const again = new CanaryMeter(JSON.parse(JSON.stringify(saved)) as typeof saved);
  expect(again.stats).toEqual(saved);
  const reasons = [1, 2, 3, 4].map(() => again.record('canary', { isError: true }));
  expect(reasons.at(-1)).toMatch(/^errors: 5 of 5 requests, and 1 of 30 /);
});
