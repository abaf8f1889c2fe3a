import type { DeploymentSettingsRow } from '../store/deployment-schema';
import { ServiceError } from '../store/errors';

export type Scale = Pick<
  DeploymentSettingsRow,
  'min_replicas' | 'max_replicas' | 'idle_timeout_s' | 'cold_start_wait_s'
>;

/** The idle timeout of a deployment with `min_replicas` 0 that sets none. */
const DEFAULT_IDLE_TIMEOUT_S = 900;

export const DEFAULT_SCALE: Scale = { min_replicas: 1, max_replicas: 1, idle_timeout_s: null, cold_start_wait_s: 60 };

/** Returns the scale fields of a request. */
function scaleOf(request: Partial<Scale>): Partial<Scale> {
  const { min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s } = request;
  const scale: Partial<Scale> = {};
  if (min_replicas !== undefined) scale.min_replicas = min_replicas;
  // A request that names only the minimum raises the maximum with it.
  if (max_replicas !== undefined || min_replicas !== undefined)
    scale.max_replicas = max_replicas ?? Math.max(1, min_replicas ?? 1);
  if (idle_timeout_s !== undefined) scale.idle_timeout_s = idle_timeout_s;
  if (cold_start_wait_s !== undefined) scale.cold_start_wait_s = cold_start_wait_s;
  return scale;
}

/**
 * Applies the scale fields of a request. A minimum of 0 that is new gets an idle timeout, unless the request sets one.
 * Null is a choice: the deployment never scales to zero automatically.
 * @throws ServiceError `invalid_argument`
 */
export function applyScale(before: Scale, request: Partial<Scale>): Scale {
  const scale = { ...before, ...scaleOf(request) };
  const isNewlyZero = scale.min_replicas === 0 && before.min_replicas > 0;
  if (isNewlyZero && request.idle_timeout_s === undefined) scale.idle_timeout_s ??= DEFAULT_IDLE_TIMEOUT_S;
  return checkScale(scale);
}

function checkScale(scale: Scale): Scale {
  if (scale.max_replicas < Math.max(1, scale.min_replicas))
    throw new ServiceError(
      'invalid_argument',
      `max_replicas: expected at least ${Math.max(1, scale.min_replicas)} (min_replicas), got ${scale.max_replicas}`,
    );
  return scale;
}
