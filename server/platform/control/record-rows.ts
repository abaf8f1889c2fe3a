import type { Misplaced, ReplicaAddress } from '../driver/driver';
import type { CanaryRow } from '../canary/canary-schema';
import type { ReplicaRow, VersionRow } from '../store/deployment-schema';
import type { ServiceTx } from '../store/schema';
import { fallbacksOf, NO_FALLBACKS } from '../deployments/fallbacks';
import { aliasesOf } from '../deployments/aliases';
import { upstreamsOf } from '../upstreams/upstreams';
import { prefixCacheMb } from '../deployments/runtime-options';
import { parseSpec, type StoredSpec } from '../deployments/spec';
import {
  type CanaryRecord,
  type DeploymentRecord,
  type PendingDownload,
  type ReplicaRecord,
  type ReplicaResources,
  type VersionRecord,
} from './records';

const NODE = 'local';

/**
 * Loads a deployment with the versions that may need work. Inactive versions without replicas are left out.
 * @param node Id of this service, to recognize replicas of other machines.
 */
export async function loadDeployment(
  tx: ServiceTx,
  deploymentId: string,
  node?: string,
): Promise<DeploymentRecord | undefined> {
  const row = await tx
    .selectFrom('deployment_settings')
    .innerJoin('deployments', 'deployments.id', 'deployment_settings.deployment_id')
    .selectAll('deployment_settings')
    .select(['name', 'owner_type', 'owner_id', 'access_control', 'created_at'])
    .where('deployment_id', '=', deploymentId)
    .executeTakeFirst();
  if (row === undefined) return undefined;
  const named = [row.active_version_id, row.target_version_id].filter((id) => id !== null);
  const versions = await tx
    .selectFrom('deployment_versions')
    .selectAll()
    .where('deployment_id', '=', deploymentId)
    .where((eb) =>
      eb.or([
        eb('state', 'not in', ['stopped', 'error']),
        eb.and([eb('state', '=', 'error'), eb('last_lines', 'is', null)]),
        ...(named.length === 0 ? [] : [eb('id', 'in', named)]),
        eb.exists(
          eb
            .selectFrom('replicas')
            .select('replicas.id')
            .whereRef('replicas.version_id', '=', 'deployment_versions.id'),
        ),
      ]),
    )
    .orderBy('number')
    .execute();
  const replicas = await loadReplicas(
    tx,
    'version_id',
    versions.map(({ id }) => id),
    node,
  );
  const downloads = await loadDownloads(
    tx,
    versions.map(({ id }) => id),
  );
  const canary = await tx
    .selectFrom('canaries')
    .selectAll()
    .where('deployment_id', '=', deploymentId)
    .where('state', 'in', ['running', 'promoting', 'rolling_back'])
    .executeTakeFirst();
  return {
    id: row.deployment_id,
    slug: row.slug,
    name: row.name,
    aliases: (await aliasesOf(tx, [deploymentId])).get(deploymentId) ?? [],
    fallbacks: (await fallbacksOf(tx, [deploymentId])).get(deploymentId) ?? NO_FALLBACKS,
    upstream: (await upstreamsOf(tx, [deploymentId])).get(deploymentId),
    createdMs: row.created_at,
    ownerType: row.owner_type,
    ownerId: row.owner_id,
    accessControl: row.access_control === 1,
    desired: row.desired,
    observed: row.observed,
    activeId: row.active_version_id,
    targetId: row.target_version_id,
    rolloutStrategy: row.rollout_strategy,
    strategy: row.strategy,
    wasReady: row.was_ready === 1,
    desiredReplicas: row.wanted_replicas,
    minReplicas: row.min_replicas,
    maxReplicas: row.max_replicas,
    idleTimeoutMs: row.idle_timeout_s === null ? null : row.idle_timeout_s * 1000,
    coldStartWaitMs: row.cold_start_wait_s * 1000,
    cacheScope: row.prefix_cache_scope,
    canary: canary === undefined ? null : toCanary(canary),
    versions: versions.map((version) =>
      toVersion(version, replicas.get(version.id) ?? [], downloads.get(version.id) ?? null),
    ),
  };
}

function toCanary(row: CanaryRow): CanaryRecord {
  return {
    versionId: row.version_id,
    percent: row.percent,
    header: row.header,
    keyIds: JSON.parse(row.keys) as string[],
    state: row.state,
    reason: row.reason,
    decidedAt: row.decided_at,
  };
}

