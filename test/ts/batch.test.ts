/** Batches of the library, with the fake addon. */
import { type BatchRequest, type BatchResult, CapstanError, Engine, type EngineOptions } from '../../ts';
import { fake } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

const engines: Engine[] = [];

async function load(options: EngineOptions = {}): Promise<Engine> {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  const engine = await Engine.load(tinyModel(), options);
  engines.push(engine);
  return engine;
}

beforeEach(() => fake.reset());
afterEach(async () => {
  for (const engine of engines.splice(0)) await engine.close();
});

const chat = (customId: string, content = 'Hi'): BatchRequest => ({ customId, messages: [{ role: 'user', content }] });

async function collect(results: AsyncIterable<BatchResult>): Promise<BatchResult[]> {
  const all: BatchResult[] = [];
  for await (const result of results) all.push(result);
  return all;
}

test('yields results and errors of chats and prompts by their ids', async () => {
  const engine = await load();
  const results = await collect(
    engine.batch([chat('a'), { customId: 'b', prompt: 'One', options: { maxTokens: 2 } }, chat('bad', 'boom')]),
  );
  const byId = new Map(results.map((result) => [result.customId, result]));
  expect([...byId.keys()].sort()).toEqual(['a', 'b', 'bad']);
  expect(byId.get('a')!.result!.choices[0].text).toBe('Hello from the fake engine. Größe 😀!');
  expect(byId.get('b')!.result!.usage.completionTokens).toBe(2);
  expect(byId.get('bad')!.error).toMatchObject({ code: 'numeric_error' });
  expect(fake.requests.map(({ priority }) => priority)).toEqual([1, 1, 1]);
});

test('takes requests when they can start, and runs a bounded number of them', async () => {
  const engine = await load();
  let numTaken = 0;
  let numEnded = 0;
  let mostOpen = 0;
  const requests = async function* (): AsyncGenerator<BatchRequest> {
    for (let i = 0; i < 20; i++) {
      mostOpen = Math.max(mostOpen, ++numTaken - numEnded);
      yield chat(`${i}`);
      await Promise.resolve();
    }
  };
  for await (const { error } of engine.batch(requests(), { concurrency: 3, priority: 5, cacheSalt: 's' })) {
    expect(error).toBeUndefined();
    numEnded++;
  }
  expect([numEnded, mostOpen <= 4]).toEqual([20, true]);
  expect(fake.requests[0]).toMatchObject({ priority: 5, cacheSalt: 's' });
});

test('waits while the queue is full', async () => {
  const engine = await load({ maxNumSeqs: 1, maxQueuedRequests: 0 });
  const results = await collect(engine.batch([chat('a'), chat('b'), chat('c')], { concurrency: 3 }));
  expect(results.map(({ error }) => error)).toEqual([undefined, undefined, undefined]);
});

test('ends with its signal, with the loop and with the engine', async () => {
  const engine = await load();
  const aborter = new AbortController();
  const aborted = collect(engine.batch([chat('a', 'forever'), chat('b', 'forever')], { signal: aborter.signal }));
  while (fake.requests.length < 2) await new Promise((resolve) => setImmediate(resolve));
  aborter.abort(new Error('enough'));
  await expect(aborted).rejects.toMatchObject({ code: 'aborted' });
  expect(fake.aborted).toHaveLength(2);
  await expect(collect(engine.batch([chat('a')], { signal: aborter.signal }))).rejects.toMatchObject({
    code: 'aborted',
  });

  let isReturned = false;
  const requests = (function* () {
    try {
      yield chat('a');
      for (;;) yield chat('b', 'forever');
    } finally {
      isReturned = true;
    }
  })();
  for await (const { customId } of engine.batch(requests, { concurrency: 2 })) {
    expect(customId).toBe('a');
    break;
  }
  expect(isReturned).toBe(true);
  while (engine.stats().numRunning > 0) await new Promise((resolve) => setImmediate(resolve));

  const closed = collect(engine.batch([chat('a', 'forever')]));
  while (engine.stats().numRunning === 0) await new Promise((resolve) => setImmediate(resolve));
  await engine.close();
  await expect(closed).rejects.toMatchObject({ code: 'engine_closed' });
  expect(() => engine.batch([])).toThrow(CapstanError);
});

test.each<[string, () => unknown, string]>([
  ['options', () => ({ concurrency: 0 }), 'concurrency'],
  ['an unknown option', () => ({ window: 1 }), 'options'],
  ['a priority', () => ({ priority: 'low' }), 'priority'],
])('refuses invalid %s at once', async (_name, options, param) => {
  const engine = await load();
  expect(() => engine.batch([], options() as never)).toThrow(param);
});

test.each([[{}], [{ customId: 'a' }], [{ customId: 'a', prompt: 'a', messages: [] }], [5]])(
  'refuses the request %j',
  async (request) => {
    const engine = await load();
    await expect(collect(engine.batch([request] as never))).rejects.toMatchObject({ code: 'invalid_argument' });
  },
);

test('refuses requests that are no iterable, and throws their error', async () => {
  const engine = await load();
  await expect(collect(engine.batch(5 as never))).rejects.toMatchObject({ param: 'requests' });
  const failing = (function* (): Generator<BatchRequest> {
    yield chat('a', 'forever');
    throw new Error('no more');
  })();
  await expect(collect(engine.batch(failing))).rejects.toThrow('no more');
  expect(engine.stats().numRunning).toBe(0);
});
