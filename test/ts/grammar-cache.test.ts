import type { NativeGrammar } from '../../ts/addon-types';
import { CapstanError } from '../../ts/errors';
import { GrammarCache, type GrammarPlan, grammarPlan } from '../../ts/grammar-cache';

function plan(json: string): GrammarPlan {
  return { json, param: 'structuredOutput.grammar' };
}

/** The grammar of a text takes its length in bytes. Those in `used` are used by sequences. */
function makeCache(limits: { maxTotalBytes?: number; maxGrammars?: number } = {}): {
  cache: GrammarCache;
  compiled: string[];
  freed: string[];
  used: Set<string>;
} {
  const compiled: string[] = [];
  const freed: string[] = [];
  const used = new Set<string>();
  const compile = async (json: string): Promise<NativeGrammar> => {
    compiled.push(json);
    await Promise.resolve();
    if (json.startsWith('throws ')) throw new CapstanError('invalid_argument', 'no', { param: json.slice(7) });
    if (json === 'bad') throw Object.assign(new Error('GBNF: line 1'), { code: 'invalid_argument' });
    return {
      sizeBytes: json.length,
      isInUse: () => used.has(json),
      free: () => freed.push(json),
      matcher: () => {
        throw new Error('not matched');
      },
    };
  };
  return { cache: new GrammarCache(compile, { maxTotalBytes: 1000, ...limits }), compiled, freed, used };
}

test('compiles a grammar once for sequential and concurrent callers', async () => {
  const { cache, compiled } = makeCache();
  const [a, b] = await Promise.all([cache.get(plan('x')), cache.get(plan('x'))]);
  expect(a).toBe(b);
  expect(await cache.get(plan('x'))).toBe(a);
  expect(compiled).toEqual(['x']);
});

test('evicts the least recently used grammar', async () => {
  const { cache, compiled } = makeCache({ maxGrammars: 2 });
  for (const key of ['a', 'b', 'a', 'c', 'a', 'b']) await cache.get(plan(key));
  expect(compiled).toEqual(['a', 'b', 'c', 'b']);
});

test('evicted grammars are freed, and the others take at most half of the memory', async () => {
  const { cache, compiled, freed } = makeCache({ maxTotalBytes: 20 });
  for (const key of ['aaaa', 'bbbb', 'aaaa', 'cccc', 'aaaa', 'bbbb', 'd'.repeat(10), 'e', 'e', 'aaaa'])
    await cache.get(plan(key));
  expect(compiled).toEqual(['aaaa', 'bbbb', 'cccc', 'bbbb', 'd'.repeat(10), 'e', 'aaaa']);
  expect(freed).toEqual(['bbbb', 'cccc', 'aaaa', 'bbbb', 'd'.repeat(10)]);
});

test('refuses a grammar that is larger than all grammars may be together', async () => {
  const { cache, compiled, freed } = makeCache({ maxTotalBytes: 20 });
  const large = 'x'.repeat(11);
  for (let i = 0; i < 2; i++)
    await expect(cache.get(plan(large))).rejects.toMatchObject({
      code: 'invalid_argument',
      message:
        'The compiled grammar takes 11 bytes, and grammarCacheBytes allows 10: simplify it, or raise grammarCacheBytes',
      param: 'structuredOutput.grammar',
    });
  expect(compiled).toEqual([large, large]);
  expect(freed).toEqual([large, large]);
  await cache.get(plan('x'.repeat(10)));
});

test('grammars of open calls are not freed, and others that do not fit beside them are refused', async () => {
  const { cache, compiled, freed, used } = makeCache({ maxTotalBytes: 20 });
  const passedOn = new AbortController();
  await cache.get(plan('aaaa'), passedOn.signal);
  used.add('bbbb');
  await cache.get(plan('bbbb'));
  const refused = ['cccc', 'cccc'].map((key) => cache.get(plan(key)));
  for (const call of refused)
    await expect(call).rejects.toMatchObject({
      code: 'queue_full',
      message: 'The grammars of open calls take 8 of at most 10 bytes: retry later, or raise grammarCacheBytes',
    });
  expect(freed).toEqual(['cccc']);
  passedOn.abort();
  await cache.get(plan('cccc'));
  await cache.get(plan('bbbb'));
  expect(compiled).toEqual(['aaaa', 'bbbb', 'cccc', 'cccc']);
  expect(freed).toEqual(['cccc', 'aaaa']);
});

