import type { NativeGrammar } from '../../ts/addon-types';
import { CapstanError } from '../../ts/errors';
import { GrammarCache, type GrammarPlan, jsonKey, type PlannedSource, withPrefix } from '../../ts/grammar-cache';
import { literal } from '../../ts/text/grammar';

function plan(key: string, source: () => PlannedSource = () => ({ kind: 'gbnf', text: key })): GrammarPlan {
  return { key, source, param: 'structuredOutput.grammar' };
}

function makeCache(limits?: { maxBytes?: number; maxGrammars?: number }): { cache: GrammarCache; compiled: string[] } {
  const compiled: string[] = [];
  const compile = async (source: { kind: string; text?: string }): Promise<NativeGrammar> => {
    compiled.push(source.text ?? source.kind);
    await Promise.resolve();
    if (source.text === 'bad') throw Object.assign(new Error('GBNF: line 1'), { code: 'invalid_argument' });
    return {
      sizeBytes: (source.text ?? '').length,
      matcher: () => {
        throw new Error('not matched');
      },
    };
  };
  return { cache: new GrammarCache(compile as never, limits), compiled };
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

test('counts the size of a grammar after its compilation, and always keeps the newest', async () => {
  const { cache, compiled } = makeCache({ maxBytes: 10 });
  for (const key of ['aaaa', 'bbbb', 'aaaa', 'cccc', 'aaaa', 'bbbb', 'a'.repeat(30), 'a'.repeat(30), 'd', 'd', 'aaaa'])
    await cache.get(plan(key));
  expect(compiled).toEqual(['aaaa', 'bbbb', 'cccc', 'bbbb', 'a'.repeat(30), 'd', 'aaaa']);
  const { cache: racing, compiled: raced } = makeCache({ maxBytes: 4 });
  await Promise.all(['aaa', 'bbb', 'ccc'].map((key) => racing.get(plan(key))));
  for (const key of ['ccc', 'aaa']) await racing.get(plan(key));
  expect(raced).toEqual(['aaa', 'bbb', 'ccc', 'aaa']);
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
  const throwing = (param: string) =>
    plan(param, () => {
      throw new CapstanError('invalid_argument', 'no', { param });
    });
  await expect(cache.get(throwing('tools[2].function.parameters'))).rejects.toMatchObject({
    param: 'tools[2].function.parameters',
  });
  await expect(cache.get(throwing('schema'))).rejects.toMatchObject({ param: 'structuredOutput.grammar' });
});

test('a prefix becomes another rule, or a field beside a GBNF text', () => {
  const rules = withPrefix(
    plan('k', () => ({ kind: 'rules', root: 'r', rules: [{ name: 'r', expr: literal('a') }] })),
    'p',
    literal('x'),
  );
  expect(rules.key).not.toBe('k');
  expect(rules.source()).toEqual({
    kind: 'rules',
    root: 'prefix r',
    rules: [
      { name: 'r', expr: literal('a') },
      { name: 'prefix r', expr: { kind: 'sequence', items: [literal('x'), { kind: 'rule', name: 'r' }] } },
    ],
  });
  expect(withPrefix(plan('g'), 'p', literal('x')).source()).toEqual({ kind: 'gbnf', text: 'g', prefix: literal('x') });
});

test('refuses a key that cannot be written as JSON', () => {
  const cycle: Record<string, unknown> = {};
  cycle.self = cycle;
  expect(() => jsonKey('structuredOutput.schema', cycle)).toThrow(
    expect.objectContaining({ code: 'invalid_argument', param: 'structuredOutput.schema' }) as Error,
  );
  expect(jsonKey('x', { b: 1, a: 2 })).not.toBe(jsonKey('x', { a: 2, b: 1 }));
});

describe('many grammars at once', () => {
  /** Creates a cache whose compilations end one by one, when the test calls `finish`. */
  function makeSlowCache(): { cache: GrammarCache; compiling: string[]; finish: () => Promise<void> } {
    const compiling: string[] = [];
    const ends: (() => void)[] = [];
    const compile = (source: { text?: string }): Promise<NativeGrammar> =>
      new Promise((resolve) => {
        compiling.push(source.text!);
        ends.push(() =>
          resolve({
            sizeBytes: 1,
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
    return { cache: new GrammarCache(compile as never, { maxCompiling: 2, maxWaiting: 2 }), compiling, finish };
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
