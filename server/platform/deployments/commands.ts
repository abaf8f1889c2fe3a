import { checkNameBesideId, deleteInChange, type OwnerRef, setAccessInChange } from 'capstan/internal';
import { changeOptions, demandOwner, type ServiceActor } from '../accounts/actor';
import { aliasesOf, checkAliases, demandUnusedNames, writeAliases } from './aliases';
import { type FallbackEdit, fallbackView, fallbacksOf, writeFallbacks } from './fallbacks';
import {
  type UpstreamEdit,
  type UpstreamRecord,
  upstreamsOf,
  upstreamView,
  writeUpstream,
} from '../upstreams/upstreams';
import { demandEpoch } from '../control/lease';
import { observedState } from '../control/reconcile';
import { serviceChange, type ServiceChange } from '../store/change';
import { stateChangeEvents } from '../control/control-events';
import { type DeploymentView, readDeployment } from './views';
import { ServiceError } from '../store/errors';
import { retryPulls } from './hub-models';
import { applyScale, type Scale } from './scale';
import type { ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { type Intent, INTENTS } from '../control/intents';
import type { DeploymentRecord } from '../control/records';
import { loadDeployment, saveDeployment } from '../control/record-rows';

export interface DeploymentEdit extends Partial<Scale>, FallbackEdit {
  name?: string;
  /** Replaces all aliases. */
  aliases?: readonly string[];
  upstream?: UpstreamEdit;
  strategy?: DeploymentView['strategy'];
  prefix_cache_scope?: DeploymentView['prefix_cache_scope'];
}

export interface DeploymentChange {
  deployment: DeploymentRecord;
  change: ServiceChange;
  owner: OwnerRef;
}

/**
 * Runs a user's change of the desired state. Updates the observed state in the same transaction. `run` returns a
 * function that reads the result after everything is written.
 * @throws ServiceError `not_found` if the actor cannot see the deployment or it is being deleted.
 */
export function changeDeployment<T>(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  run: (change: DeploymentChange) => Promise<() => Promise<T>>,
  ifRev?: number,
): Promise<T> {
  return serviceChange(context.db, context.now(), changeOptions(actor, ifRev), async (change) => {
    const { tx, nowMs } = change;
    const owner = await demandDeployment(tx, actor, deploymentId, 'deployment.change', ifRev);
    const before = await loadDeployment(tx, deploymentId);
    if (before === undefined || before.desired === 'deleted')
      throw new ServiceError('not_found', 'deployment not found');
    const deployment = structuredClone(before);
    const read = await run({ deployment, change, owner });
    const written = await loadDeployment(tx, deploymentId);
    if (written !== undefined) {
      // Add the versions that `run` inserted itself, so that the save does not touch them.
      deployment.versions.push(
        ...written.versions.filter(({ id }) => !deployment.versions.some((version) => version.id === id)),
      );
      deployment.observed = observedState(deployment);
      await saveDeployment(tx, before, deployment, nowMs);
      await retryPulls(tx, deploymentId, nowMs);
      for (const { type, data } of stateChangeEvents(before, deployment))
        change.emit({ action: type, owner, target: { type: 'deployment', id: deploymentId }, after: data });
    }
    return read();
  });
}

/** @throws ServiceError */
export async function demandDeployment(
  tx: ServiceTx | StoreContext['db'],
  actor: ServiceActor,
  deploymentId: string,
  right: 'read' | 'deployment.change',
  ifRev?: number,
): Promise<OwnerRef> {
  const row = await tx
    .selectFrom('deployments')
    .innerJoin('deployment_settings', 'deployment_id', 'id')
    .select(['owner_type', 'owner_id', 'rev'])
    .where('id', '=', deploymentId)
    .executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'deployment not found');
  const owner: OwnerRef = { type: row.owner_type, id: row.owner_id };
  await demandOwner(tx, actor, owner, right);
  if (ifRev !== undefined && ifRev !== row.rev)
    throw new ServiceError('stale', `the deployment has changed: its revision is ${row.rev}, not ${ifRev}`);
  return owner;
}

