/** Upper bounds of the buckets in milliseconds, four per decade. One more bucket counts longer durations. */
export const BUCKET_BOUNDS_MS = [
  1, 1.8, 3.2, 5.6, 10, 18, 32, 56, 100, 180, 320, 560, 1_000, 1_800, 3_200, 5_600, 10_000, 18_000, 32_000, 56_000,
  100_000, 180_000, 320_000, 600_000,
] as const;
export const NUM_BUCKETS = BUCKET_BOUNDS_MS.length + 1;

/** A histogram of durations. */
export interface Histogram {
  counts: number[];
  sumMs: number;
  maxMs: number;
}

export function newHistogram(): Histogram {
  return { counts: new Array<number>(NUM_BUCKETS).fill(0), sumMs: 0, maxMs: 0 };
}

export function observe(histogram: Histogram, ms: number): void {
  const index = BUCKET_BOUNDS_MS.findIndex((bound) => ms <= bound);
  histogram.counts[index < 0 ? NUM_BUCKETS - 1 : index]++;
  histogram.sumMs += ms;
  histogram.maxMs = Math.max(histogram.maxMs, ms);
}

/** Adds the second histogram to `to`. */
export function addHistogram(to: Histogram, { counts, sumMs, maxMs }: Histogram): void {
  for (let i = 0; i < NUM_BUCKETS; i++) to.counts[i] += counts[i];
  to.sumMs += sumMs;
  to.maxMs = Math.max(to.maxMs, maxMs);
}

export function countOf({ counts }: Histogram): number {
  return counts.reduce((sum, count) => sum + count, 0);
}

/**
 * Returns the `q` quantile (0 to 1), interpolated linearly within its bucket. Returns undefined for an empty histogram.
 */
export function percentile(histogram: Histogram, q: number): number | undefined {
  const { counts, maxMs } = histogram;
  let left = q * countOf(histogram);
  if (left === 0) return undefined;
  for (let i = 0; i < NUM_BUCKETS; i++) {
    if (counts[i] > 0 && left <= counts[i]) {
      const lower = i === 0 ? 0 : BUCKET_BOUNDS_MS[i - 1];
      const upper = Math.min(BUCKET_BOUNDS_MS[i] ?? maxMs, maxMs);
      return lower + (Math.max(upper, lower) - lower) * (left / counts[i]);
    }
    left -= counts[i];
  }
  return maxMs;
}
