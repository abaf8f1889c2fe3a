/** What becomes of lines, places of lines, and the bytes of responses that are kept. */
import type { Access } from '../../../../server/access';
import type { HttpReply, ReplyHeaders, StreamedRequest } from '../../../../server/http/transport';
import { topLevelValues, withoutTopLevelField, withTopLevelValues } from '../../../../server/base/json/top-level';
import { Targets } from '../../../../server/platform/gateway/targets';
import { GatewayLines } from '../../../../server/platform/storage/gateway-lines';
import { KeptReply } from '../../../../server/platform/storage/kept-reply';
import { ResponseRewriter, type WireResponse } from '../../../../server/platform/storage/response-rewriter';
import { LinePlaces } from '../../../../server/platform/storage/line-places';
import { UploadLimits } from '../../../../server/platform/storage/upload-limits';
import type { BatchRecord } from '../../../../server/storage/batches/records';
import { MemoryReply } from '../../../fakes/memory-exchange';
import { target } from '../gateway/support';

const RECORD = {
  id: 'batch_1',
  ownerId: 'own_1',
  keyId: 'key_1',
  address: '192.0.2.1',
  endpoint: '/v1/chat/completions',
} as BatchRecord;
const line = (customId = 'a', body = '{"model":"chat"}') => ({
  customId,
  body: Buffer.from(body),
  isStream: false,
  numFailures: 0,
});

