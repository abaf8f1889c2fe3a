/** Benchmarks of the addon, for `capstan bench`. They run on the calling thread and block it. */
import { loadAddon } from './addon';
import type { NativeLimits, NativeOpsOptions, NativeOpsResult, NativeOpsRun } from './addon-types';
import { CapstanError } from './errors';

export type MachineLimits = NativeLimits;
export type OpsOptions = NativeOpsOptions;
export type OpsResult = NativeOpsResult;

/**
 * Measures how fast this machine reads memory and computes.
 * @throws CapstanError `invalid_argument`, `out_of_memory` or `addon_not_found`.
 */
export function measureLimits(options: { threads: number; repeats: number; readBytes: number }): MachineLimits {
  return withCapstanErrors(() => loadAddon().benchmarkLimits(options));
}

/**
 * Measures every op of the CPU backend with random weights of the Qwen2.5-0.5B shape.
 * @param onResult Called after each number of rows.
 * @throws CapstanError as {@link measureLimits}.
 */
export function measureOps(options: OpsOptions, onResult: (result: OpsResult) => void): NativeOpsRun {
  return withCapstanErrors(() => loadAddon().benchmarkOps(options, onResult));
}

function withCapstanErrors<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw CapstanError.from(error);
  }
}
