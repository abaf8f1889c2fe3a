import { steadyClock } from '../../../../server/access/feed/clock';

function setUp() {
  let wallMs = 1_800_000_000_000;
  let monotonicMs = 5_000;
  const clock = steadyClock(
    () => wallMs,
    () => monotonicMs,
  );
  return {
    clock,
    /** Both go on; the wall clock is also set. */
    pass: (ms: number, setByMs = 0) => {
      monotonicMs += ms;
      wallMs += ms + setByMs;
      return clock() - wallMs;
    },
  };
}

test('follows the wall clock and its drift', () => {
  const { clock, pass } = setUp();
  expect(clock()).toBe(1_800_000_000_000);
  for (let i = 0; i < 100; i++) expect(pass(60_000, i % 3 === 0 ? 500 : -500)).toBe(0);
});

test.each([
  ['forwards', 3_600_000],
  ['backwards', -3_600_000],
])('a step %s is no time that has passed until it has lasted a minute', (_name, step) => {
  const { pass } = setUp();
  expect(pass(1_000, step)).toBe(-step);
  for (let i = 0; i < 59; i++) expect(pass(1_000)).toBe(-step);
  expect(pass(1_000)).toBe(0);
});

test('glitches have no lasting effect', () => {
  const { pass } = setUp();
  for (let i = 0; i < 10; i++) {
    expect(pass(10_000, 1e9)).toBe(-1e9);
    expect(pass(10_000, -2e9)).toBe(1e9);
    expect(pass(1_000, 1e9)).toBe(0);
  }
});

test('never runs backwards during a glitch', () => {
  const { clock, pass } = setUp();
  let last = clock();
  for (const step of [5_000, -9_000, 1e7, -1e7, 4_000, 0, 0]) {
    pass(10, step);
    expect(clock()).toBeGreaterThan(last);
    last = clock();
  }
});