test('a failure reaches all callers, names the option and is not cached', async () => {
  const { cache, compiled } = makeCache();
  const expected = { code: 'invalid_argument', message: 'GBNF: line 1', param: 'structuredOutput.grammar' };
  const results = await Promise.allSettled([cache.get(plan('bad')), cache.get(plan('bad'))]);
  for (const result of results) expect(result).toMatchObject({ status: 'rejected', reason: expected });
  await expect(cache.get(plan('bad'))).rejects.toBeInstanceOf(CapstanError);
  expect(compiled).toEqual(['bad', 'bad']);
});

test('an error keeps its param, except that of a schema, which gets the param of the plan', async () => {
  const { cache } = makeCache();
  const throwing = (param: string) => plan(`throws ${param}`);
  await expect(cache.get(throwing('tools[2].function.parameters'))).rejects.toMatchObject({
    param: 'tools[2].function.parameters',
  });
  await expect(cache.get(throwing('schema'))).rejects.toMatchObject({ param: 'structuredOutput.grammar' });
});

test('refuses a value that cannot be written as JSON', () => {
  const cycle: Record<string, unknown> = {};
  cycle.self = cycle;
  expect(() => grammarPlan({ kind: 'json', schema: cycle }, 'structuredOutput.schema')).toThrow(
    expect.objectContaining({ code: 'invalid_argument', param: 'structuredOutput.schema' }) as Error,
  );
  const json = (schema: object) => grammarPlan({ kind: 'json', schema }, 'x').json;
  expect(json({ b: 1, a: 2 })).not.toBe(json({ a: 2, b: 1 }));
});

describe('many grammars at once', () => {
  /** Creates a cache whose compilations end one by one, when the test calls `finish`. */
  function makeSlowCache(): { cache: GrammarCache; compiling: string[]; finish: () => Promise<void> } {
    const compiling: string[] = [];
    const ends: (() => void)[] = [];
    const compile = (json: string): Promise<NativeGrammar> =>
      new Promise((resolve) => {
        compiling.push(json);
        ends.push(() =>
          resolve({
            sizeBytes: 1,
            isInUse: () => false,
            free: () => undefined,
            matcher: () => {
              throw new Error('not matched');
            },
          }),
        );
      });
    const finish = async () => {
      ends.shift()!();
      await new Promise((resolve) => {
        setImmediate(resolve);
      });
    };
    return {
      cache: new GrammarCache(compile, { maxTotalBytes: 1000, maxCompiling: 2, maxWaiting: 2 }),
      compiling,
      finish,
    };
  }

  test('bounds running and waiting compilations and refuses more', async () => {
    const { cache, compiling, finish } = makeSlowCache();
    const first = ['a', 'b', 'c', 'd', 'c'].map((key) => cache.get(plan(key)));
    await expect(cache.get(plan('e'))).rejects.toMatchObject({
      code: 'queue_full',
      message: 'The queue is full: 2 of at most 2 grammars are waiting to be compiled',
      param: undefined,
    });
    expect(compiling).toEqual(['a', 'b']);
    await finish();
    expect(compiling).toEqual(['a', 'b', 'c']);
    const late = cache.get(plan('e'));
    for (let i = 0; i < 4; i++) await finish();
    await Promise.all([...first, late]);
    expect(compiling).toEqual(['a', 'b', 'c', 'd', 'e']);
  });

  test('does not compile a grammar that all callers have abandoned, and frees its place in the queue', async () => {
    const { cache, compiling, finish } = makeSlowCache();
    const running = ['a', 'b'].map((key) => cache.get(plan(key)));
    const [one, other, all] = [new AbortController(), new AbortController(), new AbortController()];
    const shared = [cache.get(plan('c'), one.signal), cache.get(plan('c'), other.signal)];
    const left = [cache.get(plan('d'), all.signal), cache.get(plan('d'), all.signal)];
    one.abort();
    all.abort();
    const again = cache.get(plan('d'));
    const late = cache.get(plan('d'), AbortSignal.abort());
    for (const call of [...left, late]) await expect(call).rejects.toMatchObject({ code: 'aborted' });
    await expect(cache.get(plan('e'))).rejects.toMatchObject({ code: 'queue_full' });
    for (let i = 0; i < 4; i++) await finish();
    await Promise.all([...running, ...shared, again]);
    expect(compiling).toEqual(['a', 'b', 'c', 'd']);
  });

  test('keeps a running compilation for later callers', async () => {
    const { cache, compiling, finish } = makeSlowCache();
    const leaving = new AbortController();
    const first = cache.get(plan('a'), leaving.signal);
    await Promise.resolve();
    leaving.abort();
    const second = cache.get(plan('a'));
    await finish();
    expect(await second).toBe(await first);
    expect(compiling).toEqual(['a']);
  });
});