describe('the outcome of a line', () => {
  type Answer = (reply: HttpReply, request: StreamedRequest) => void;

  function linesOf(answer: Answer, identity: object = { ok: true }): GatewayLines {
    return new GatewayLines({
      gateway: {
        observe: (request, reply) => {
          answer(reply, request);
          return Promise.resolve();
        },
      },
      targets: new Targets(),
      access: { identifyById: () => identity } as unknown as Access,
      linesPerReplica: 2,
    });
  }

  const sending =
    (status: number, body: string, headers: ReplyHeaders = {}): Answer =>
    (reply) =>
      reply.send(status, headers, body);
  const failing = (code: string, headers: ReplyHeaders = {}): Answer =>
    sending(503, JSON.stringify({ error: { code } }), headers);
  const run = (lines: GatewayLines, one = line()) => lines.execute(RECORD, one, new AbortController().signal);

  test.each([
    ['queue_full', 1_000],
    ['rate_limit_exceeded', 5_000],
    ['budget_exceeded', 60_000],
    ['model_loading', 2_000],
    ['deployment_not_ready', 2_000],
    ['deployment_paused', 30_000],
    ['deployment_failed', 30_000],
    ['shutting_down', 2_000],
  ])('waits after %s', async (code, afterMs) => {
    const lines = linesOf(failing(code));
    for (let i = 0; i < 5; i++) expect(await run(lines)).toEqual({ kind: 'retry', afterMs });
    expect(await run(linesOf(failing(code, { 'Retry-After': '7' })))).toEqual({ kind: 'retry', afterMs: 7_000 });
    expect(await run(linesOf(failing(code, { 'retry-after': '700' })))).toEqual({ kind: 'retry', afterMs: 60_000 });
  });

  test.each(['upstream_unavailable', 'upstream_timeout', 'engine_dead', 'model_load_failed'])(
    'is an error after %s three times',
    async (code) => {
      const lines = linesOf(failing(code));
      const outcomes = [];
      for (let numFailures = 0; numFailures < 3; numFailures++)
        outcomes.push(await run(lines, { ...line(), numFailures }));
      const retry = { kind: 'retry', afterMs: 5_000, isFailure: true };
      expect(outcomes).toEqual([retry, retry, expect.objectContaining({ kind: 'done' })]);
    },
  );

  test.each<[string, Answer]>([
    ['no JSON', sending(200, '<html>')],
    ['no object', sending(200, 'null')],
    ['a response that is nested too deeply', sending(200, `{"a":\n${'['.repeat(20_000)}${']'.repeat(20_000)}}`)],
    ['half of a response', (reply) => void reply.stream(200, {}).write('{"a":')],
    ['a response that is too long', sending(200, JSON.stringify({ text: 'x'.repeat(17 << 20) }))],
    ['no response', () => {}],
  ])('is an error after %s, three times', async (_name, answer) => {
    const lines = linesOf(answer);
    expect((await run(lines)).kind).toBe('retry');
    const outcome = await run(lines, { ...line(), numFailures: 2 });
    expect(outcome).toMatchObject({ kind: 'done', result: { status: 502 } });
    expect(JSON.stringify(outcome)).toContain('complete JSON object');
  });

  test('is what the deployment says, otherwise', async () => {
    expect(await run(linesOf(sending(404, '{"error":{"code":"model_not_found"}}')))).toMatchObject({
      kind: 'done',
      result: { status: 404, body: '{"error":{"code":"model_not_found"}}' },
    });
    // One line, with all digits.
    expect(await run(linesOf(sending(500, '{\n"a":\n12345678901234567890}')))).toMatchObject({
      result: { status: 500, body: '{ "a": 12345678901234567890}' },
    });
    expect(await run(linesOf(sending(200, '{}')), { ...line(), isStream: true })).toMatchObject({
      result: { status: 400 },
    });
  });

  test.each([
    ['invalid_api_key', 'refused'],
    ['ip_not_allowed', 'refused'],
    ['auth_unavailable', 'retry'],
    ['budget_exceeded', 'retry'],
  ])('of a key with %s is %s, and nothing is sent', async (code, kind) => {
    const sent: string[] = [];
    const lines = linesOf((_reply, { path }) => sent.push(path), { ok: false, code, message: 'no' });
    expect((await run(lines)).kind).toBe(kind);
    expect(sent).toEqual([]);
  });

  test('a line gets a place of its deployment, and one owner does not get all places', () => {
    const targets = new Targets();
    const lines = new GatewayLines({ gateway: {} as never, targets, access: {} as never, linesPerReplica: 2 });
    const replica = { id: 'r', secret: '', isBuiltin: true, address: { type: 'unix', path: '/x' } } as const;
    targets.set(target('one', [replica, replica]));
    targets.set(target('idle', []));
    targets.set(target('foreign', [replica], { ownerId: 'own_2' }));
    const numFree = (record: BatchRecord, model?: string) => {
      let count = 0;
      while (count < 10 && lines.enter(record, model) !== undefined) count++;
      return count;
    };
    expect(numFree(RECORD, 'one')).toBe(4);
    // One line wakes a deployment.
    expect(numFree(RECORD, 'idle')).toBe(1);
    // They get an error.
    expect([numFree(RECORD, 'foreign'), numFree(RECORD)]).toEqual([10, 10]);
    expect(numFree({ ...RECORD, deploymentId: 'dep_foreign' }, 'x')).toBe(2);
    expect(numFree({ ...RECORD, deploymentId: 'dep_gone' }, 'x')).toBe(10);
    expect(lines.numPlacesOfOwner()).toBeLessThan(lines.numPlaces());
  });
});

test('lines enter a deployment while it has places, and one in any case', () => {
  let capacity = 0;
  const places = new LinePlaces(() => capacity);
  const leave = places.enter('dep')!;
  expect(places.enter('dep')).toBeUndefined();
  expect(places.enter('other')).toBeDefined();
  capacity = 2;
  expect(places.enter('dep')).toBeDefined();
  expect(places.enter('dep')).toBeUndefined();
  leave();
  expect(places.enter('dep')).toBeDefined();
  expect(places.enter('dep')).toBeUndefined();
});

test('slow uploads leave space for the JSON of others, and one owner takes a part of it only', async () => {
  const limits = new UploadLimits();
  let end = () => {};
  const ended = new Promise<void>((resolve) => (end = resolve));
  const running: Promise<void>[] = [];
  const post = (ownerId: string, path: string, numBytes: number, until = ended) => {
    const request = {
      method: 'POST',
      path,
      headers: [['content-length', `${numBytes}`]],
    } as unknown as StreamedRequest;
    return limits.within(ownerId, request, () => until);
  };
  for (const owner of ['ada', 'ada', 'bob', 'bob']) running.push(post(owner, '/v1/files', 64 << 20));
  await expect(post('eve', '/v1/files', 1)).rejects.toMatchObject({ code: 'queue_full' });
  for (const owner of ['ada', 'bob', 'eve']) await post(owner, '/v1/batches', 1 << 20, Promise.resolve());
  for (let i = 0; i < 8; i++) running.push(post('ada', '/v1/batches', 1 << 20));
  await expect(post('ada', '/v1/batches', 1 << 20)).rejects.toMatchObject({ code: 'queue_full' });
  await post('eve', '/v1/batches', 1 << 20, Promise.resolve());
  end();
  await Promise.all(running);
  await post('eve', '/v1/files', 64 << 20);
});

