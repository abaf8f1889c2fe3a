/** The parts of the benchmark without I/O: workload, arrivals, summary and flag values. */
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { arrivalTimesMs } from '../../../server/bench/arrivals';
import { parseBaseUrl, parseBounds, parseRate } from '../../../server/cli/bench/flag-values';
import type { ServeBenchOptions } from '../../../server/bench/options';
import type { Outcome } from '../../../server/bench/outcome';
import { Random } from '../../../server/bench/random';
import { spreadOf, summarize } from '../../../server/bench/summary';
import { makeWorkload } from '../../../server/bench/workload';

const workload = (changes: Partial<ServeBenchOptions>, seed = 1) =>
  makeWorkload(
    {
      dataset: 'random',
      backend: 'openai',
      numPrompts: 50,
      inputLen: 100,
      outputLen: 10,
      rangeRatio: 0,
      prefixLen: 0,
      prefixes: { length: 1, suffixLen: 1, count: 1 },
      ...changes,
    } as ServeBenchOptions,
    1000,
    new Random(seed),
  );

describe('random numbers', () => {
  test('the same seed gives the same numbers', () => {
    const take = (seed: number) => Array.from({ length: 5 }, (_, __, random = new Random(seed)) => random.next());
    expect(take(7)).toEqual(take(7));
    expect(take(7)).not.toEqual(take(8));
  });

  test.each([0.3, 1, 4])('gamma of shape %d has mean 1 and variance 1 / shape', (shape) => {
    const random = new Random(3);
    const { mean, std } = spreadOf(
      Array.from({ length: 40_000 }, () => random.gamma(shape)),
      [],
    );
    expect(mean).toBeCloseTo(1, 1);
    expect(std ** 2 * shape).toBeCloseTo(1, 0);
  });

  test('integers include both ends', () => {
    const random = new Random(1);
    expect(new Set(Array.from({ length: 200 }, () => random.integer(2, 5)))).toEqual(new Set([2, 3, 4, 5]));
  });
});

describe('arrivals', () => {
  test('match the request rate and start at once', () => {
    const times = arrivalTimesMs(5000, { requestRate: 20, burstiness: 1 }, new Random(1));
    expect(times[0]).toBe(0);
    expect(times.at(-1)! / 4999).toBeGreaterThan(48);
    expect(times.at(-1)! / 4999).toBeLessThan(52);
    expect(times.every((time, i) => i === 0 || time > times[i - 1])).toBe(true);
  });

  test('are all at once for inf', () => {
    expect(arrivalTimesMs(3, { requestRate: Infinity, burstiness: 1 }, new Random(1))).toEqual([0, 0, 0]);
  });
});

describe('workload', () => {
  test('the same seed gives the same workload', () => {
    expect(workload({}, 5)).toEqual(workload({}, 5));
    expect(workload({}, 5)).not.toEqual(workload({}, 6));
  });

  test('lengths vary within the ratio', () => {
    const lengths = workload({ rangeRatio: 0.2 }).map(({ prompt }) => prompt.length);
    expect(Math.min(...lengths)).toBeGreaterThanOrEqual(80);
    expect(Math.max(...lengths)).toBeLessThanOrEqual(120);
    expect(new Set(lengths).size).toBeGreaterThan(5);
  });

  test('prompts share a prefix of ids or words', () => {
    const ids = workload({ prefixLen: 8, inputLen: 4 }) as { prompt: number[]; numTokens: number }[];
    expect(new Set(ids.map(({ prompt }) => prompt.slice(0, 8).join())).size).toBe(1);
    expect(ids[0].numTokens).toBe(12);
    const texts = workload({ backend: 'openai-chat', prefixLen: 8, inputLen: 4 });
    expect(new Set(texts.map(({ prompt }) => (prompt as string).split(' ').slice(0, 8).join())).size).toBe(1);
    expect((texts[0].prompt as string).split(' ')).toHaveLength(12);
  });

  test('repeats the prompts of a file', () => {
    const path = join(mkdtempSync(join(tmpdir(), 'capstan-bench-')), 'prompts.jsonl');
    writeFileSync(path, '{"prompt": "a", "output_tokens": 2}\n\n{"prompt": "b"}\n');
    expect(
      workload({ dataset: 'custom', datasetPath: path, numPrompts: 3 }).map(({ prompt, maxTokens }) => [
        prompt,
        maxTokens,
      ]),
    ).toEqual([
      ['a', 2],
      ['b', 10],
      ['a', 2],
    ]);
    writeFileSync(path, '{"prompt": 3}\n');
    expect(() => workload({ dataset: 'custom', datasetPath: path })).toThrow(
      `${path}:1: expected a string "prompt", got number`,
    );
    expect(() => workload({ dataset: 'custom', datasetPath: '/no/file' })).toThrow('--dataset-path: ENOENT');
  });
});

