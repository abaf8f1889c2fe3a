/** The states of models in a pool, with engines that are names and a clock that tests move. */
import {
  type Clock,
  type Loadable,
  ModelPool,
  type PoolLimits,
  type Slot,
} from '../../../../server/inference/models/model-pool';

const LIMITS: PoolLimits = {
  memoryBytes: 100,
  maxLoaded: 9,
  idleMs: Infinity,
  waitTimeoutMs: 1000,
  maxWaiting: 3,
  maxWaitingBytes: 100,
};

class TestClock implements Clock {
  #now = 0;
  readonly #timers = new Map<() => void, number>();

  now(): number {
    return this.#now;
  }
  after(ms: number, run: () => void): () => void {
    this.#timers.set(run, this.#now + ms);
    return () => this.#timers.delete(run);
  }
  pass(ms: number): void {
    this.#now += ms;
    for (const [run, at] of [...this.#timers])
      if (at <= this.#now) {
        this.#timers.delete(run);
        run();
      }
  }
}

interface Options {
  bytes?: number;
  isPinned?: boolean;
}

/** A pool of models whose loads end when a test says so, and what happened in it. */
function makePool(models: Record<string, Options>, limits: Partial<PoolLimits> = {}) {
  const events: string[] = [];
  const clock = new TestClock();
  const loads = new Map<string, { end: () => void; fail: (error: Error) => void }>();
  let isManual = false;
  const loadables = Object.entries(models).map(([name, { bytes = 40, isPinned = false }]): Loadable<string> => ({
    name,
    isPinned,
    neededBytes: bytes,
    load: (signal) => {
      events.push(`load ${name}`);
      if (!isManual) return Promise.resolve(name);
      return new Promise((resolve, reject) => {
        signal.addEventListener('abort', () => reject(new Error('aborted')));
        loads.set(name, { end: () => resolve(name), fail: reject });
      });
    },
    unload: () => {
      events.push(`unload ${name}`);
      return Promise.resolve();
    },
  }));
  const pool = new ModelPool(loadables, { ...LIMITS, ...limits }, clock);
  const slot = (name: string): Slot<string> => pool.slots.find(({ model }) => model.name === name)!;
  const acquire = (name: string, signal = new AbortController().signal) => pool.acquire(slot(name), signal);
  const use = async (name: string): Promise<void> => (await acquire(name)).release();
  const states = (): string[] => pool.slots.map(({ state }) => state);
  return {
    pool,
    events,
    clock,
    loads,
    slot,
    acquire,
    use,
    states,
    manual: () => {
      isManual = true;
    },
  };
}

const turns = async (): Promise<void> => {
  for (let i = 0; i < 20; i++) await Promise.resolve();
};
const codeOf = (pending: Promise<unknown>) =>
  pending.then(
    () => 'ok',
    (error: { code?: string; message: string }) => error.code ?? error.message,
  );

test('a model loads at its first use and stays loaded', async () => {
  const { use, events, states, slot } = makePool({ a: {}, b: {} });
  expect(states()).toEqual(['unloaded', 'unloaded']);
  await use('a');
  await use('a');
  expect([events, states(), slot('a').counts.loads]).toEqual([['load a'], ['loaded', 'unloaded'], 1]);
});

test('two requests for one model load it once', async () => {
  const { acquire, events, manual, loads, slot } = makePool({ a: {} });
  manual();
  const both = Promise.all([acquire('a'), acquire('a')]);
  await turns();
  expect(slot('a').state).toBe('loading');
  loads.get('a')!.end();
  expect((await both).map(({ engine }) => engine)).toEqual(['a', 'a']);
  expect([events, slot('a').numLeases]).toEqual([['load a'], 2]);
});

test('the model that was used longest ago is unloaded first', async () => {
  const { use, clock, events } = makePool({ a: {}, b: {}, c: {} });
  for (const name of ['a', 'b', 'a']) {
    clock.pass(1);
    await use(name);
  }
  await use('c');
  expect(events).toEqual(['load a', 'load b', 'unload b', 'load c']);
});

test('as many models are unloaded as a larger one needs', async () => {
  const { use, events, clock } = makePool({ a: {}, b: {}, c: { bytes: 90 } });
  for (const name of ['a', 'b', 'c']) {
    clock.pass(1);
    await use(name);
  }
  expect(events).toEqual(['load a', 'load b', 'unload a', 'unload b', 'load c']);
});

test('the number of loaded models has a limit', async () => {
  const { use, events } = makePool({ a: { bytes: 1 }, b: { bytes: 1 } }, { maxLoaded: 1 });
  for (const name of ['a', 'b']) await use(name);
  expect(events).toEqual(['load a', 'unload a', 'load b']);
});

test('a pinned model stays, and what does not fit beside it gets an error', async () => {
  const { use, acquire, events, slot } = makePool({ a: { isPinned: true, bytes: 50 }, b: { bytes: 60 }, c: {} });
  await use('a');
  expect(await codeOf(acquire('b'))).toBe('model_load_failed');
  await use('c');
  expect([events, slot('b').numFailures, slot('b').state]).toEqual([['load a', 'load c'], 1, 'unloaded']);
});

test('requests in flight keep their model, and later ones wait behind the model that needs its memory', async () => {
  const { acquire, events, states } = makePool({ a: { bytes: 60 }, b: { bytes: 60 } });
  const first = await acquire('a');
  const second = await acquire('a');
  const other = acquire('b');
  await turns();
  const late = acquire('a');
  first.release();
  first.release();
  await turns();
  expect([events, states()]).toEqual([['load a'], ['loaded', 'unloaded']]);
  second.release();
  const lease = await other;
  expect(events).toEqual(['load a', 'unload a', 'load b']);
  lease.release();
  await late;
  expect(events.slice(3)).toEqual(['unload b', 'load a']);
});

test('a model stays if its memory is no longer wanted', async () => {
  const { acquire, events, slot } = makePool({ a: { bytes: 60 }, b: { bytes: 60 } });
  const lease = await acquire('a');
  const client = new AbortController();
  const other = codeOf(acquire('b', client.signal));
  await turns();
  const late = acquire('a');
  await turns();
  expect(slot('a').isLeaving).toBe(true);
  client.abort(new Error('left'));
  expect(await other).toBe('left');
  await late;
  lease.release();
  expect([events, slot('a').state]).toEqual([['load a'], 'loaded']);
});

test('a wait ends at its time limit, with the client, and at the limit of waiting requests', async () => {
  const { acquire, clock, manual, loads, slot } = makePool({ a: {} });
  manual();
  const client = new AbortController();
  const waits = [codeOf(acquire('a')), codeOf(acquire('a', client.signal)), codeOf(acquire('a'))];
  expect(await codeOf(acquire('a'))).toBe('queue_full');
  client.abort(new Error('left'));
  expect(await waits[1]).toBe('left');
  expect(await codeOf(acquire('a', client.signal))).toBe('left');
  clock.pass(1000);
  expect(await Promise.all([waits[0], waits[2]])).toEqual(['model_loading', 'model_loading']);
  await turns();
  loads.get('a')!.end();
  await turns();
  // A load that has begun ends, so that the next request finds the model.
  expect(slot('a').state).toBe('loaded');
  await acquire('a');
});

test('the bodies that wait for all models have a limit, and one body may be larger', async () => {
  const { pool, slot, manual, loads } = makePool({ a: {}, b: {} });
  manual();
  const wait = (name: string, bodyBytes: number, signal = new AbortController().signal) =>
    codeOf(pool.acquire(slot(name), signal, { bodyBytes }));
  const client = new AbortController();
  const large = wait('a', 101, client.signal);
  expect(await wait('b', 1)).toBe('queue_full');
  client.abort(new Error('left'));
  expect(await large).toBe('left');
  const waits = [wait('a', 60), wait('b', 40)];
  expect(await wait('b', 1)).toBe('queue_full');
  for (const name of ['a', 'b']) {
    await turns();
    loads.get(name)!.end();
  }
  expect(await Promise.all(waits)).toEqual(['ok', 'ok']);
});

test('a model whose waits have ended is not loaded', async () => {
  const { acquire, manual, loads, events } = makePool({ a: {}, b: {} });
  manual();
  const client = new AbortController();
  const first = acquire('a');
  const second = codeOf(acquire('b', client.signal));
  await turns();
  client.abort(new Error('left'));
  loads.get('a')!.end();
  await Promise.all([first, second]);
  await turns();
  expect(events).toEqual(['load a']);
});

test('a failed load ends the waits, and a request after some seconds tries again', async () => {
  const { acquire, use, manual, loads, slot, events, clock } = makePool({ a: {} });
  manual();
  const waits = [codeOf(acquire('a')), codeOf(acquire('a'))];
  await turns();
  loads.get('a')!.fail(new Error('broken'));
  expect(await Promise.all(waits)).toEqual(['broken', 'broken']);
  expect([slot('a').state, slot('a').numFailures]).toEqual(['unloaded', 1]);
  clock.pass(5000);
  const again = use('a');
  await turns();
  loads.get('a')!.end();
  await again;
  expect([events, slot('a').numFailures, slot('a').counts.failures]).toEqual([['load a', 'load a'], 0, 1]);
});

test('a broken model is refused for a time that grows, and unloads no other one meanwhile', async () => {
  const { pool, acquire, use, manual, loads, slot, events, clock } = makePool({ a: { bytes: 60 }, b: { bytes: 60 } });
  await use('a');
  manual();
  for (const seconds of [5, 10, 20, 40, 60, 60]) {
    const broken = codeOf(pool.load(slot('b'), new AbortController().signal));
    await turns();
    loads.get('b')!.fail(new Error('broken'));
    expect(await broken).toBe('broken');
    const refused = await acquire('b').catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: 'model_load_failed', headers: { 'Retry-After': String(seconds) } });
  }
  const back = use('a');
  await turns();
  loads.get('a')!.end();
  await back;
  events.length = 0;
  clock.pass(59_999);
  expect(await codeOf(acquire('b'))).toBe('model_load_failed');
  expect([events, slot('a').state]).toEqual([[], 'loaded']);
  clock.pass(1);
  const again = use('b');
  await turns();
  loads.get('b')!.end();
  await again;
  expect([slot('b').numFailures, events]).toEqual([0, ['unload a', 'load b']]);
});