/** Returns the incomplete models that versions need, by the ids of the versions. */
async function loadDownloads(tx: ServiceTx, versionIds: readonly string[]): Promise<Map<string, PendingDownload>> {
  if (versionIds.length === 0) return new Map();
  const rows = await tx
    .selectFrom('data_bindings')
    .innerJoin('data_pulls', 'data_pulls.source_id', 'data_bindings.source_id')
    .innerJoin('data_sources', 'data_sources.id', 'data_bindings.source_id')
    .select(['version_id', 'name', 'model', 'state', 'message'])
    .where('version_id', 'in', versionIds)
    .where('is_filled', '=', 0)
    .orderBy('mount')
    .execute();
  const downloads = rows.map(({ version_id: id, name, model, state, message }): [string, PendingDownload] => {
    if (state === 'failed') return [id ?? '', { hasFailed: true, message: `${model}: ${message ?? ''}` }];
    if (state === 'cancelled') return [id ?? '', { hasFailed: true, message: `${model}: the download was cancelled` }];
    return [id ?? '', { hasFailed: false, message: `${model} is downloaded into the data source ${name}` }];
  });
  // Of several downloads of a version one that failed decides.
  return new Map(downloads.sort(([, a], [, b]) => Number(a.hasFailed) - Number(b.hasFailed)));
}

function toVersion(row: VersionRow, replicas: ReplicaRecord[], download: PendingDownload | null): VersionRecord {
  const spec = parseSpec(row.spec);
  return {
    id: row.id,
    number: row.number,
    status: {
      state: row.state,
      reason: row.reason,
      message: row.message,
      exitCode: row.exit_code,
      numExits: row.num_exits,
      retryAt: row.retry_at,
      startedAt: row.started_at,
      readyAt: row.ready_at,
      endedAt: row.ended_at,
    },
    isWaking: row.is_waking === 1,
    homeState: row.home_state,
    download,
    queuedAt: row.queued_at,
    resources: resourcesOf(spec),
    startDeadlineMs: spec.start_deadline_s * 1000,
    graceMs: spec.grace_s * 1000,
    isBuiltin: spec.start_command === null && spec.image_type === 'builtin-runtime',
    prefixCacheMb: prefixCacheMb(spec),
    hasLastLines: row.last_lines !== null,
    replicas,
  };
}

export function resourcesOf({ compute }: Pick<StoredSpec, 'compute'>): ReplicaResources {
  return {
    gpuCount: compute.gpu_count,
    gpuType: compute.gpu_type,
    cpuMillis: compute.cpu_millis,
    memoryMb: compute.memory_mb,
  };
}

/** Returns replicas by the id of their version or container. */
export async function loadReplicas(
  tx: ServiceTx,
  column: 'version_id' | 'container_id',
  ids: readonly string[],
  node: string | undefined,
): Promise<Map<string, ReplicaRecord[]>> {
  if (ids.length === 0) return new Map();
  const rows = await tx
    .selectFrom('replicas')
    .selectAll()
    .where(column, 'in', ids)
    .orderBy('ordinal')
    .orderBy('id')
    .execute();
  const leases =
    rows.length === 0
      ? []
      : await tx
          .selectFrom('gpu_leases')
          .select(['replica_id', 'gpu_uuid'])
          .where(
            'replica_id',
            'in',
            rows.map(({ id }) => id),
          )
          .orderBy('gpu_uuid')
          .execute();
  const found = new Map<string, ReplicaRecord[]>();
  for (const row of rows) {
    const owner = row[column] ?? '';
    const gpuUuids = leases.filter((lease) => lease.replica_id === row.id).map((lease) => lease.gpu_uuid);
    found.set(owner, [...(found.get(owner) ?? []), toReplica(row, gpuUuids, node)]);
  }
  return found;
}

function toReplica(row: ReplicaRow, gpuUuids: string[], node: string | undefined): ReplicaRecord {
  return {
    id: row.id,
    ordinal: row.ordinal,
    state: row.state,
    secret: row.secret,
    reference: row.reference,
    address: row.address === null ? null : (JSON.parse(row.address) as ReplicaAddress),
    cpuMillis: row.cpu_millis,
    memoryMb: row.memory_mb,
    gpuUuids,
    restarts: row.restarts,
    misplaced: row.misplaced === null ? null : (JSON.parse(row.misplaced) as Misplaced),
    isElsewhere: node !== undefined && row.node !== null && row.node !== node,
    isGone: row.is_gone === 1,
    retryAt: row.retry_at,
    startedAt: row.started_at,
    readyAt: row.ready_at,
    unreadyAt: row.unready_at,
    createdAt: row.created_at,
  };
}

