import { counted, type OwnerRef } from 'capstan/internal';
import { NO_QUOTAS, QUOTA_COLUMNS, type Quotas } from '../accounts/quota-columns';
import type { DriverCapacity } from '../driver/driver';
import { ServiceError } from '../store/errors';
import { replicaUseOf, useOf } from './owner-use';
import { Pool } from './pool';
import type { ServiceTx } from '../store/schema';

/** Loads the resources in use, and the owner's quotas. */
export async function loadPool(tx: ServiceTx, capacity: DriverCapacity, owner: OwnerRef): Promise<Pool> {
  const leases = await tx.selectFrom('gpu_leases').select('gpu_uuid').execute();
  const { memory } = await tx
    .selectFrom('replicas')
    .select((eb) => eb.fn.coalesce(eb.fn.sum<number | string>('memory_mb'), eb.val(0)).as('memory'))
    .executeTakeFirstOrThrow();
  const used = (await replicaUseOf(tx, [owner.id]))(owner.id);
  return new Pool(capacity, {
    takenGpus: leases.map(({ gpu_uuid: uuid }) => uuid),
    usedMemoryMb: Number(memory),
    quotas: await quotasOfOwner(tx, owner),
    ownerGpus: used.used_gpu,
    ownerCpuMillis: used.used_cpu_millis,
    ownerMemoryMb: used.used_memory_mb,
  });
}

/** Null means no limit. */
export async function quotasOfOwner(tx: ServiceTx, { type, id }: OwnerRef): Promise<Quotas> {
  const row =
    type === 'org'
      ? await tx.selectFrom('org_settings').select(QUOTA_COLUMNS).where('org_id', '=', id).executeTakeFirst()
      : await tx.selectFrom('accounts').select(QUOTA_COLUMNS).where('user_id', '=', id).executeTakeFirst();
  return row ?? NO_QUOTAS;
}

/** What a new version needs while its replicas run. */
export interface Demand {
  gpus: number;
  cpuMillis: number;
  memoryMb: number;
  /** The source of the home folder, which the version copies. */
  homeId: string | undefined;
  /** What the prefix cache may take on the disk, less what an active or target version may take already. */
  cacheMb: number;
  /** Whether the version also makes a new deployment. */
  isDeployment: boolean;
}

export const NO_DEMAND: Demand = {
  gpus: 0,
  cpuMillis: 0,
  memoryMb: 0,
  homeId: undefined,
  cacheMb: 0,
  isDeployment: false,
};

/**
 * Refuses a version that the owner's quotas never allow. A version only waits for GPUs, CPU and memory that the owner
 * uses now.
 * @throws ServiceError `quota_exceeded`
 */
export async function demandQuotas(tx: ServiceTx, owner: OwnerRef, demand: Demand): Promise<void> {
  const quotas = await quotasOfOwner(tx, owner);
  if (QUOTA_COLUMNS.every((column) => quotas[column] === null)) return;
  const used = (await useOf(tx, [owner.id]))(owner.id);
  const homeMb = await sizeMb(tx, demand.homeId);
  const wanted: readonly (readonly [quota: number | null, needed: number, unit: (count: number) => string])[] = [
    [quotas.quota_deployments, demand.isDeployment ? used.used_deployments + 1 : 0, (n) => counted(n, 'deployment')],
    [quotas.quota_versions, used.used_versions + 1, (n) => `${counted(n, 'version')} of all deployments`],
    [quotas.quota_gpu, demand.gpus, (n) => counted(n, 'GPU')],
    [quotas.quota_cpu_millis, demand.cpuMillis, (n) => `${counted(n / 1000, 'CPU core')}`],
    [quotas.quota_memory_mb, demand.memoryMb, (n) => `${n} MiB of memory`],
    [quotas.quota_disk_mb, used.used_disk_mb + homeMb + demand.cacheMb, diskText],
  ];
  for (const [quota, needed, unit] of wanted) demandWithin(quota, needed, unit);
}

/** @throws ServiceError `quota_exceeded` if `moreMb` does not fit into the disk quota of the owner */
export async function demandDisk(tx: ServiceTx, owner: OwnerRef, moreMb: number): Promise<void> {
  if (moreMb <= 0) return;
  const { quota_disk_mb: quota } = await quotasOfOwner(tx, owner);
  if (quota === null) return;
  demandWithin(quota, (await useOf(tx, [owner.id]))(owner.id).used_disk_mb + moreMb, diskText);
}

const diskText = (n: number): string => `${n} MiB of disk`;

function demandWithin(quota: number | null, needed: number, unit: (count: number) => string): void {
  if (quota !== null && needed > quota)
    throw new ServiceError(
      'quota_exceeded',
      `needs ${unit(needed)}, but the quota of the owner is ${unit(quota)}. An administrator can change it`,
    );
}

async function sizeMb(tx: ServiceTx, sourceId: string | undefined): Promise<number> {
  if (sourceId === undefined) return 0;
  const row = await tx.selectFrom('data_sources').select('size_bytes').where('id', '=', sourceId).executeTakeFirst();
  return Math.ceil((row?.size_bytes ?? 0) / 2 ** 20);
}
