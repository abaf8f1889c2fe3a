import type { QuotaUse } from '../accounts/quota-columns';
import { prefixCacheMb } from '../deployments/runtime-options';
import type { ServiceDb, ServiceTx } from '../store/schema';

type Reader = ServiceDb | ServiceTx;
type Sums = ReadonlyMap<string, number>;
/** A sum of SQL: a text in PostgreSQL. Null without values. */
type Sum = number | string;

/** Returns what owners have and use, as a function of the owner's id. */
export async function useOf(db: Reader, ownerIds: readonly string[]): Promise<(ownerId: string) => QuotaUse> {
  // One after the other: a transaction has one connection.
  const deployments = await countDeployments(db, ownerIds);
  const versions = await countVersions(db, ownerIds);
  const replicas = await replicaUseOf(db, ownerIds);
  const sources = await sumSources(db, ownerIds);
  const homes = await sumHomes(db, ownerIds);
  const cachesMb = await sumPrefixCaches(db, ownerIds);
  return (id) => ({
    ...replicas(id),
    used_deployments: deployments.get(id) ?? 0,
    used_versions: versions.get(id) ?? 0,
    used_disk_mb: Math.ceil(((sources.get(id) ?? 0) + (homes.get(id) ?? 0)) / 2 ** 20) + (cachesMb.get(id) ?? 0),
  });
}

/** The part of {@link useOf} that replicas hold until they have exited. */
export async function replicaUseOf(
  db: Reader,
  ownerIds: readonly string[],
): Promise<(ownerId: string) => Pick<QuotaUse, 'used_gpu' | 'used_cpu_millis' | 'used_memory_mb'>> {
  const gpus = await countGpus(db, ownerIds);
  const { cpuMillis, memoryMb } = await sumReplicas(db, ownerIds);
  return (id) => ({
    used_gpu: gpus.get(id) ?? 0,
    used_cpu_millis: cpuMillis.get(id) ?? 0,
    used_memory_mb: memoryMb.get(id) ?? 0,
  });
}

/** Without deployments that are being deleted. */
async function countDeployments(db: Reader, ownerIds: readonly string[]): Promise<Sums> {
  if (ownerIds.length === 0) return new Map();
  const rows = await db
    .selectFrom('deployment_settings')
    .innerJoin('deployments', 'deployments.id', 'deployment_settings.deployment_id')
    .select((eb) => ['owner_id', eb.fn.countAll<Sum>().as('sum')])
    .where('owner_id', 'in', ownerIds)
    .where('desired', '!=', 'deleted')
    .groupBy('owner_id')
    .execute();
  return toSums(rows);
}

async function countVersions(db: Reader, ownerIds: readonly string[]): Promise<Sums> {
  if (ownerIds.length === 0) return new Map();
  const rows = await db
    .selectFrom('deployment_versions')
    .innerJoin('deployment_settings', 'deployment_settings.deployment_id', 'deployment_versions.deployment_id')
    .innerJoin('deployments', 'deployments.id', 'deployment_versions.deployment_id')
    .select((eb) => ['owner_id', eb.fn.countAll<Sum>().as('sum')])
    .where('owner_id', 'in', ownerIds)
    .where('desired', '!=', 'deleted')
    .groupBy('owner_id')
    .execute();
  return toSums(rows);
}

async function countGpus(db: Reader, ownerIds: readonly string[]): Promise<Sums> {
  const rows = await replicasOf(db, ownerIds)
    .innerJoin('gpu_leases', 'gpu_leases.replica_id', 'replicas.id')
    .select((eb) => eb.fn.countAll<Sum>().as('sum'))
    .execute();
  return toSums(rows);
}

async function sumReplicas(db: Reader, ownerIds: readonly string[]): Promise<{ cpuMillis: Sums; memoryMb: Sums }> {
  const rows = await replicasOf(db, ownerIds)
    .select((eb) => [
      eb.fn.sum<Sum>('replicas.cpu_millis').as('cpu'),
      eb.fn.sum<Sum>('replicas.memory_mb').as('memory'),
    ])
    .execute();
  return {
    cpuMillis: toSums(rows.map(({ owner_id, cpu }) => ({ owner_id, sum: cpu }))),
    memoryMb: toSums(rows.map(({ owner_id, memory }) => ({ owner_id, sum: memory }))),
  };
}

