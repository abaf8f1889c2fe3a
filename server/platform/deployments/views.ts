import { sql } from 'kysely';
import type { DeploymentRow, OwnerRef } from 'capstan/internal';
import type { Misplaced } from '../driver/driver';
import type { DeploymentSettingsRow, ReplicaState, VersionRow } from '../store/deployment-schema';
import type { DeploymentState } from './deployment-state';
import { aliasesOf } from './aliases';
import { upstreamsOf, upstreamView, type UpstreamView } from '../upstreams/upstreams';
import { type Fallbacks, fallbacksOf, fallbackView } from './fallbacks';
import { ServiceError } from '../store/errors';
import type { Page } from '../store/page';
import { type OwnerView, ownerViews, viewOf } from './owner-views';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { type BindingView, parseSpec, specView, type VersionSpec } from './spec';
import { rfc3339, rfc3339OrNull } from '../store/times';
import type { ErrorReason, VersionState } from './version-state';

/** Why a version is not running. */
export interface Reason {
  code: ErrorReason;
  message: string;
  exit_code: number | null;
  /** The end of its log. */
  last_lines: string[];
}

export interface ReplicaView {
  id: string;
  ordinal: number;
  state: ReplicaState;
  restarts: number;
  started_at: string | null;
  gpu_uuids: string[];
}

export interface VersionView {
  id: string;
  deployment_id: string;
  number: number;
  state: VersionState;
  is_active: boolean;
  reason: Reason | null;
  spec: VersionSpec;
  replicas: ReplicaView[];
  note: string | null;
  created_by: string | null;
  /** The creator's email address. Null if the account was deleted. */
  created_by_name: string | null;
  created_at: string;
  started_at: string | null;
  ready_at: string | null;
  ended_at: string | null;
  retry_at: string | null;
}

/** A deployment. The API adds its URL. */
export interface DeploymentView extends Pick<
  DeploymentSettingsRow,
  | 'slug'
  | 'min_replicas'
  | 'max_replicas'
  | 'idle_timeout_s'
  | 'cold_start_wait_s'
  | 'strategy'
  | 'prefix_cache_scope'
  | 'source_container_id'
  | 'created_by'
> {
  id: string;
  name: string;
  /** Other names that requests can use as `model`. */
  aliases: string[];
  /** Names of the deployments that get the requests that this one cannot serve. */
  fallbacks: string[];
  fallback_after_s: number | null;
  /** The server that it forwards to. Such a deployment has no versions. */
  upstream: UpstreamView | null;
  owner: OwnerView;
  state: DeploymentState;
  reason: Reason | null;
  access_control: boolean;
  active_version: number | null;
  target_version: number | null;
  ready_replicas: number;
  created_at: string;
  updated_at: string;
  rev: number;
}

export interface DeploymentEvent {
  seq: number;
  at: string;
  type: string;
  target_id: string;
  data: unknown;
}

type Reader = ServiceDb | ServiceTx;
type Row = DeploymentRow & DeploymentSettingsRow;

export interface DeploymentFilter {
  owners: readonly OwnerRef[];
  states?: readonly DeploymentState[];
  /** Part of the name, in any case. */
  q?: string;
  after?: string;
  limit: number;
}

/** Returns deployments, newest first. */
export async function pageDeployments(
  db: Reader,
  { owners, states, q, after, limit }: DeploymentFilter,
): Promise<Page<DeploymentView>> {
  if (owners.length === 0) return { data: [], next: null };
  let query = db
    .selectFrom('deployments')
    .innerJoin('deployment_settings', 'deployment_id', 'id')
    .selectAll()
    .where(
      'owner_id',
      'in',
      owners.map(({ id }) => id),
    )
    .orderBy('id', 'desc')
    .limit(limit + 1);
  if (states !== undefined) query = query.where('observed', 'in', [...states]);
  if (q !== undefined)
    query = query.where(sql<boolean>`lower(name) like ${`%${q.toLowerCase().replace(/[%_!]/g, '!$&')}%`} escape '!'`);
  if (after !== undefined) query = query.where('id', '<', after);
  const rows = await query.execute();
  const data = await toDeployments(db, rows.slice(0, limit));
  return { data, next: rows.length > limit ? rows[limit - 1].id : null };
}

export async function readDeployment(db: Reader, id: string): Promise<DeploymentView> {
  const row = await db
    .selectFrom('deployments')
    .innerJoin('deployment_settings', 'deployment_id', 'id')
    .selectAll()
    .where('id', '=', id)
    .executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'deployment not found');
  return (await toDeployments(db, [row]))[0];
}

