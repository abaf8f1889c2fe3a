/** Memory and time of bodies that a budget needs whole. */
import { WholeBodies } from '../../../../server/platform/gateway/whole-bodies';

const LIMITS = { bodyBytes: 100, totalBytes: 260, timeoutMs: 60_000 };
const stops: (() => void)[] = [];
afterEach(() => stops.splice(0).forEach((stop) => stop()));

/** Sends `numBytes`, and then nothing until the end of the test. */
async function* waiting(numBytes: number): AsyncGenerator<Buffer> {
  yield Buffer.alloc(numBytes);
  await new Promise<void>((resolve) => stops.push(resolve));
}

async function* sending(...sizes: number[]): AsyncGenerator<Buffer> {
  for (const size of sizes) yield Buffer.alloc(size);
}

const settle = () => new Promise((resolve) => setImmediate(resolve));

test('an owner holds at most its share, and gets it back', async () => {
  const bodies = new WholeBodies(LIMITS);
  const first = bodies.read(waiting(60), 'own_1');
  await settle();
  await expect(bodies.read(sending(50), 'own_1')).rejects.toMatchObject({ code: 'queue_full' });
  expect(await bodies.read(sending(50, 50), 'own_2')).toHaveLength(100);
  stops.splice(0).forEach((stop) => stop());
  expect(await first).toHaveLength(60);
  for (let i = 0; i < 3; i++) expect(await bodies.read(sending(100), 'own_1')).toHaveLength(100);
});

test('an owner gets at most half of what the others leave, and no body more than its limit', async () => {
  const bodies = new WholeBodies(LIMITS);
  const open = [80, 80, 45, 20, 10].map((numBytes, i) => bodies.read(waiting(numBytes), `own_${i}`));
  await settle();
  await expect(bodies.read(sending(13), 'own_5')).rejects.toMatchObject({ code: 'queue_full' });
  expect(await bodies.read(sending(12), 'own_5')).toHaveLength(12);
  await expect(bodies.read(sending(101), 'own_6')).rejects.toMatchObject({ code: 'request_too_large' });
  stops.splice(0).forEach((stop) => stop());
  expect(await Promise.all(open)).toHaveLength(5);
});

test('a body that arrives byte by byte ends at the time limit, and its space is free', async () => {
  const bodies = new WholeBodies({ ...LIMITS, bodyBytes: 1e9, totalBytes: 1e9, timeoutMs: 20 });
  const drip = async function* () {
    for (;;) {
      yield Buffer.from(' ');
      await settle();
    }
  };
  await expect(bodies.read(drip(), 'own_1')).rejects.toMatchObject({ code: 'request_timeout' });
  expect(await bodies.read(sending(1e6), 'own_1')).toHaveLength(1e6);
});