test('a model that does not fit beside the pinned ones unloads no other one', async () => {
  const { use, acquire, events } = makePool({ a: { isPinned: true, bytes: 50 }, b: { bytes: 60 }, c: { bytes: 40 } });
  for (const name of ['a', 'c']) await use(name);
  expect(await codeOf(acquire('b'))).toBe('model_load_failed');
  expect(events).toEqual(['load a', 'load c']);
});

test('a model sleeps after its idle time, unless it is pinned or in use', async () => {
  const { acquire, use, clock, states, events } = makePool(
    { a: { bytes: 1 }, b: { bytes: 1 }, c: { bytes: 1, isPinned: true } },
    { idleMs: 100 },
  );
  await use('a');
  const lease = await acquire('b');
  await use('c');
  clock.pass(60);
  await use('a');
  clock.pass(60);
  expect(states()).toEqual(['loaded', 'loaded', 'loaded']);
  clock.pass(60);
  await turns();
  expect(states()).toEqual(['sleeping', 'loaded', 'loaded']);
  lease.release();
  clock.pass(100);
  await turns();
  expect(states()).toEqual(['sleeping', 'sleeping', 'loaded']);
  await use('a');
  expect(events.filter((event) => event.endsWith('a'))).toEqual(['load a', 'unload a', 'load a']);
});