async function toDeployments(db: Reader, rows: readonly Row[]): Promise<DeploymentView[]> {
  if (rows.length === 0) return [];
  const owners = await ownerViews(
    db,
    rows.map(({ owner_type: type, owner_id: id }) => ({ type, id })),
  );
  const aliases = await aliasesOf(
    db,
    rows.map(({ id }) => id),
  );
  const fallbacks = await fallbacksOf(
    db,
    rows.map(({ id }) => id),
  );
  const upstreams = await upstreamsOf(
    db,
    rows.map(({ id }) => id),
  );
  const ids = rows
    .flatMap(({ active_version_id: active, target_version_id: target }) => [active, target])
    .filter((id) => id !== null);
  const versions =
    ids.length === 0
      ? []
      : await db
          .selectFrom('deployment_versions')
          .select(['id', 'number', 'state', 'reason', 'message', 'exit_code', 'last_lines'])
          .where('id', 'in', ids)
          .execute();
  const ready =
    ids.length === 0
      ? []
      : await db
          .selectFrom('replicas')
          .select(['version_id', 'misplaced', 'state'])
          .where('version_id', 'in', ids)
          .execute();
  return rows.map((row) => {
    const active = versions.find(({ id }) => id === row.active_version_id);
    const target = versions.find(({ id }) => id === row.target_version_id);
    const misplaced =
      ready.find(
        ({ version_id: id, misplaced: found }) =>
          found !== null && (id === row.target_version_id || id === row.active_version_id),
      )?.misplaced ?? null;
    return toDeployment(row, viewOf(owners, row.owner_id), {
      aliases: aliases.get(row.id) ?? [],
      fallbacks: fallbacks.get(row.id),
      upstream: upstreamView(upstreams.get(row.id)),
      active,
      target,
      reason: toReason(target, misplaced) ?? toReason(active, misplaced),
      numReady: ready.filter(({ version_id: id, state }) => id === row.active_version_id && state === 'ready').length,
    });
  });
}

interface DeploymentParts {
  aliases: string[];
  fallbacks: Fallbacks | undefined;
  upstream: UpstreamView | null;
  active: { number: number } | undefined;
  target: { number: number } | undefined;
  reason: Reason | null;
  numReady: number;
}

function toDeployment(
  row: Row,
  owner: OwnerView,
  { aliases, fallbacks, upstream, active, target, reason, numReady }: DeploymentParts,
): DeploymentView {
  return {
    id: row.id,
    name: row.name,
    aliases,
    ...fallbackView(fallbacks),
    upstream,
    slug: row.slug,
    owner,
    state: row.observed,
    reason,
    access_control: row.access_control === 1,
    active_version: active?.number ?? null,
    target_version: target?.number ?? null,
    min_replicas: row.min_replicas,
    max_replicas: row.max_replicas,
    ready_replicas: numReady,
    idle_timeout_s: row.idle_timeout_s,
    cold_start_wait_s: row.cold_start_wait_s,
    strategy: row.strategy,
    prefix_cache_scope: row.prefix_cache_scope,
    source_container_id: row.source_container_id,
    created_by: row.created_by,
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
    rev: row.rev,
  };
}

/**
 * Returns why a version failed, is in backoff or waits. For a starting version, why its health check cannot succeed.
 */
function toReason(
  version: Pick<VersionRow, 'state' | 'reason' | 'message' | 'exit_code' | 'last_lines'> | undefined,
  misplaced: string | null,
): Reason | null {
  if (version === undefined) return null;
  const lastLines = version.last_lines === null ? [] : (JSON.parse(version.last_lines) as string[]);
  if (
    (version.state === 'error' || version.state === 'queued' || version.state === 'backoff') &&
    version.reason !== null
  )
    return {
      code: version.reason,
      message: version.message ?? '',
      exit_code: version.exit_code,
      last_lines: lastLines,
    };
  if (version.state !== 'starting' || misplaced === null) return null;
  const { reason, message } = JSON.parse(misplaced) as Misplaced;
  return { code: reason, message, exit_code: null, last_lines: [] };
}

/** Returns versions, newest first. */
export async function pageVersions(
  db: Reader,
  deploymentId: string,
  { after, limit }: { after?: number; limit: number },
): Promise<Page<VersionView>> {
  let query = db
    .selectFrom('deployment_versions')
    .selectAll()
    .where('deployment_id', '=', deploymentId)
    .orderBy('number', 'desc')
    .limit(limit + 1);
  if (after !== undefined) query = query.where('number', '<', after);
  const rows = await query.execute();
  return {
    data: await toVersions(db, deploymentId, rows.slice(0, limit)),
    next: rows.length > limit ? String(rows[limit - 1].number) : null,
  };
}

export async function readVersion(db: Reader, deploymentId: string, number: number): Promise<VersionView> {
  const row = await db
    .selectFrom('deployment_versions')
    .selectAll()
    .where('deployment_id', '=', deploymentId)
    .where('number', '=', number)
    .executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', `the deployment has no version ${number}`);
  return (await toVersions(db, deploymentId, [row]))[0];
}

