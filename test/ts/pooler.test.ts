/** Calls of a model that pools, with an addon and a tokenizer that the tests hold and fail. */
import type { NativePooledRequest } from '../../ts/addon-types';
import type { CallTable } from '../../ts/call-table';
import { checkPairs, Pooler, type PoolerOptions, toPairs } from '../../ts/pooler';
import { QueueLimiter } from '../../ts/queue-limiter';

const GROUP = 64;
const MAX_INPUTS = 65_536;

interface Setup {
  maxTokens?: number;
  maxNumSeqs?: number;
  /** Returns the id of a request, or why it is refused. */
  pool?: (request: NativePooledRequest) => number | Error;
  /** Awaited before the result of each call of the tokenizer. */
  gate?: (call: number) => Promise<void>;
}

function setup({ maxTokens = Infinity, maxNumSeqs = 1, pool, gate = () => Promise.resolve() }: Setup = {}) {
  const calls: CallTable = new Map();
  const started: NativePooledRequest[] = [];
  const state = { numEncodes: 0, numPools: 0 };
  const limiter: QueueLimiter = new QueueLimiter({
    maxRunning: 1,
    maxRequests: 8,
    maxTokens,
    stats: () => ({
      numRunning: 0,
      numWaiting: 0,
      numBackground: 0,
      queuedPromptTokens: pooler.waiting.numTokens,
      queuedBackgroundTokens: pooler.waiting.numBackgroundTokens,
    }),
  });
  const native = {
    pool: (requests: readonly NativePooledRequest[]) => {
      state.numPools++;
      return requests.map((request) => {
        started.push(request);
        return pool?.(request) ?? started.length;
      });
    },
    abort: (id: number) =>
      calls.get(id)?.accept({ pooled: null, finish: { reason: 'abort', promptTokens: 0, cachedTokens: 0 } } as never),
  };
  const text = {
    encodeInputs: async (texts: string[]) => {
      await gate(state.numEncodes++);
      return texts.map((own) => ({ ids: new Int32Array(own.length), typeIds: new Int32Array(0) }));
    },
  };
  const spec = { vocabSize: 300, hiddenSize: 4, pooling: { head: [] } };
  const plan = { task: 'embed', prompts: {}, normalizes: true };
  const options = { native, model: { config: { spec }, text }, plan, calls, queueLimiter: limiter };
  const pooler: Pooler = new Pooler({
    ...(options as unknown as PoolerOptions),
    maxModelLen: 100,
    maxNumSeqs,
    maxQueuedRequests: 8,
  });
  const finish = (id: number) =>
    calls.get(id)!.accept({
      pooled: new Float32Array(4),
      finish: { reason: 'stop', promptTokens: started[id - 1].promptTokenIds.length, cachedTokens: 0 },
    } as never);
  return { pooler, limiter, started, state, finish, calls };
}

/** A gate that opens one call of the tokenizer at a time. */
function steps() {
  const open: (() => void)[] = [];
  const reached: (() => void)[] = [];
  const gates = [0, 1, 2].map((i) => new Promise<void>((resolve) => (open[i] = resolve)));
  const arrivals = [0, 1, 2].map((i) => new Promise<void>((resolve) => (reached[i] = resolve)));
  const gate = (call: number): Promise<void> => {
    reached[call]();
    return gates[call];
  };
  return { gate, open: (call: number) => open[call](), arrival: (call: number) => arrivals[call] };
}

const texts = (count: number, length: number): string[] => Array<string>(count).fill('x'.repeat(length));

test('tokens count from the start of the call, each of them once', async () => {
  const { gate, open, arrival } = steps();
  const { pooler, limiter } = setup({ maxTokens: 1000, gate });
  const controller = new AbortController();
  const call = pooler.embed(texts(2 * GROUP, 10), { signal: controller.signal });
  const ended = expect(call).rejects.toMatchObject({ code: 'aborted' });
  const other = limiter.reserve();
  const fits = (count: number): void => {
    other.countTokens(count);
    expect(() => other.checkTokens(0)).not.toThrow();
    other.countTokens(count + 1);
    expect(() => other.checkTokens(0)).toThrow('1001 of at most 1000 prompt tokens are waiting');
    other.countTokens(0);
  };
  await arrival(0);
  const estimate = GROUP * 3;
  fits(1000 - estimate);
  open(0);
  await arrival(1);
  // The addon has two inputs.
  fits(1000 - (GROUP - 2) * 10 - estimate);
  controller.abort();
  await ended;
  // A prompt may exceed the limit if nothing else waits.
  other.countTokens(5000);
  expect(() => other.checkTokens(0)).not.toThrow();
});

test('the tokens of each group are checked, and those of the call itself may exceed the limit', async () => {
  const long = [...texts(GROUP, 1), ...texts(GROUP, 10)];
  const alone = setup({ maxTokens: 100 });
  const call = alone.pooler.embed(long, {});
  while (alone.started.length < 2 * GROUP) {
    for (const id of [...alone.calls.keys()]) alone.finish(id);
    await new Promise((resolve) => setImmediate(resolve));
  }
  for (const id of [...alone.calls.keys()]) alone.finish(id);
  expect((await call).usage.promptTokens).toBe(11 * GROUP);

  const shared = setup({ maxTokens: 700 });
  shared.limiter.reserve().countTokens(100);
  await expect(shared.pooler.embed(long, {})).rejects.toMatchObject({ code: 'queue_full' });
});

