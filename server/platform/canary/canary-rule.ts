/** The requests of one version since the canary began. */
export interface VariantStats {
  requests: number;
  errors: number;
  /** Median of the last successful requests. Null without one. */
  first_token_ms: number | null;
}

export interface CanaryStats {
  stable: VariantStats;
  canary: VariantStats;
  /** See {@link CanaryMeter}. */
  score: number;
}

export type Variant = 'stable' | 'canary';

const NO_REQUESTS: VariantStats = { requests: 0, errors: 0, first_token_ms: null };
export const NO_STATS: CanaryStats = { stable: NO_REQUESTS, canary: NO_REQUESTS, score: 0 };

/**
 * The score of a roll-back. Without {@link FLOOR}, a canary as good as the stable version would reach it with a
 * probability of 1 in 1,000. With it, long canaries reach it more often: if both versions fail 5 % of their requests, 1
 * of 200 canaries with 10 % of the traffic does within 1,000 requests.
 */
const LIMIT = Math.log(1_000);
/** The score never falls lower, so that a canary that gets worse later is found soon. */
const FLOOR = -5;
/** Difference of the error rates that the rule looks for. */
const DIFFERENCE = 0.15;
/** Error rate of a stable version that is assumed at least. */
const MIN_STABLE_RATE = 0.01;
const MAX_RATE = 0.99;
/** The error rate counts as one standard deviation higher than it was, so that few requests prove little. */
const PRIOR_REQUESTS = 20;
/** How many of the last times to the first token count, and how many both versions need. */
const NUM_TIMES = 100;
const MIN_TIMES = 20;
/** The canary may be this many times as slow, plus a constant. */
const SLOW_FACTOR = 2;
const SLOW_MS = 100;

/**
 * Compares a canary with the stable version, request by request.
 *
 * Errors: Wald's sequential probability ratio test. `p` is the error rate of the active version, and `q = p + 0.15`. An
 * error of the canary adds `ln(q / p)` to the score. A success adds `ln((1 - q) / (1 - p))`, which is negative.
 *
 * Time to the first token: the medians of the last 100 successful requests.
 */
export class CanaryMeter {
  #score: number;
  readonly #counts: Record<Variant, { requests: number; errors: number; times: number[]; median: number | null }>;

  constructor({ stable, canary, score }: CanaryStats = NO_STATS) {
    this.#score = score;
    const counts = ({ requests, errors, first_token_ms: median }: VariantStats) => ({
      requests,
      errors,
      times: [] as number[],
      median,
    });
    this.#counts = { stable: counts(stable), canary: counts(canary) };
  }

  get stats(): CanaryStats {
    return { stable: this.#statsOf('stable'), canary: this.#statsOf('canary'), score: this.#score };
  }

  /** Returns why the canary must be rolled back, or undefined. */
  record(variant: Variant, { isError, firstTokenMs }: { isError: boolean; firstTokenMs?: number }): string | undefined {
    const counts = this.#counts[variant];
    counts.requests++;
    if (isError) counts.errors++;
    else if (firstTokenMs !== undefined && counts.times.push(firstTokenMs) > NUM_TIMES) counts.times.shift();
    if (variant === 'stable') return undefined;
    const stable = this.#stableRate();
    const worse = Math.min(MAX_RATE, stable + DIFFERENCE);
    this.#score = Math.max(
      FLOOR,
      this.#score + (isError ? Math.log(worse / stable) : Math.log((1 - worse) / (1 - stable))),
    );
    return this.verdict ?? this.#slowReason();
  }

  /** Why the errors so far roll the canary back, or undefined. */
  get verdict(): string | undefined {
    return this.#score >= LIMIT ? this.#errorReason() : undefined;
  }

  #stableRate(): number {
    const { requests, errors } = this.#counts.stable;
    const rate = (errors + Math.sqrt(errors + 0.5)) / (requests + PRIOR_REQUESTS);
    return Math.min(MAX_RATE - DIFFERENCE, Math.max(MIN_STABLE_RATE, rate));
  }

  #errorReason(): string {
    const { stable, canary } = this.#counts;
    return `errors: ${canary.errors} of ${canary.requests} requests, and ${stable.errors} of ${stable.requests} of the active version`;
  }

  #slowReason(): string | undefined {
    const { stable, canary } = this.#counts;
    if (stable.times.length < MIN_TIMES || canary.times.length < MIN_TIMES) return undefined;
    const [fast, slow] = [medianOf(stable.times), medianOf(canary.times)];
    return slow > SLOW_FACTOR * fast + SLOW_MS
      ? `first token: ${Math.round(slow)} ms, and ${Math.round(fast)} ms of the active version (medians)`
      : undefined;
  }

  #statsOf(variant: Variant): VariantStats {
    const { requests, errors, times, median } = this.#counts[variant];
    return {
      requests,
      errors,
      first_token_ms: times.length === 0 ? median : Math.round(medianOf(times) * 10) / 10,
    };
  }
}

function medianOf(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}
