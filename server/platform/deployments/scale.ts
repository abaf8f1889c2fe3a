import type { DeploymentSettingsRow } from '../store/deployment-schema';
import { ServiceError } from '../store/errors';

export type Scale = Pick<
  DeploymentSettingsRow,
  'min_replicas' | 'max_replicas' | 'idle_timeout_s' | 'cold_start_wait_s'
>;

export const DEFAULT_SCALE: Scale = { min_replicas: 1, max_replicas: 1, idle_timeout_s: null, cold_start_wait_s: 60 };

/** Returns the scale fields of a request. */
export function scaleOf(request: Partial<Scale>): Partial<Scale> {
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

/** @throws ServiceError `invalid_argument` */
export function checkScale(scale: Scale): Scale {
  if (scale.max_replicas < Math.max(1, scale.min_replicas))
    throw new ServiceError(
      'invalid_argument',
      `max_replicas: expected at least ${Math.max(1, scale.min_replicas)} (min_replicas), got ${scale.max_replicas}`,
    );
  return scale;
}