export function applyIntent(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  intent: Intent,
): Promise<DeploymentView> {
  return changeDeployment(context, actor, deploymentId, ({ deployment, change, owner }) => {
    INTENTS[intent](deployment, context.loopNow());
    change.record({ action: `deployment.${ACTIONS[intent]}`, owner, target: { type: 'deployment', id: deploymentId } });
    return Promise.resolve(() => readDeployment(change.tx, deploymentId));
  });
}

const ACTIONS: Record<Intent, string> = {
  start: 'start',
  stop: 'stop',
  restart: 'restart',
  scaleToZero: 'scale_to_zero',
};

export function editDeployment(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  edit: DeploymentEdit,
  ifRev?: number,
): Promise<DeploymentView> {
  return changeDeployment(
    context,
    actor,
    deploymentId,
    async ({ change, owner, deployment }) => {
      const { tx, rev, nowMs } = change;
      if (edit.upstream !== undefined && deployment.upstream === undefined)
        throw new ServiceError('wrong_state', 'upstream: this deployment runs versions and forwards to no upstream');
      if (edit.upstream !== undefined)
        await writeUpstream(context, tx, deploymentId, deployment.upstream, edit.upstream, {
          userId: actor.userId,
          nowMs,
        });
      if (deployment.upstream !== undefined) refuseReplicaFields(edit);
      const before = await tx
        .selectFrom('deployments')
        .innerJoin('deployment_settings', 'deployment_id', 'id')
        .selectAll()
        .where('id', '=', deploymentId)
        .executeTakeFirstOrThrow();
      const { min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s } = applyScale(before, {
        ...edit,
        ...(edit.max_replicas === undefined && edit.min_replicas !== undefined
          ? { max_replicas: Math.max(before.max_replicas, edit.min_replicas) }
          : {}),
      });
      const settings = {
        ...{ min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s },
        strategy: edit.strategy ?? before.strategy,
        prefix_cache_scope: edit.prefix_cache_scope ?? before.prefix_cache_scope,
      };
      const name =
        edit.name === undefined || edit.name === before.name ? before.name : checkNameBesideId('dep', edit.name);
      if (name !== before.name) await demandFreeName(tx, owner, name);
      const oldAliases = (await aliasesOf(tx, [deploymentId])).get(deploymentId) ?? [];
      const aliases = checkAliases(name, edit.aliases ?? oldAliases);
      if (name !== before.name || edit.aliases !== undefined) {
        await demandUnusedNames(tx, owner.id, deploymentId, { name, aliases });
        await writeAliases(tx, owner.id, deploymentId, aliases);
      }
      const oldFallbacks = fallbackView((await fallbacksOf(tx, [deploymentId])).get(deploymentId));
      await writeFallbacks(tx, owner.id, deploymentId, edit);
      const fallbacks = fallbackView((await fallbacksOf(tx, [deploymentId])).get(deploymentId));
      await tx.updateTable('deployment_settings').set(settings).where('deployment_id', '=', deploymentId).execute();
      await tx
        .updateTable('deployments')
        .set({ name, rev, updated_at: nowMs })
        .where('id', '=', deploymentId)
        .execute();
      if (name !== before.name) await change.touch('deployment', deploymentId);
      change.record({
        action: 'deployment.updated',
        owner,
        target: { type: 'deployment', id: deploymentId },
        before: {
          ...upstreamAudit(deployment.upstream),
          ...auditView({ ...before, aliases: oldAliases }),
          ...oldFallbacks,
        },
        after: {
          ...upstreamAudit((await upstreamsOf(tx, [deploymentId])).get(deploymentId)),
          ...auditView({ ...settings, name, aliases }),
          ...fallbacks,
        },
      });
      return () => readDeployment(tx, deploymentId);
    },
    ifRev,
  );
}

