import type { DeploymentSettingsRow } from './deployment-schema';
import { ServiceError } from './errors';

export type Scale = Pick<
  DeploymentSettingsRow,
  'min_replicas' | 'max_replicas' | 'idle_timeout_s' | 'cold_start_wait_s'
>;

export const DEFAULT_SCALE: Scale = { min_replicas: 1, max_replicas: 1, idle_timeout_s: null, cold_start_wait_s: 60 };

export function scaleOf(wish: Partial<Scale>): Partial<Scale> {
  const { min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s } = wish;
  const scale: Partial<Scale> = {};
  if (min_replicas !== undefined) scale.min_replicas = min_replicas;
  // Who asks for more at the least means more at the most.
  if (max_replicas !== undefined || min_replicas !== undefined)
    scale.max_replicas = max_replicas ?? Math.max(1, min_replicas ?? 1);
  if (idle_timeout_s !== undefined) scale.idle_timeout_s = idle_timeout_s;
  if (cold_start_wait_s !== undefined) scale.cold_start_wait_s = cold_start_wait_s;
  return scale;
}

export function checkScale(scale: Scale): Scale {
  if (scale.max_replicas < Math.max(1, scale.min_replicas))
    throw new ServiceError(
      'invalid_argument',
      `max_replicas: expected at least ${Math.max(1, scale.min_replicas)}, which min_replicas asks for, got ${scale.max_replicas}`,
    );
  return scale;
}