/** Writes the rows that changed. Returns whether any did. */
export async function saveDeployment(
  tx: ServiceTx,
  before: DeploymentRecord,
  after: DeploymentRecord,
  nowMs: number,
  node?: string,
): Promise<boolean> {
  let hasChanged = false;
  const { versions: versionsBefore, canary: canaryBefore, ...settingsBefore } = before;
  const { versions, canary, ...settings } = after;
  if (canary !== null && JSON.stringify(canaryBefore) !== JSON.stringify(canary)) {
    hasChanged = true;
    await tx
      .updateTable('canaries')
      .set({ state: canary.state, reason: canary.reason, decided_at: canary.decidedAt })
      .where('deployment_id', '=', after.id)
      .where('version_id', '=', canary.versionId)
      .execute();
  }
  if (JSON.stringify(settingsBefore) !== JSON.stringify(settings)) {
    hasChanged = true;
    await tx
      .updateTable('deployment_settings')
      .set({
        desired: after.desired,
        observed: after.observed,
        active_version_id: after.activeId,
        target_version_id: after.targetId,
        rollout_strategy: after.rolloutStrategy,
        was_ready: after.wasReady ? 1 : 0,
        wanted_replicas: after.desiredReplicas,
      })
      .where('deployment_id', '=', after.id)
      .execute();
  }
  const replicasBefore = new Map<string, ReplicaRecord[]>();
  for (const version of versions) {
    const old = versionsBefore.find(({ id }) => id === version.id);
    replicasBefore.set(version.id, old?.replicas ?? []);
    if (JSON.stringify({ ...old, replicas: [] }) !== JSON.stringify({ ...version, replicas: [] })) {
      hasChanged = true;
      await saveVersion(tx, version);
    }
  }
  // A replacement takes over the GPU leases of the old replica, so delete all removed rows first.
  for (const version of versions)
    hasChanged = (await removeReplicas(tx, replicasBefore.get(version.id) ?? [], version.replicas)) || hasChanged;
  for (const version of versions)
    hasChanged =
      (await saveReplicas(
        tx,
        { version_id: version.id, container_id: null, node: node ?? null },
        replicasBefore.get(version.id) ?? [],
        version.replicas,
        nowMs,
      )) || hasChanged;
  return hasChanged;
}

async function saveVersion(tx: ServiceTx, { id, status, isWaking, homeState, queuedAt }: VersionRecord): Promise<void> {
  const { state, reason, message, exitCode, numExits, retryAt, startedAt, readyAt, endedAt } = status;
  await tx
    .updateTable('deployment_versions')
    .set({
      state,
      reason,
      message,
      exit_code: exitCode,
      num_exits: numExits,
      retry_at: retryAt,
      started_at: startedAt,
      ready_at: readyAt,
      ended_at: endedAt,
      is_waking: isWaking ? 1 : 0,
      home_state: homeState,
      queued_at: queuedAt,
      // A new start clears the log lines of the last error.
      ...(state === 'queued' ? { last_lines: null } : {}),
    })
    .where('id', '=', id)
    .execute();
}

function flag(isOn: boolean): 0 | 1 {
  return isOn ? 1 : 0;
}

export async function removeReplicas(
  tx: ServiceTx,
  before: readonly ReplicaRecord[],
  after: readonly ReplicaRecord[],
): Promise<boolean> {
  const gone = before.filter(({ id }) => !after.some((replica) => replica.id === id)).map(({ id }) => id);
  if (gone.length > 0) await tx.deleteFrom('replicas').where('id', 'in', gone).execute();
  return gone.length > 0;
}

export async function saveReplicas(
  tx: ServiceTx,
  owner: Pick<ReplicaRow, 'version_id' | 'container_id' | 'node'>,
  before: readonly ReplicaRecord[],
  after: readonly ReplicaRecord[],
  nowMs: number,
): Promise<boolean> {
  let hasChanged = false;
  for (const replica of after) {
    const old = before.find(({ id }) => id === replica.id);
    if (old !== undefined && JSON.stringify(old) === JSON.stringify(replica)) continue;
    hasChanged = true;
    const { state, reference, address, restarts, misplaced, isGone, retryAt, startedAt, readyAt, unreadyAt } = replica;
    const columns = {
      state,
      reference,
      address: address === null ? null : JSON.stringify(address),
      restarts,
      misplaced: misplaced === null ? null : JSON.stringify(misplaced),
      is_gone: flag(isGone),
      retry_at: retryAt,
      started_at: startedAt,
      ready_at: readyAt,
      unready_at: unreadyAt,
    };
    if (old !== undefined) {
      await tx.updateTable('replicas').set(columns).where('id', '=', replica.id).execute();
      continue;
    }
    await tx
      .insertInto('replicas')
      .values({
        id: replica.id,
        ...owner,
        ordinal: replica.ordinal,
        secret: replica.secret,
        cpu_millis: replica.cpuMillis,
        memory_mb: replica.memoryMb,
        created_at: replica.createdAt,
        ...columns,
      })
      .execute();
    for (const uuid of replica.gpuUuids)
      await tx
        .insertInto('gpu_leases')
        .values({ node: NODE, gpu_uuid: uuid, slot: 0, replica_id: replica.id, exclusive: 1, acquired_at: nowMs })
        .execute();
  }
  return hasChanged;
}