test('a call has one place in the queue until it ends', async () => {
  const { pooler, limiter, started, finish } = setup();
  const call = pooler.embed('a', {});
  while (started.length === 0) await new Promise((resolve) => setImmediate(resolve));
  const others = Array.from({ length: 8 }, () => limiter.reserve());
  expect(() => limiter.check()).toThrow('8 of at most 8 sequences are waiting');
  finish(1);
  await call;
  expect(() => limiter.check()).not.toThrow();
  others.forEach((other) => other.release());
});

test('inputs of several calls reach the addon together, and a refused one fails its own call only', async () => {
  const isRefused = ({ promptTokenIds }: NativePooledRequest) => promptTokenIds.length === 3;
  const { pooler, started, state, finish } = setup({
    maxNumSeqs: 2,
    pool: (request) => (isRefused(request) ? new Error('refused') : started.length),
  });
  const good = pooler.embed([Int32Array.of(1), Int32Array.of(1, 2)], {});
  const bad = pooler.embed([Int32Array.of(1, 2, 3)], {});
  await expect(bad).rejects.toMatchObject({ code: 'internal_error', message: 'refused' });
  expect(state.numPools).toBe(1);
  started.forEach((request, i) => isRefused(request) || finish(i + 1));
  expect((await good).usage.promptTokens).toBe(3);
});

test('inputs behind refused ones are not left waiting', async () => {
  const { pooler } = setup({ pool: () => new Error('refused') });
  const calls = Array.from({ length: 7 }, () => pooler.embed([Int32Array.of(1)], {}));
  for (const call of calls) await expect(call).rejects.toMatchObject({ message: 'refused' });
  expect(pooler.waiting.numInputs).toBe(0);
});

test('an input that fails ends the call before the texts after it are tokenized', async () => {
  const { pooler, state } = setup({
    pool: () => Object.assign(new Error('the model computed NaN'), { code: 'numeric_error' }),
  });
  await expect(pooler.embed(texts(20 * GROUP, 1), {})).rejects.toMatchObject({ code: 'numeric_error' });
  expect(state.numEncodes).toBeLessThanOrEqual(2);
});

test('onTokens receives the tokens of the inputs that were started, also if the call fails', async () => {
  const { pooler, started } = setup();
  const controller = new AbortController();
  const counts: number[] = [];
  const call = pooler.embed(['abc', 'de', 'f', 'g'], {
    signal: controller.signal,
    onTokens: (count) => counts.push(count),
  });
  while (started.length < 2) await new Promise((resolve) => setImmediate(resolve));
  controller.abort();
  await expect(call).rejects.toMatchObject({ code: 'aborted' });
  expect(counts).toEqual([3, 2]);
  await expect(pooler.embed('a', { onTokens: 5 as never })).rejects.toMatchObject({ param: 'onTokens' });
  const failing = pooler.embed('a', {
    onTokens: () => {
      throw new Error('no');
    },
  });
  await expect(failing).rejects.toMatchObject({ code: 'internal_error' });
  expect(pooler.waiting).toMatchObject({ numInputs: 0, numTokens: 0 });
});

test('the number of inputs is limited by the name of the argument', async () => {
  const many = Array<string>(MAX_INPUTS + 1).fill('a');
  const expected = { code: 'invalid_argument', expected: `at most ${MAX_INPUTS}` };
  await expect(setup().pooler.embed(many, {})).rejects.toMatchObject({ ...expected, param: 'inputs' });
  const thrown = (run: () => unknown): unknown => {
    try {
      return run();
    } catch (error) {
      return error;
    }
  };
  expect(thrown(() => checkPairs(many.map((text) => [text, text])))).toMatchObject({ ...expected, param: 'pairs' });
  expect(thrown(() => toPairs('a', many))).toMatchObject({ ...expected, param: 'documents' });
});

test('inputs of an urgent call start before those of background work, also when the addon is full', async () => {
  const { pooler, started, finish } = setup();
  const background = pooler.embed(texts(4, 5), { priority: 1 });
  while (started.length < 2) await new Promise((resolve) => setImmediate(resolve));
  expect(pooler.waiting).toEqual({ numInputs: 2, numTokens: 10, numBackgroundInputs: 2, numBackgroundTokens: 10 });
  const urgent = pooler.embed(texts(3, 7), {});
  while (started.length < 4) await new Promise((resolve) => setImmediate(resolve));
  expect(started.map(({ priority }) => priority)).toEqual([1, 1, 0, 0]);
  finish(1);
  finish(3);
  await Promise.resolve();
  expect(started.map(({ priority }) => priority)).toEqual([1, 1, 0, 0, 0]);
  for (const id of [4, 5, 2, 6, 7]) {
    finish(id);
    await Promise.resolve();
  }
  expect((await urgent).usage.promptTokens).toBe(21);
  expect((await background).usage.promptTokens).toBe(20);
  await expect(pooler.embed('x', { priority: 0.5 })).rejects.toMatchObject({ param: 'priority' });
});