describe('summary', () => {
  const outcome = (changes: Partial<Outcome>): Outcome => ({
    dueAt: 0,
    sentAt: 0,
    chunkTimes: [100, 150, 250],
    endedAt: 300,
    promptTokens: 10,
    cachedTokens: 4,
    completionTokens: 5,
    ...changes,
  });
  const options = { percentiles: [50, 90], goodput: {}, maxConcurrency: Infinity };

  test('percentiles interpolate between ranks as in numpy', () => {
    // numpy.percentile([1, 2, 4, 8, 16], [50, 90, 99]) and numpy.std
    const { mean, median, std, percentiles } = spreadOf([16, 1, 8, 2, 4], [50, 90, 99]);
    expect([mean, median]).toEqual([6.2, 4]);
    expect(std).toBeCloseTo(5.455, 3);
    expect(percentiles[0]).toBe(4);
    expect(percentiles[1]).toBeCloseTo(12.8, 10);
    expect(percentiles[2]).toBeCloseTo(15.68, 10);
    expect(spreadOf([], [50])).toEqual({ mean: 0, median: 0, std: 0, percentiles: [0] });
  });

  test('computes the latencies of a request', () => {
    const { latencies } = summarize({ model: 'm', outcomes: [outcome({})], durationMs: 1000, numUnsent: 0 }, options);
    expect([latencies.ttft.mean, latencies.tpot.mean, latencies.itl.mean, latencies.e2el.mean]).toEqual([
      100, 50, 75, 300,
    ]);
  });

  test('a response of one token has no time per output token', () => {
    const { latencies, outputTokens } = summarize(
      {
        model: 'm',
        outcomes: [outcome({ chunkTimes: [100], completionTokens: 1 }), outcome({})],
        durationMs: 1000,
        numUnsent: 0,
      },
      options,
    );
    expect([latencies.tpot.mean, outputTokens]).toEqual([50, 6]);
  });

  test('failed requests count only as errors', () => {
    const summary = summarize(
      {
        model: 'm',
        outcomes: [outcome({}), outcome({ errorKind: 'timeout', errorMessage: 'late', endedAt: 9000 })],
        durationMs: 2000,
        numUnsent: 0,
      },
      options,
    );
    expect(summary).toMatchObject({
      completed: 1,
      failed: 1,
      outputTokens: 5,
      inputTokens: 10,
      cachedTokens: 4,
      requestsPerS: 0.5,
      outputTokensPerS: 2.5,
      totalTokensPerS: 7.5,
      errors: [{ kind: 'timeout', count: 1, message: 'late' }],
    });
    expect(summary.latencies.e2el.mean).toBe(300);
  });

  test('goodput counts the requests within all bounds', () => {
    const outcomes = [outcome({}), outcome({ chunkTimes: [200, 210], endedAt: 220 }), outcome({ endedAt: 2000 })];
    const goodput = (bounds: ServeBenchOptions['goodput']) =>
      summarize({ model: 'm', outcomes, durationMs: 1000, numUnsent: 0 }, { ...options, goodput: bounds }).goodputPerS;
    expect([goodput({}), goodput({ ttft: 150 }), goodput({ ttft: 150, e2el: 1000 }), goodput({ tpot: 10 })]).toEqual([
      undefined,
      2,
      1,
      1,
    ]);
  });

  test('peak concurrency does not count a request that ends when another starts', () => {
    const outcomes = [
      outcome({ sentAt: 0, endedAt: 10 }),
      outcome({ sentAt: 10, endedAt: 20 }),
      outcome({ sentAt: 15, endedAt: 16 }),
    ];
    expect(summarize({ model: 'm', outcomes, durationMs: 1000, numUnsent: 0 }, options).maxConcurrent).toBe(2);
  });
});

describe('flag values', () => {
  test.each([
    ['http://h:1/', 'http://h:1'],
    ['https://h/v1', 'https://h'],
    ['http://h/prefix/v1/', 'http://h/prefix'],
  ])('parses %s as %s', (url, base) => expect(parseBaseUrl('--base-url', url)).toBe(base));
  test.each(['ftp://h', 'h:1', ''])('refuses %j as a URL', (url) =>
    expect(() => parseBaseUrl('--base-url', url)).toThrow(
      `--base-url: expected a URL such as http://127.0.0.1:8080, got '${url}'`,
    ),
  );
  test('parses rates and bounds', () => {
    expect([parseRate('-r', 'inf'), parseRate('-r', '0.5')]).toEqual([Infinity, 0.5]);
    expect(() => parseRate('-r', '0')).toThrow("-r: expected requests per second above 0, or inf, got '0'");
    expect(parseBounds('--goodput', ['a:5', 'b:0.5'], ['a', 'b'])).toEqual({ a: 5, b: 0.5 });
    expect(() => parseBounds('--goodput', ['c:5'], ['a', 'b'])).toThrow("--goodput: expected a or b, got 'c'");
    expect(() => parseBounds('--goodput', ['a'], ['a', 'b'])).toThrow(
      "--goodput: expected a number of 0 or more, got ''",
    );
  });
});
