import { counted, type OwnerRef } from 'capstan/internal';
import type { DriverCapacity } from '../driver/driver';
import { ServiceError } from '../store/errors';
import { Pool } from './pool';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** Loads the resources in use and the owner's quota. */
export async function loadPool(tx: ServiceTx, capacity: DriverCapacity, owner: OwnerRef): Promise<Pool> {
  const leases = await leaseOwners(tx);
  const { memory } = await tx
    .selectFrom('replicas')
    .select((eb) => eb.fn.coalesce(eb.fn.sum<number | string>('memory_mb'), eb.val(0)).as('memory'))
    .executeTakeFirstOrThrow();
  return new Pool(capacity, {
    takenGpus: leases.map(({ uuid }) => uuid),
    usedMemoryMb: Number(memory),
    gpuQuota: (await quotaOf(tx, owner)).gpu,
    ownerGpus: leases.filter(({ ownerId }) => ownerId === owner.id).length,
  });
}

/** Returns all leased GPUs with the owners of their replicas. */
export async function leaseOwners(db: ServiceDb | ServiceTx): Promise<{ uuid: string; ownerId: string | null }[]> {
  const rows = await db
    .selectFrom('gpu_leases')
    .innerJoin('replicas', 'replicas.id', 'gpu_leases.replica_id')
    .leftJoin('deployment_versions', 'deployment_versions.id', 'replicas.version_id')
    .leftJoin('deployments', 'deployments.id', 'deployment_versions.deployment_id')
    .leftJoin('containers', 'containers.id', 'replicas.container_id')
    .select(['gpu_uuid', 'deployments.owner_id as deployment_owner', 'containers.owner_id as container_owner'])
    .execute();
  return rows.map(({ gpu_uuid: uuid, deployment_owner: first, container_owner: second }) => ({
    uuid,
    ownerId: first ?? second,
  }));
}

/** Returns the number of deployments by owner, without those being deleted. */
export async function countDeployments(
  db: ServiceDb | ServiceTx,
  ownerIds: readonly string[],
): Promise<Map<string, number>> {
  if (ownerIds.length === 0) return new Map();
  const rows = await db
    .selectFrom('deployment_settings')
    .innerJoin('deployments', 'deployments.id', 'deployment_settings.deployment_id')
    .select((eb) => ['owner_id', eb.fn.countAll<number | string>().as('count')])
    .where('owner_id', 'in', ownerIds)
    .where('desired', '!=', 'deleted')
    .groupBy('owner_id')
    .execute();
  return new Map(rows.map(({ owner_id: id, count }) => [id, Number(count)]));
}

/** Returns the owner's quotas. Null means unlimited. */
export async function quotaOf(
  tx: ServiceTx,
  { type, id }: OwnerRef,
): Promise<{ gpu: number | null; deployments: number | null }> {
  const row =
    type === 'org'
      ? await tx
          .selectFrom('org_settings')
          .select(['quota_gpu', 'quota_deployments'])
          .where('org_id', '=', id)
          .executeTakeFirst()
      : await tx
          .selectFrom('accounts')
          .select(['quota_gpu', 'quota_deployments'])
          .where('user_id', '=', id)
          .executeTakeFirst();
  return { gpu: row?.quota_gpu ?? null, deployments: row?.quota_deployments ?? null };
}

export function demandGpuQuota(quota: number | null, gpus: number): void {
  if (quota !== null && gpus > quota)
    throw new ServiceError('quota_exceeded', `needs ${counted(gpus, 'GPU')}, but the quota of the owner is ${quota}`);
}