test('an unload by a request waits for open requests, and the next request loads the model again', async () => {
  const { pool, acquire, slot, events } = makePool({ a: {} });
  const lease = await acquire('a');
  const unloaded = pool.unload(slot('a'), 'sleeping');
  const late = acquire('a');
  await turns();
  expect(slot('a').state).toBe('loaded');
  lease.release();
  await unloaded;
  await late;
  expect([events, slot('a').counts.unloads]).toEqual([
    ['load a', 'unload a', 'load a'],
    { memory: 0, idle: 0, request: 1 },
  ]);
});

test('an unload by a request goes on if a model that needs the memory gives up', async () => {
  const { pool, acquire, slot, events, states } = makePool({ a: { bytes: 60 }, b: { bytes: 60 } });
  const lease = await acquire('a');
  const client = new AbortController();
  const other = codeOf(acquire('b', client.signal));
  await turns();
  const unloads = [pool.unload(slot('a'), 'sleeping'), pool.unload(slot('a'), 'sleeping')];
  await turns();
  client.abort(new Error('left'));
  expect(await other).toBe('left');
  await turns();
  expect([slot('a').isLeaving, pool.tryAcquire(slot('a'))]).toEqual([true, undefined]);
  lease.release();
  await Promise.all(unloads);
  expect([events, states()]).toEqual([
    ['load a', 'unload a'],
    ['sleeping', 'unloaded'],
  ]);
  expect(slot('a').counts.unloads).toEqual({ memory: 0, idle: 0, request: 1 });
});

test('an unload during a load happens after it', async () => {
  const { pool, acquire, manual, loads, slot, events } = makePool({ a: {} });
  manual();
  const first = acquire('a');
  await turns();
  const unloaded = pool.unload(slot('a'), 'unloaded');
  loads.get('a')!.end();
  (await first).release();
  await unloaded;
  expect([events, slot('a').state]).toEqual([['load a', 'unload a'], 'unloaded']);
});

