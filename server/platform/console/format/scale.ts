import type { Deployment } from '../../api/objects';

export interface ScaleDraft {
  minReplicas: string;
  maxReplicas: string;
  sleeps: boolean;
  idleTimeoutS: string;
  coldStartWaitS: string;
}

export const DEFAULT_SCALE: ScaleDraft = {
  minReplicas: '1',
  maxReplicas: '1',
  sleeps: false,
  idleTimeoutS: '900',
  coldStartWaitS: '60',
};

export function scaleOf({ min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s }: Deployment): ScaleDraft {
  return {
    minReplicas: String(min_replicas),
    maxReplicas: String(max_replicas),
    sleeps: idle_timeout_s !== null,
    idleTimeoutS: String(idle_timeout_s ?? 900),
    coldStartWaitS: String(cold_start_wait_s),
  };
}

/** Fields that are not shown do not count. */
export function isScale({ minReplicas, maxReplicas, sleeps, idleTimeoutS, coldStartWaitS }: ScaleDraft): boolean {
  const isInteger = (value: string, min: number, max: number) =>
    /^\d+$/.test(value) && Number(value) >= min && Number(value) <= max;
  return (
    isInteger(maxReplicas, 1, 64) &&
    isInteger(minReplicas, 0, Number(maxReplicas)) &&
    (!sleeps || (isInteger(idleTimeoutS, 1, 31_536_000) && isInteger(coldStartWaitS, 0, 3_600)))
  );
}

export function toScale({ minReplicas, maxReplicas, sleeps, idleTimeoutS, coldStartWaitS }: ScaleDraft) {
  return {
    min_replicas: Number(minReplicas),
    max_replicas: Number(maxReplicas),
    idle_timeout_s: sleeps ? Number(idleTimeoutS) : null,
    ...(sleeps ? { cold_start_wait_s: Number(coldStartWaitS) } : {}),
  };
}
