import { openContainer } from '../deployments/containers';
import { secretPurpose } from './deployment-control';
import { isUnnamed, prefixCacheMb, runtimeArgs } from '../deployments/runtime-options';
import type { OpenSpec } from '../deployments/spec';
import type { ReplicaRow } from '../store/deployment-schema';
import type { StoreContext } from '../store/store-context';
import { openVersion } from '../deployments/version-rows';

/**
 * What the driver needs to start a replica. Folders are not checked yet. Contains decrypted secrets: do not keep it.
 */
export interface Launch {
  replicaId: string;
  /** The version or container that the log and the home belong to. */
  ownerId: string;
  ordinal: number;
  isProduction: boolean;
  startCommand: string | null;
  runtimeArgs: string[];
  /** The name of the deployment or container, for a model without one. Null: the model has a name. */
  modelName: string | null;
  cpuMillis: number;
  memoryMb: number;
  gpuUuids: string[];
  env: Record<string, string>;
  /** Folders of bound data sources. Each start checks them again. */
  folders: { mount: string; mode: 'ro' | 'rw' | 'copy'; path: string; isIncomplete: boolean }[];
  /** The prefix cache on the disk. Null: it is only in memory. */
  prefixCache: { deploymentId: string; maxMb: number; sharedMb: number; maxReplicas: number } | null;
  healthPath: string;
  graceMs: number;
  secret: string;
}

/** Returns undefined if the replica was removed. */
export async function readLaunch(context: StoreContext, replicaId: string): Promise<Launch | undefined> {
  const { db, box } = context;
  const row = await db.selectFrom('replicas').selectAll().where('id', '=', replicaId).executeTakeFirst();
  if (row === undefined) return undefined;
  const spec =
    row.version_id !== null
      ? await openVersion(context, db, row.version_id)
      : await openContainerOf(context, row.container_id ?? '');
  const ownerId = row.version_id ?? row.container_id ?? '';
  const gpus = await db
    .selectFrom('gpu_leases')
    .select('gpu_uuid')
    .where('replica_id', '=', replicaId)
    .orderBy('gpu_uuid')
    .execute();
  return {
    replicaId,
    ownerId,
    ordinal: row.ordinal,
    isProduction: row.version_id !== null,
    startCommand: spec.stored.start_command,
    runtimeArgs: runtimeArgs(spec.stored.runtime, spec.stored.compute.gpu_count, spec.stored.model_mount),
    modelName: isUnnamed(spec.stored.runtime) ? await nameOf(context, row) : null,
    cpuMillis: spec.stored.compute.cpu_millis,
    memoryMb: spec.stored.compute.memory_mb,
    gpuUuids: gpus.map(({ gpu_uuid: uuid }) => uuid),
    env: { ...spec.stored.env, ...spec.secrets },
    folders: await foldersOf(context, row.version_id !== null ? 'version_id' : 'container_id', ownerId),
    prefixCache: row.version_id === null ? null : await prefixCacheOf(context, row.version_id, spec),
    healthPath: spec.stored.health_path,
    graceMs: spec.stored.grace_s * 1000,
    secret: box.open(row.secret, secretPurpose(replicaId)),
  };
}

async function nameOf(
  { db }: StoreContext,
  { version_id: versionId, container_id: containerId }: Pick<ReplicaRow, 'version_id' | 'container_id'>,
): Promise<string> {
  const query =
    versionId === null
      ? db.selectFrom('containers').select('name').where('id', '=', containerId)
      : db
          .selectFrom('deployment_versions as versions')
          .innerJoin('deployments', 'deployments.id', 'versions.deployment_id')
          .select('name')
          .where('versions.id', '=', versionId);
  return (await query.executeTakeFirstOrThrow()).name;
}

async function openContainerOf(context: StoreContext, containerId: string): Promise<OpenSpec> {
  return openContainer(
    context,
    context.db,
    await context.db.selectFrom('containers').selectAll().where('id', '=', containerId).executeTakeFirstOrThrow(),
  );
}

async function prefixCacheOf(
  { db }: StoreContext,
  versionId: string,
  { stored }: OpenSpec,
): Promise<Launch['prefixCache']> {
  const maxMb = prefixCacheMb(stored);
  if (maxMb === 0) return null;
  const row = await db
    .selectFrom('deployment_versions')
    .innerJoin('deployment_settings as settings', 'settings.deployment_id', 'deployment_versions.deployment_id')
    .select(['settings.deployment_id', 'settings.max_replicas'])
    .where('deployment_versions.id', '=', versionId)
    .executeTakeFirstOrThrow();
  const { deployment_id: deploymentId, max_replicas: maxReplicas } = row;
  return { deploymentId, maxMb, sharedMb: await largestCacheMb(db, deploymentId), maxReplicas };
}

/** Returns the largest limit of the versions whose replicas share the prefix cache of a deployment. */
async function largestCacheMb(db: StoreContext['db'], deploymentId: string): Promise<number> {
  const rows = await db
    .selectFrom('deployment_versions as versions')
    .innerJoin('deployment_settings as settings', 'settings.deployment_id', 'versions.deployment_id')
    .select('spec')
    .where('versions.deployment_id', '=', deploymentId)
    .where((eb) =>
      eb.or([
        eb('versions.id', '=', eb.ref('active_version_id')),
        eb('versions.id', '=', eb.ref('target_version_id')),
        eb('versions.id', 'in', eb.selectFrom('replicas').select('version_id').where('version_id', 'is not', null)),
      ]),
    )
    .execute();
  return Math.max(0, ...rows.map(({ spec }) => prefixCacheMb(JSON.parse(spec) as Parameters<typeof prefixCacheMb>[0])));
}

async function foldersOf(
  { db }: StoreContext,
  column: 'version_id' | 'container_id',
  ownerId: string,
): Promise<Launch['folders']> {
  const rows = await db
    .selectFrom('data_bindings')
    .innerJoin('data_sources', 'data_sources.id', 'data_bindings.source_id')
    .leftJoin('data_pulls', 'data_pulls.source_id', 'data_bindings.source_id')
    .select(['mount', 'mode', 'locator', 'is_filled'])
    .where(column, '=', ownerId)
    .orderBy('mount')
    .execute();
  return rows.map(({ mount, mode, locator, is_filled: isFilled }) => ({
    mount,
    isIncomplete: isFilled === 0,
    mode,
    path: (JSON.parse(locator) as { path: string }).path,
  }));
}

/** Returns the folder that the home of a version is copied from, or undefined if it has no home. */
export async function readHomeSource(context: StoreContext, versionId: string): Promise<string | undefined> {
  return (await foldersOf(context, 'version_id', versionId)).find(({ mount }) => mount === 'home')?.path;
}
