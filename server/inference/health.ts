import type { EngineStats } from '../../ts';
import { ApiError } from '../base/errors';

/** Throws ApiError `engine_dead` if the engine failed, or if it has work but has made no step for too long. */
export function checkHealth(
  stats: Pick<EngineStats, 'failure' | 'msSinceLastStep' | 'numRunning' | 'numWaiting'>,
  stallTimeoutMs: number,
): void {
  if (stats.failure !== null) throw new ApiError('engine_dead', 'The engine has stopped');
  const hasWork = stats.numRunning + stats.numWaiting > 0;
  if (hasWork && stats.msSinceLastStep > stallTimeoutMs) {
    throw new ApiError(
      'engine_dead',
      `The engine has work but has made no step for ${Math.round(stats.msSinceLastStep / 1000)} s`,
    );
  }
}