test('closing ends waits and loads, and unloads models in use', async () => {
  const { pool, acquire, manual, events, states } = makePool({ a: {}, b: {}, c: { bytes: 100 } });
  await acquire('a');
  manual();
  const waits = [codeOf(acquire('b')), codeOf(acquire('c'))];
  await turns();
  await pool.close();
  expect(await Promise.all(waits)).toEqual(['shutting_down', 'shutting_down']);
  expect(await codeOf(acquire('b'))).toBe('shutting_down');
  expect([events, states()]).toEqual([
    ['load a', 'load b', 'unload a'],
    ['unloaded', 'unloaded', 'unloaded'],
  ]);
});

test('many requests for models that do not fit together all end, and the memory is never exceeded', async () => {
  const { pool, acquire } = makePool(
    { a: { bytes: 60 }, b: { bytes: 60 }, c: { bytes: 30 }, d: { bytes: 100 } },
    {
      maxWaiting: 1000,
    },
  );
  let random = 7;
  const next = (bound: number): number => (random = (random * 48271) % 2147483647) % bound;
  let numDone = 0;
  const run = async (): Promise<void> => {
    for (let i = 0; i < 50; i++) {
      const lease = await acquire('abcd'[next(4)]);
      expect(pool.usedBytes).toBeLessThanOrEqual(100);
      for (let turn = next(6); turn > 0; turn--) await Promise.resolve();
      lease.release();
      numDone++;
    }
  };
  await Promise.all(Array.from({ length: 8 }, run));
  expect(numDone).toBe(400);
});

describe('while a busy model must leave', () => {
  /** `a` is in use and must leave for `b`. */
  async function withBusyModel(limits: Partial<PoolLimits> = {}) {
    const made = makePool({ a: { bytes: 60 }, b: { bytes: 60 }, c: { bytes: 30 }, d: { bytes: 50 } }, limits);
    const lease = await made.acquire('a');
    const b = made.acquire('b');
    await turns();
    return { ...made, lease, b };
  }

  test('another model loads that fits beside both', async () => {
    const { use, events, lease, b, slot } = await withBusyModel();
    await use('c');
    expect([events, slot('b').waiters.size]).toEqual([['load a', 'load c'], 1]);
    lease.release();
    await b;
    // c did not leave for b.
    expect(events).toEqual(['load a', 'load c', 'unload a', 'load b']);
  });

  test('a model that does not fit beside the first one waits for its turn', async () => {
    const { acquire, events, lease, b } = await withBusyModel({ memoryBytes: 110 });
    // It fits beside a, and beside b, but then it is one model too many.
    const d = acquire('d');
    await turns();
    expect(events).toEqual(['load a', 'load d']);
    lease.release();
    await Promise.all([b, d]);
    const crowded = await withBusyModel({ memoryBytes: 110, maxLoaded: 1 });
    void crowded.acquire('d');
    await turns();
    expect(crowded.events).toEqual(['load a']);
  });

  test('a model that would delay the first one waits, and the first one comes first', async () => {
    const pool = makePool({ a: { bytes: 40 }, b: { bytes: 90 }, c: { bytes: 30 } });
    const lease = await pool.acquire('a');
    const b = pool.acquire('b');
    const c = pool.use('c');
    await turns();
    expect(pool.events).toEqual(['load a']);
    lease.release();
    (await b).release();
    await c;
    expect(pool.events).toEqual(['load a', 'unload a', 'load b', 'unload b', 'load c']);
  });

  test('a load that fails ends its own requests alone', async () => {
    const { acquire, manual, loads, lease, b, events } = await withBusyModel();
    manual();
    const failing = codeOf(acquire('c'));
    await turns();
    loads.get('c')!.fail(new Error('broken'));
    expect(await failing).toBe('broken');
    lease.release();
    await turns();
    loads.get('b')!.end();
    await b;
    expect(events).toEqual(['load a', 'load c', 'unload a', 'load b']);
  });

  test('the wait ends with the client of the first one', async () => {
    const { acquire, pool, slot, use, events } = makePool({ a: { bytes: 60 }, b: { bytes: 60 }, c: { bytes: 60 } });
    await acquire('a');
    const leaving = new AbortController();
    const b = codeOf(pool.acquire(slot('b'), leaving.signal));
    const c = use('c');
    await turns();
    leaving.abort(new Error('gone'));
    expect(await b).toBe('gone');
    await turns();
    expect([slot('c').waiters.size, slot('a').isLeaving, events]).toEqual([1, true, ['load a']]);
    await pool.close();
    await expect(c).rejects.toMatchObject({ code: 'shutting_down' });
  });
});