describe('a kept response', () => {
  const changes = {
    shown: (response: WireResponse) => ({ ...response, store: true }),
    kept: async (response: WireResponse) => {
      await Promise.resolve();
      return { ...response, store: true, isKept: true };
    },
  };
  const response = { id: 'resp_1', object: 'response', status: 'completed', output: [], text: 'ä\n'.repeat(3) };
  const events = (end: string) =>
    [
      ': ping',
      `event: response.created${end}data: ${JSON.stringify({ type: 'response.created', response })}`,
      `event: response.output_text.delta${end}data: {"type":"response.output_text.delta","delta":"\\"response.created\\""}`,
      `data: ${JSON.stringify({ type: 'response.completed', response })}`,
      'event: error',
    ].map((event) => event + end + end);

  test.each([
    ['\n', 1],
    ['\n', 7],
    ['\n', 10_000],
    ['\r\n', 1],
    ['\r\n', 10_000],
  ])('is found in a stream with line ends %j in pieces of %d bytes', async (end, size) => {
    const reply = new MemoryReply();
    const kept = new KeptReply(reply, new ResponseRewriter(changes));
    const stream = kept.stream(200, { 'Content-Type': 'text/event-stream; charset=utf-8' });
    const bytes = Buffer.from(`${events(end).join('')}event: half`);
    for (let at = 0; at < bytes.length; at += size) stream.write(bytes.subarray(at, at + size));
    stream.end();
    await kept.settled();
    const [ping, , delta, , error] = events(end);
    expect(reply.text).toBe(
      [
        ping,
        `event: response.created\ndata: ${JSON.stringify({ type: 'response.created', response: { ...response, store: true } })}\n\n`,
        delta,
        `event: response.completed\ndata: ${JSON.stringify({ type: 'response.completed', response: { ...response, store: true, isKept: true } })}\n\n`,
        error,
        'event: half',
      ].join(''),
    );
  });

  test('is kept once, and a client that does not read stops the stream before and after it', async () => {
    const client = new MemoryReply();
    const ready: (() => void)[] = [];
    const written: number[] = [];
    const slow = Object.assign(client, { write: (data: string) => (written.push(data.length), false) });
    const keeps: (() => void)[] = [];
    const kept = new KeptReply(
      slow,
      new ResponseRewriter({
        shown: (one) => one,
        kept: (one) => new Promise((resolve) => keeps.push(() => resolve(one))),
      }),
    );
    slow.drained = () => new Promise<void>((resolve) => ready.push(resolve));
    const stream = kept.stream(200, { 'Content-Type': 'text/event-stream' });
    const last = `data: ${JSON.stringify({ type: 'response.completed', response })}\n\n`;
    expect(stream.write(': ping\n\n')).toBe(false);
    expect(stream.write(last)).toBe(false);
    expect(stream.write(last + last)).toBe(false);
    expect([keeps.length, written.length]).toEqual([1, 1]);
    let isDrained = false;
    const drained = stream.drained().then(() => (isDrained = true));
    keeps[0]();
    await new Promise(setImmediate);
    expect([isDrained, written.length, ready.length]).toEqual([false, 4, 1]);
    ready[0]();
    await drained;
    expect(stream.write(': ping\n\n')).toBe(false);
    Object.assign(slow, { write: () => true });
    expect(stream.write(': ping\n\n')).toBe(true);
    stream.end();
    await kept.settled();
    expect(slow.state).toBe('ended');
  });

  test('an event without an end stops for a client that does not read', () => {
    const slow = Object.assign(new MemoryReply(), { write: () => false });
    const stream = new KeptReply(slow, new ResponseRewriter(changes)).stream(200, {
      'Content-Type': 'text/event-stream',
    });
    const piece = Buffer.alloc(8 << 20, 'x');
    expect([stream.write(piece), stream.write(piece), stream.write(piece)]).toEqual([true, true, false]);
  });

  test.each([false, true])('is found in a body (in pieces: %s)', async (isStream) => {
    const reply = new MemoryReply();
    const kept = new KeptReply(reply, new ResponseRewriter(changes));
    const headers = { 'content-type': 'application/json' };
    const text = JSON.stringify(response);
    if (isStream) {
      const stream = kept.stream(200, headers);
      expect(kept.hasStarted).toBe(true);
      for (const byte of Buffer.from(text)) stream.write(Buffer.from([byte]));
      stream.end();
    } else kept.send(200, headers, text);
    await kept.settled();
    expect(JSON.parse(reply.text)).toEqual({ ...response, store: true, isKept: true });
  });

  test.each<[string, number, string, string]>([
    ['an error', 400, 'application/json', JSON.stringify(response)],
    ['another object', 200, 'application/json', '{"object": "error"}'],
    ['no JSON', 200, 'application/json', '{"object":'],
    ['another type', 200, 'text/plain', JSON.stringify(response)],
    ['a response that is too long', 200, 'application/json', JSON.stringify({ ...response, x: 'x'.repeat(17 << 20) })],
  ])('%s passes unchanged', async (_name, status, type, text) => {
    for (const isStream of [false, true]) {
      if (!isStream && text.length > 16 << 20) continue;
      const reply = new MemoryReply();
      const kept = new KeptReply(reply, new ResponseRewriter(changes));
      const headers = { 'Content-Type': type };
      if (isStream) {
        const stream = kept.stream(status, headers);
        const half = Math.floor(text.length / 2);
        stream.write(text.slice(0, half));
        stream.write(text.slice(half));
        stream.end();
      } else kept.send(status, headers, text);
      await kept.settled();
      expect([reply.status, String(reply.text) === text]).toEqual([status, true]);
    }
  });
});