/** The replicas of deployments and containers, grouped by their owner. */
function replicasOf(db: Reader, ownerIds: readonly string[]) {
  return db
    .selectFrom('replicas')
    .leftJoin('deployment_versions', 'deployment_versions.id', 'replicas.version_id')
    .leftJoin('deployments', 'deployments.id', 'deployment_versions.deployment_id')
    .leftJoin('containers', 'containers.id', 'replicas.container_id')
    .select((eb) => eb.fn.coalesce('deployments.owner_id', 'containers.owner_id').as('owner_id'))
    .where((eb) => eb(eb.fn.coalesce('deployments.owner_id', 'containers.owner_id'), 'in', [...ownerIds, '']))
    .groupBy((eb) => eb.fn.coalesce('deployments.owner_id', 'containers.owner_id'));
}

/** Bytes of the owners' data sources at their last measurement. */
async function sumSources(db: Reader, ownerIds: readonly string[]): Promise<Sums> {
  if (ownerIds.length === 0) return new Map();
  const rows = await db
    .selectFrom('data_sources')
    .select((eb) => ['owner_id', eb.fn.sum<Sum>('size_bytes').as('sum')])
    .where('owner_id', 'in', ownerIds)
    .groupBy('owner_id')
    .execute();
  return toSums(rows);
}

/** Bytes of the home folders that versions copied, as large as their sources are now. */
async function sumHomes(db: Reader, ownerIds: readonly string[]): Promise<Sums> {
  if (ownerIds.length === 0) return new Map();
  const rows = await db
    .selectFrom('data_bindings')
    .innerJoin('data_sources', 'data_sources.id', 'data_bindings.source_id')
    .innerJoin('deployment_versions', 'deployment_versions.id', 'data_bindings.version_id')
    .innerJoin('deployments', 'deployments.id', 'deployment_versions.deployment_id')
    .select((eb) => ['deployments.owner_id', eb.fn.sum<Sum>('data_sources.size_bytes').as('sum')])
    .where('mount', '=', 'home')
    .where('deployments.owner_id', 'in', ownerIds)
    .groupBy('deployments.owner_id')
    .execute();
  return toSums(rows);
}

/** MiB that prefix caches may take on the disk. Each deployment has one, for its active and its next version. */
async function sumPrefixCaches(db: Reader, ownerIds: readonly string[]): Promise<Sums> {
  if (ownerIds.length === 0) return new Map();
  const rows = await db
    .selectFrom('deployment_settings')
    .innerJoin('deployments', 'deployments.id', 'deployment_settings.deployment_id')
    .innerJoin('deployment_versions', 'deployment_versions.deployment_id', 'deployment_settings.deployment_id')
    .select(['deployments.owner_id', 'deployments.id', 'spec'])
    .where('deployments.owner_id', 'in', ownerIds)
    .where((eb) =>
      eb.or([
        eb('deployment_versions.id', '=', eb.ref('active_version_id')),
        eb('deployment_versions.id', '=', eb.ref('target_version_id')),
      ]),
    )
    .execute();
  const largest = new Map<string, { owner_id: string; sum: number }>();
  for (const { owner_id, id, spec } of rows) {
    const limit = prefixCacheMb(JSON.parse(spec) as Parameters<typeof prefixCacheMb>[0]);
    largest.set(id, { owner_id, sum: Math.max(limit, largest.get(id)?.sum ?? 0) });
  }
  const sums = new Map<string, number>();
  for (const { owner_id: owner, sum } of largest.values()) sums.set(owner, (sums.get(owner) ?? 0) + sum);
  return sums;
}

function toSums(rows: readonly { owner_id: string | null; sum: Sum | null }[]): Sums {
  return new Map(rows.map(({ owner_id: id, sum }) => [id ?? '', Number(sum ?? 0)]));
}
