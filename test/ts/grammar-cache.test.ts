import type { NativeGrammar } from '../../ts/addon-types';
import { CapstanError } from '../../ts/errors';
import { GrammarCache, type GrammarPlan, keyOf, type PlannedSource, withPrefix } from '../../ts/grammar-cache';
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

test('a grammar is compiled once, also for those who ask while it is', async () => {
  const { cache, compiled } = makeCache();
  const [a, b] = await Promise.all([cache.get(plan('x')), cache.get(plan('x'))]);
  expect(a).toBe(b);
  expect(await cache.get(plan('x'))).toBe(a);
  expect(compiled).toEqual(['x']);
});

test('the least recently used goes first', async () => {
  const { cache, compiled } = makeCache({ maxGrammars: 2 });
  for (const key of ['a', 'b', 'a', 'c', 'a', 'b']) await cache.get(plan(key));
  expect(compiled).toEqual(['a', 'b', 'c', 'b']);
});

test('grammars are weighed once they are compiled, and the newest stays', async () => {
  const { cache, compiled } = makeCache({ maxBytes: 10 });
  for (const key of ['aaaa', 'bbbb', 'aaaa', 'cccc', 'aaaa', 'bbbb', 'a'.repeat(30), 'a'.repeat(30), 'd', 'd', 'aaaa'])
    await cache.get(plan(key));
  expect(compiled).toEqual(['aaaa', 'bbbb', 'cccc', 'bbbb', 'a'.repeat(30), 'd', 'aaaa']);
  const { cache: racing, compiled: raced } = makeCache({ maxBytes: 4 });
  await Promise.all(['aaa', 'bbb', 'ccc'].map((key) => racing.get(plan(key))));
  for (const key of ['ccc', 'aaa']) await racing.get(plan(key));
  expect(raced).toEqual(['aaa', 'bbb', 'ccc', 'aaa']);
});

test('failures reach all who wait, name the option, and are not kept', async () => {
  const { cache, compiled } = makeCache();
  const expected = { code: 'invalid_argument', message: 'GBNF: line 1', param: 'structuredOutput.grammar' };
  const results = await Promise.allSettled([cache.get(plan('bad')), cache.get(plan('bad'))]);
  for (const result of results) expect(result).toMatchObject({ status: 'rejected', reason: expected });
  await expect(cache.get(plan('bad'))).rejects.toBeInstanceOf(CapstanError);
  expect(compiled).toEqual(['bad', 'bad']);
});

test('an error that knows its option keeps it; that of a schema gets the option it is in', async () => {
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

test('a prefix is a grammar of its own: a further rule, or the engine reads it beside a GBNF text', () => {
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

test('what JSON cannot hold is no key', () => {
  const cycle: Record<string, unknown> = {};
  cycle.self = cycle;
  expect(() => keyOf('structuredOutput.schema', cycle)).toThrow(
    expect.objectContaining({ code: 'invalid_argument', param: 'structuredOutput.schema' }) as Error,
  );
  expect(keyOf('x', { b: 1, a: 2 })).not.toBe(keyOf('x', { a: 2, b: 1 }));
});

describe('a flood', () => {
  /** Compilations that end when they are told to. */
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

  test('is compiled a few at a time, waits in a short line, and is refused beyond', async () => {
    const { cache, compiling, finish } = makeSlowCache();
    const first = ['a', 'b', 'c', 'd', 'c'].map((key) => cache.get(plan(key)));
    await expect(cache.get(plan('e'))).rejects.toMatchObject({
      code: 'queue_full',
      message: 'The queue is full: 2 of at most 2 grammars wait to be compiled',
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

  test('what all callers have left is not compiled, and leaves its place in the line', async () => {
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

  test('a compilation under way is kept for whoever comes next', async () => {
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
