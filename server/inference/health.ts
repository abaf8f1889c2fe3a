import type { EngineStats } from '../../ts';
import { ApiError } from '../base/errors';
import type { ServedModels } from './models/served-models';
import { show } from '../base/json/validate';

/**
 * Throws ApiError `engine_dead` if the engine failed, or if it has work but has made no step for too long.
 * @param name The model, for a server with several.
 */
function checkHealth(
  stats: Pick<EngineStats, 'failure' | 'msSinceLastStep' | 'numRunning' | 'numWaiting'>,
  stallTimeoutMs: number,
  name?: string,
): void {
  const engine = name === undefined ? 'The engine' : `The engine of ${show(name)}`;
  if (stats.failure !== null) throw new ApiError('engine_dead', `${engine} has stopped`);
  const hasWork = stats.numRunning + stats.numWaiting > 0;
  if (hasWork && stats.msSinceLastStep > stallTimeoutMs) {
    throw new ApiError(
      'engine_dead',
      `${engine} has work but has made no step for ${Math.round(stats.msSinceLastStep / 1000)} s`,
    );
  }
}

/**
 * Throws ApiError `model_loading` until the pinned models are loaded, or `engine_dead` as {@link checkHealth} does. A
 * model that sleeps is healthy.
 */
export function checkModels({ entries, only }: ServedModels, stallTimeoutMs: number): void {
  for (const { served, slot } of entries) {
    const [name] = served.names;
    if (slot.model.isPinned && slot.state !== 'loaded')
      throw new ApiError('model_loading', `The model ${show(name)} is still loading`);
    // An engine that closes has no statistics.
    if (slot.state === 'loaded')
      checkHealth(slot.engine!.stats(), stallTimeoutMs, only === undefined ? name : undefined);
  }
}