async function toVersions(db: Reader, deploymentId: string, rows: readonly VersionRow[]): Promise<VersionView[]> {
  if (rows.length === 0) return [];
  const ids = rows.map(({ id }) => id);
  const { active_version_id: activeId } = await db
    .selectFrom('deployment_settings')
    .select('active_version_id')
    .where('deployment_id', '=', deploymentId)
    .executeTakeFirstOrThrow();
  const bindings = await bindingViews(db, 'version_id', ids);
  const makers = await ownerViews(
    db,
    rows.flatMap(({ created_by: id }) => (id === null ? [] : [{ type: 'user', id }])),
  );
  const replicas = await db
    .selectFrom('replicas')
    .selectAll()
    .where('version_id', 'in', ids)
    .orderBy('ordinal')
    .orderBy('id')
    .execute();
  const leases =
    replicas.length === 0
      ? []
      : await db
          .selectFrom('gpu_leases')
          .select(['replica_id', 'gpu_uuid'])
          .where(
            'replica_id',
            'in',
            replicas.map(({ id }) => id),
          )
          .execute();
  return rows.map((row) => {
    const own = replicas.filter(({ version_id: id }) => id === row.id);
    return {
      id: row.id,
      deployment_id: deploymentId,
      number: row.number,
      state: row.state,
      is_active: row.id === activeId,
      reason: toReason(row, own.find(({ misplaced }) => misplaced !== null)?.misplaced ?? null),
      spec: specView(
        parseSpec(row.spec),
        bindings.get(row.id) ?? [],
        Object.keys(JSON.parse(row.secret_env) as object),
      ),
      replicas: own.map(({ id, ordinal, state, restarts, started_at: startedAt }): ReplicaView => ({
        id,
        ordinal,
        state,
        restarts,
        started_at: rfc3339OrNull(startedAt),
        gpu_uuids: leases.filter(({ replica_id: replicaId }) => replicaId === id).map(({ gpu_uuid: uuid }) => uuid),
      })),
      note: row.note,
      created_by: row.created_by,
      created_by_name: makers.get(row.created_by ?? '')?.name ?? null,
      created_at: rfc3339(row.created_at),
      started_at: rfc3339OrNull(row.started_at),
      ready_at: rfc3339OrNull(row.ready_at),
      ended_at: rfc3339OrNull(row.ended_at),
      retry_at: rfc3339OrNull(row.retry_at),
    };
  });
}

/** Returns the bindings of versions or containers by their ids. They show the names of sources and no paths. */
export async function bindingViews(
  db: Reader,
  column: 'version_id' | 'container_id',
  ids: readonly string[],
): Promise<Map<string, BindingView[]>> {
  const views = new Map<string, BindingView[]>();
  if (ids.length === 0) return views;
  const rows = await db
    .selectFrom('data_bindings')
    .innerJoin('data_sources', 'data_sources.id', 'data_bindings.source_id')
    .select([
      'version_id',
      'container_id',
      'mount',
      'mode',
      'source_id',
      'source_digest',
      'data_sources.name as source_name',
    ])
    .where(column, 'in', ids)
    .orderBy('mount')
    .execute();
  for (const { mount, mode, source_id, source_name, source_digest, ...row } of rows) {
    const id = row[column] ?? '';
    views.set(id, [...(views.get(id) ?? []), { mount, source_id, source_name, mode, source_digest }]);
  }
  return views;
}

/** Returns events after `afterSeq`, oldest first. */
export async function readTargetEvents(
  db: Reader,
  targetId: string,
  afterSeq: number,
  limit: number,
): Promise<DeploymentEvent[]> {
  const rows = await db
    .selectFrom('events')
    .selectAll()
    .where('target_id', '=', targetId)
    .where('seq', '>', afterSeq)
    .orderBy('seq')
    .limit(limit)
    .execute();
  return rows.map(toEvent);
}

/** Returns events before `beforeSeq`, newest first. */
export async function pageTargetEvents(
  db: Reader,
  targetId: string,
  { beforeSeq, limit }: { beforeSeq?: number; limit: number },
): Promise<Page<DeploymentEvent>> {
  let query = db
    .selectFrom('events')
    .selectAll()
    .where('target_id', '=', targetId)
    .orderBy('seq', 'desc')
    .limit(limit + 1);
  if (beforeSeq !== undefined) query = query.where('seq', '<', beforeSeq);
  const rows = await query.execute();
  return { data: rows.slice(0, limit).map(toEvent), next: rows.length > limit ? String(rows[limit - 1].seq) : null };
}

function toEvent({
  seq,
  at,
  type,
  target_id,
  data,
}: {
  seq: number;
  at: number;
  type: string;
  target_id: string;
  data: string;
}): DeploymentEvent {
  return { seq, at: rfc3339(at), type, target_id, data: JSON.parse(data) as unknown };
}