test('top-level values are found and replaced, whatever is around them', () => {
  const text = '{"a" : [1, {"b": "}\\"],"}], "st\\u006fre":true,"n":1e400 ,"s":"x\\\\", "store": false}';
  const bytes = Buffer.from(text);
  const found = topLevelValues(bytes);
  const valueOf = (name: string) => bytes.subarray(found.get(name)!.start, found.get(name)!.end).toString().trim();
  expect([...found.keys()]).toEqual(['a', 'store', 'n', 's']);
  expect(['a', 'store', 'n', 's'].map(valueOf)).toEqual(['[1, {"b": "}\\"],"}]', 'false', '1e400', '"x\\\\"']);
  expect(withTopLevelValues(bytes, found, { s: '7', x: 'null', store: 'true' }).toString()).toBe(
    '{"x":null,"a" : [1, {"b": "}\\"],"}], "st\\u006fre":true,"n":1e400 ,"s":7, "store":true}',
  );
  const empty = Buffer.from(' { } ');
  expect(withTopLevelValues(empty, topLevelValues(empty), { a: '1' }).toString()).toBe(' {"a":1 } ');
  expect(withTopLevelValues(empty, topLevelValues(empty), { a: '1', b: '2' }).toString()).toBe(' {"a":1,"b":2 } ');
});

test.each([
  ['{"a" : 1, "b": [1, 2], "c": 3}', 'a', { b: [1, 2], c: 3 }],
  ['{"a" : 1, "b": [1, 2], "c": 3}', 'b', { a: 1, c: 3 }],
  ['{"a" : 1, "b": [1, 2] , "c": 3 }', 'c', { a: 1, b: [1, 2] }],
  [' { "a": {"x": ","} } ', 'a', {}],
])('of %s a field %s is removed', (text, name, rest) => {
  const bytes = Buffer.from(text);
  const removed = withoutTopLevelField(bytes, topLevelValues(bytes).get(name)!);
  expect(JSON.parse(removed.toString())).toEqual(rest);
});
