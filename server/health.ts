import type { EngineStats } from '../ts';
import { ApiError } from './errors';

/** @throws ApiError `engine_dead` when the engine failed, or has work and made no step for too long. */
export function checkHealth(
  stats: Pick<EngineStats, 'failure' | 'msSinceLastStep' | 'numRunning' | 'numWaiting'>,
  stallTimeoutMs: number,
): void {
  if (stats.failure !== null) throw new ApiError('engine_dead', 'The engine no longer answers');
  const hasWork = stats.numRunning + stats.numWaiting > 0;
  if (hasWork && stats.msSinceLastStep > stallTimeoutMs) {
    throw new ApiError(
      'engine_dead',
      `The engine has work and made no step for ${Math.round(stats.msSinceLastStep / 1000)} s`,
    );
  }
}
