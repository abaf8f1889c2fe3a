/** Memory and time of bodies whose field `model` has not arrived, and of bodies for upstreams. */
import type { StreamedRequest } from '../../../../server/http/transport';
import { ModelBodies } from '../../../../server/platform/gateway/model-body';
import { GatheredBodies } from '../../../../server/platform/gateway/upstreams/gathered-body';

const LIMITS = { totalBytes: 1_600, timeoutMs: 60_000 };
const stops: (() => void)[] = [];
afterEach(() => stops.splice(0).forEach((stop) => stop()));

/** A request that sends `pieces`, and then nothing until the end of the test. */
function sending(pieces: readonly string[], headers: [string, string][] = [], isEnding = false): StreamedRequest {
  const body = async function* () {
    for (const piece of pieces) yield Buffer.from(piece);
    if (!isEnding) await new Promise<void>((resolve) => stops.push(resolve));
  };
  return { headers, bodyPieces: body } as unknown as StreamedRequest;
}

const CHUNKED: [string, string][] = [['transfer-encoding', 'chunked']];
const START = `{"a":"${'x'.repeat(54)}`;
const settle = () => new Promise((resolve) => setImmediate(resolve));

test.each([
  ['long', CHUNKED],
  ['short', []],
] as [string, [string, string][]][])(
  'an owner holds a sixteenth of the memory with %s bodies',
  async (_what, headers) => {
    const bodies = new ModelBodies(LIMITS);
    void bodies.read(sending([START], headers), 'own_1').catch(() => {});
    await settle();
    await expect(bodies.read(sending([START], headers), 'own_1')).rejects.toMatchObject({ code: 'queue_full' });
    // Other owners have their own share.
    const whole = sending([START, '","model":"chat"}'], headers, true);
    const body = await bodies.read(whole, 'own_2');
    expect(body.field.value).toBe('chat');
    body.close();
    stops.splice(0).forEach((stop) => stop());
    await settle();
    for (let i = 0; i < 3; i++) {
      const next = await bodies.read(sending([START, '","model":"chat"}'], headers, true), 'own_1');
      next.close();
    }
  },
);

test('all owners together do not exceed the total', async () => {
  const bodies = new ModelBodies(LIMITS);
  for (let i = 0; i < 26; i++) void bodies.read(sending([START], CHUNKED), `own_${i}`).catch(() => {});
  await settle();
  await expect(bodies.read(sending([START], CHUNKED), 'own_26')).rejects.toMatchObject({ code: 'queue_full' });
});

test.each([
  ['long', CHUNKED],
  ['short', []],
] as [string, [string, string][]][])('a %s body with a second model is refused', async (_what, headers) => {
  const bodies = new ModelBodies(LIMITS);
  const send = async () => {
    const body = await bodies.read(sending(['{"model":"a",', '"n":1,', '"model":"b"}'], headers, true), 'own_1');
    for await (const piece of body.withModel('c')) expect(piece).toBeDefined();
  };
  await expect(send()).rejects.toMatchObject({ code: 'invalid_value', param: 'model' });
});

test('a body that arrives byte by byte ends at one time limit', async () => {
  const bodies = new ModelBodies({ totalBytes: 1e9, timeoutMs: 20 });
  const drip = async function* () {
    for (;;) {
      yield Buffer.from(' ');
      await settle();
    }
  };
  for (const headers of [CHUNKED, []]) {
    const request = { headers, bodyPieces: drip } as unknown as StreamedRequest;
    await expect(bodies.read(request, 'own_1')).rejects.toMatchObject({ code: 'request_timeout' });
    await expect(bodies.read(sending([START], headers), 'own_1')).rejects.toMatchObject({ code: 'request_timeout' });
  }
});

describe('bodies for upstreams', () => {
  const arriving = (pieces: readonly string[], isEnding = false) => sending(pieces, CHUNKED, isEnding).bodyPieces();

  test('an owner holds an eighth of the memory until they have arrived', async () => {
    const bodies = new GatheredBodies({ totalBytes: 800, timeoutMs: 60_000 });
    void bodies.read(arriving([START]), 'own_1').catch(() => {});
    await settle();
    await expect(bodies.read(arriving([START]), 'own_1')).rejects.toMatchObject({ code: 'queue_full' });
    expect((await bodies.read(arriving([START, '"}'], true), 'own_2')).toString()).toBe(`${START}"}`);
    stops.splice(0).forEach((stop) => stop());
    await settle();
    for (let i = 0; i < 3; i++) await bodies.read(arriving([START], true), 'own_1');
  });

  test('all owners together do not exceed the total', async () => {
    const bodies = new GatheredBodies({ totalBytes: 800, timeoutMs: 60_000 });
    for (let i = 0; i < 13; i++) void bodies.read(arriving([START]), `own_${i}`).catch(() => {});
    await settle();
    await expect(bodies.read(arriving([START]), 'own_13')).rejects.toMatchObject({ code: 'queue_full' });
  });

  test('one that drips ends at one time limit, and frees its memory', async () => {
    const bodies = new GatheredBodies({ totalBytes: 800, timeoutMs: 20 });
    await expect(bodies.read(arriving([START]), 'own_1')).rejects.toMatchObject({ code: 'request_timeout' });
    await bodies.read(arriving([START], true), 'own_1');
  });
});