/** @throws ServiceError `wrong_state` */
function refuseReplicaFields(edit: DeploymentEdit): void {
  const fields = ['min_replicas', 'max_replicas', 'idle_timeout_s', 'cold_start_wait_s', 'strategy'] as const;
  const given = fields.find((field) => edit[field] !== undefined);
  if (given !== undefined)
    throw new ServiceError('wrong_state', `${given}: this deployment forwards to an upstream and has no replicas`);
}

function upstreamAudit(upstream: UpstreamRecord | undefined): object {
  return upstream === undefined ? {} : { upstream: upstreamView(upstream) };
}

function auditView({
  name,
  aliases,
  min_replicas,
  max_replicas,
  idle_timeout_s,
  cold_start_wait_s,
  strategy,
  prefix_cache_scope,
}: Scale & Pick<DeploymentView, 'name' | 'aliases' | 'strategy' | 'prefix_cache_scope'>): object {
  return { name, aliases, min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s, strategy, prefix_cache_scope };
}

async function demandFreeName(tx: ServiceTx, owner: OwnerRef, name: string): Promise<void> {
  const taken = await tx
    .selectFrom('deployments')
    .select('id')
    .where('owner_id', '=', owner.id)
    .where('name', '=', name)
    .executeTakeFirst();
  if (taken !== undefined)
    throw new ServiceError('conflict', 'name: the owner already has a deployment with this name: choose another');
}

/** `hasKey` is whether any active key reaches the deployment. */
export function switchAccessControl(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  isOn: boolean,
  ifRev?: number,
): Promise<{ deployment: DeploymentView; hasKey: boolean; rev: number }> {
  return changeDeployment(
    context,
    actor,
    deploymentId,
    async ({ change, owner }) => {
      await setAccessInChange(change.access, deploymentId, isOn);
      const key = await change.tx
        .selectFrom('api_keys')
        .leftJoin('key_bindings', 'key_bindings.key_id', 'api_keys.id')
        .select('api_keys.id')
        .where('owner_id', '=', owner.id)
        .where('status', '=', 'active')
        .where((eb) => eb.or([eb('type', '=', 'user-level'), eb('key_bindings.deployment_id', '=', deploymentId)]))
        .executeTakeFirst();
      return async () => ({
        deployment: await readDeployment(change.tx, deploymentId),
        hasKey: key !== undefined,
        rev: change.rev,
      });
    },
    ifRev,
  );
}

/**
 * Marks a deployment for deletion. Its URL stops working at once. The controller stops its replicas and then calls
 * {@link removeDeployment}.
 */
export function deleteDeployment(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  ifRev?: number,
): Promise<void> {
  return changeDeployment(
    context,
    actor,
    deploymentId,
    ({ deployment, change, owner }) => {
      deployment.desired = 'deleted';
      change.record({ action: 'deployment.delete', owner, target: { type: 'deployment', id: deploymentId } });
      return Promise.resolve(() => Promise.resolve());
    },
    ifRev,
  );
}

/** Deletes the rows and returns the version ids, whose files may be deleted. Returns undefined while replicas exist. */
export function removeDeployment(
  context: StoreContext,
  epoch: number,
  deploymentId: string,
): Promise<string[] | undefined> {
  return serviceChange(context.db, context.now(), {}, async ({ tx, access }) => {
    await demandEpoch(tx, epoch);
    const deployment = await loadDeployment(tx, deploymentId);
    if (deployment === undefined) return [];
    if (deployment.desired !== 'deleted' || deployment.versions.some(({ replicas }) => replicas.length > 0))
      return undefined;
    const versions = await tx
      .selectFrom('deployment_versions')
      .select('id')
      .where('deployment_id', '=', deploymentId)
      .execute();
    await deleteInChange(access, deploymentId);
    return versions.map(({ id }) => id);
  });
}
