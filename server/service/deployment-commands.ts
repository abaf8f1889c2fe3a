import type { DeploymentEdit } from '../api/objects';
import { checkNameBesideId } from '../access/key-values';
import { deleteInChange, type OwnerRef, setAccessInChange } from '../access/owners';
import { changeOptions, demandOwner, type ServiceActor } from './actor';
import { observedState } from './advance';
import { serviceChange, type ServiceChange } from './change';
import { workEvents } from './control-events';
import { type DeploymentRecord, readDeployment } from './deployment-views';
import { ServiceError } from './errors';
import { checkScale, scaleOf } from './scale';
import type { ServiceTx } from './schema';
import type { StoreContext } from './store-context';
import { type Wish, WISHES } from './wishes';
import type { DeploymentWork } from './work';
import { loadWork, saveWork } from './work-rows';

export interface WorkChange {
  work: DeploymentWork;
  change: ServiceChange;
  owner: OwnerRef;
}

/**
 * A person's change of what a deployment is to be; what it gives back is read once all is written. The state that is shown follows in the same transaction.
 * @throws ServiceError `not_found` for a deployment of strangers, and for one that is being deleted.
 */
export function changeWork<T>(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  run: (change: WorkChange) => Promise<() => Promise<T>>,
  ifRev?: number,
): Promise<T> {
  return serviceChange(context.db, context.now(), changeOptions(actor, ifRev), async (change) => {
    const { tx, nowMs } = change;
    const owner = await demandDeployment(tx, actor, deploymentId, 'deployment.change', ifRev);
    const before = await loadWork(tx, deploymentId);
    if (before === undefined || before.desired === 'deleted')
      throw new ServiceError('not_found', 'there is no such deployment');
    const work = structuredClone(before);
    const read = await run({ work, change, owner });
    const written = await loadWork(tx, deploymentId);
    if (written !== undefined) {
      // Versions that `run` wrote itself are as they were written.
      work.versions.push(...written.versions.filter(({ id }) => !work.versions.some((version) => version.id === id)));
      work.observed = observedState(work);
      await saveWork(tx, before, work, nowMs);
      for (const { type, data } of workEvents(before, work))
        change.tell({ action: type, owner, target: { type: 'deployment', id: deploymentId }, after: data });
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
  if (row === undefined) throw new ServiceError('not_found', 'there is no such deployment');
  const owner: OwnerRef = { type: row.owner_type, id: row.owner_id };
  await demandOwner(tx, actor, owner, right);
  if (ifRev !== undefined && ifRev !== row.rev)
    throw new ServiceError(
      'stale',
      `the deployment was changed by somebody else: its revision is ${row.rev}, not ${ifRev}`,
    );
  return owner;
}

export function wishDeployment(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  wish: Wish,
): Promise<DeploymentRecord> {
  return changeWork(context, actor, deploymentId, ({ work, change, owner }) => {
    WISHES[wish](work, change.nowMs);
    change.record({ action: `deployment.${ACTIONS[wish]}`, owner, target: { type: 'deployment', id: deploymentId } });
    return Promise.resolve(() => readDeployment(change.tx, deploymentId));
  });
}

const ACTIONS: Record<Wish, string> = {
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
): Promise<DeploymentRecord> {
  return changeWork(
    context,
    actor,
    deploymentId,
    async ({ change, owner }) => {
      const { tx, rev, nowMs } = change;
      const before = await tx
        .selectFrom('deployments')
        .innerJoin('deployment_settings', 'deployment_id', 'id')
        .selectAll()
        .where('id', '=', deploymentId)
        .executeTakeFirstOrThrow();
      const { min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s } = {
        ...before,
        ...scaleOf(edit),
        ...(edit.max_replicas === undefined && edit.min_replicas !== undefined
          ? { max_replicas: Math.max(before.max_replicas, edit.min_replicas) }
          : {}),
      };
      const settings = {
        ...checkScale({ min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s }),
        strategy: edit.strategy ?? before.strategy,
        prefix_cache_scope: edit.prefix_cache_scope ?? before.prefix_cache_scope,
      };
      const name =
        edit.name === undefined || edit.name === before.name ? before.name : checkNameBesideId('dep', edit.name);
      if (name !== before.name) await demandFreeName(tx, owner, name);
      await tx.updateTable('deployment_settings').set(settings).where('deployment_id', '=', deploymentId).execute();
      await tx
        .updateTable('deployments')
        .set({ name, rev, updated_at: nowMs })
        .where('id', '=', deploymentId)
        .execute();
      if (name !== before.name) await change.touch('deployment', deploymentId);
      const view = ({
        name: of,
        min_replicas: min,
        max_replicas: max,
        idle_timeout_s: idle,
        cold_start_wait_s: wait,
        strategy,
        prefix_cache_scope: scope,
      }: typeof settings & { name: string }) => ({
        name: of,
        min_replicas: min,
        max_replicas: max,
        idle_timeout_s: idle,
        cold_start_wait_s: wait,
        strategy,
        prefix_cache_scope: scope,
      });
      change.record({
        action: 'deployment.updated',
        owner,
        target: { type: 'deployment', id: deploymentId },
        before: view(before),
        after: view({ ...settings, name }),
      });
      return () => readDeployment(tx, deploymentId);
    },
    ifRev,
  );
}

async function demandFreeName(tx: ServiceTx, owner: OwnerRef, name: string): Promise<void> {
  const taken = await tx
    .selectFrom('deployments')
    .select('id')
    .where('owner_id', '=', owner.id)
    .where('name', '=', name)
    .executeTakeFirst();
  if (taken !== undefined) throw new ServiceError('conflict', 'name: the owner has a deployment of this name');
}

/** `hasKey`: somebody can still call it. */
export function switchAccessControl(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  isOn: boolean,
  ifRev?: number,
): Promise<{ deployment: DeploymentRecord; hasKey: boolean; rev: number }> {
  return changeWork(
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

/** Its keys end to reach it, and its address to exist, at once; what runs is ended by the controller, which then calls {@link removeDeployment}. */
export function deleteDeployment(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  ifRev?: number,
): Promise<void> {
  return changeWork(
    context,
    actor,
    deploymentId,
    ({ work, change, owner }) => {
      work.desired = 'deleted';
      change.record({ action: 'deployment.delete', owner, target: { type: 'deployment', id: deploymentId } });
      return Promise.resolve(() => Promise.resolve());
    },
    ifRev,
  );
}

/** Once nothing of it runs. The ids of its versions, whose files may go; undefined when something runs still. */
export function removeDeployment(context: StoreContext, deploymentId: string): Promise<string[] | undefined> {
  return serviceChange(context.db, context.now(), {}, async ({ tx, access }) => {
    const work = await loadWork(tx, deploymentId);
    if (work === undefined) return [];
    if (work.desired !== 'deleted' || work.versions.some(({ replicas }) => replicas.length > 0)) return undefined;
    const versions = await tx
      .selectFrom('deployment_versions')
      .select('id')
      .where('deployment_id', '=', deploymentId)
      .execute();
    await deleteInChange(access, deploymentId);
    return versions.map(({ id }) => id);
  });
}
