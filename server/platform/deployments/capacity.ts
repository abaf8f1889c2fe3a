import type { Isolation } from '../driver/driver';
import type { ServiceActor } from '../accounts/actor';
import type { Machine } from './machine';
import type { ServiceDb } from '../store/schema';
import type { Compute, StoredSpec } from './spec';

/** The resources of this machine and the part of them that is free. */
export interface Capacity {
  driver: string;
  isolation: Isolation & { outgoing_network: boolean; allows_start_scripts: boolean };
  total: Compute;
  free: Compute;
  gpus: { uuid: string; type: string; memory_mb: number; free: boolean }[];
}

/**
 * Returns the capacity as `actor` sees it. Replicas share CPU time, so the free CPU time is the total minus what
 * the replicas requested.
 */
export async function readCapacity(
  db: ServiceDb,
  { driver, isolation, capacity, allowsUnisolated }: Machine,
  { isAdmin }: ServiceActor,
): Promise<Capacity> {
  const leases = new Set(
    (await db.selectFrom('gpu_leases').select('gpu_uuid').execute()).map(({ gpu_uuid: uuid }) => uuid),
  );
  const replicas = await db
    .selectFrom('replicas')
    .leftJoin('deployment_versions', 'deployment_versions.id', 'version_id')
    .leftJoin('containers', 'containers.id', 'container_id')
    .select(['memory_mb', 'deployment_versions.spec as version_spec', 'containers.spec as container_spec'])
    .execute();
  const cpuMillis = replicas.reduce(
    (sum, { version_spec: first, container_spec: second }) =>
      sum + (JSON.parse(first ?? second ?? '{}') as StoredSpec).compute.cpu_millis,
    0,
  );
  const memoryMb = replicas.reduce((sum, { memory_mb: mb }) => sum + mb, 0);
  const gpus = capacity.gpus.map(({ uuid, type, memoryMb: memory_mb }) => ({
    uuid,
    type,
    memory_mb,
    free: !leases.has(uuid),
  }));
  return {
    driver,
    isolation: {
      level: isolation.level,
      reason: isolation.reason,
      outgoing_network: isolation.level !== 'L2',
      allows_start_scripts: isolation.level === 'L2' || (isAdmin && allowsUnisolated),
    },
    total: { cpu_millis: capacity.cpuMillis, memory_mb: capacity.memoryMb, gpu_count: gpus.length, gpu_type: null },
    free: {
      cpu_millis: Math.max(0, capacity.cpuMillis - cpuMillis),
      memory_mb: Math.max(0, capacity.memoryMb - memoryMb),
      gpu_count: gpus.filter(({ free }) => free).length,
      gpu_type: null,
    },
    gpus,
  };
}
