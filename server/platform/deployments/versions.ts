import type { ServiceActor } from '../accounts/actor';
import { findImage } from './catalog';
import type { VersionRow } from '../store/deployment-schema';
import { type DeploymentView, readVersion, type VersionView } from './views';
import { changeDeployment } from './commands';
import { ServiceError } from '../store/errors';
import { demandDisk, demandQuotas } from '../control/pool-rows';
import type { ServiceTx } from '../store/schema';
import { bindHubModel } from './hub-models';
import { prefixCacheMb } from './runtime-options';
import {
  cacheMbOf,
  completeSpec,
  demandIsolation,
  demandOf,
  demandPossible,
  type OpenSpec,
  type SpecRequest,
} from './spec';
import type { StoreContext } from '../store/store-context';
import { insertVersion, openVersion } from './version-rows';
import { isInactive, isServing } from './version-state';
import { type DeploymentRecord, findVersion, queueVersion } from '../control/records';
import { type CanarySplit, insertCanary } from '../canary/canaries';

export interface NewVersion extends SpecRequest {
  note?: string;
  strategy?: DeploymentView['strategy'];
  /** The version gets a share of the traffic, and waits for a decision. */
  canary?: CanarySplit;
}

/**
 * Creates a version. Missing fields come from the newest version. Its roll-out starts at once. In a paused deployment
 * it becomes the active version, which the next start runs.
 */
export function createVersion(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  request: NewVersion,
): Promise<VersionView> {
  return changeDeployment(context, actor, deploymentId, async ({ deployment, change, owner }) => {
    const { tx } = change;
    if (deployment.upstream !== undefined)
      throw new ServiceError('wrong_state', 'the deployment forwards to an upstream and has no versions');
    demandNoRollout(deployment);
    const newest = await tx
      .selectFrom('deployment_versions')
      .select('id')
      .where('deployment_id', '=', deploymentId)
      .orderBy('number', 'desc')
      .executeTakeFirstOrThrow();
    const { base, spec: completed } = await completeVersion(context, tx, actor, newest.id, request);
    const spec = await bindHubModel(context, change, actor, owner, { spec: completed, request, base });
    demandPossible(spec.stored, context.options.machine.capacity, Math.max(1, deployment.minReplicas));
    await demandQuotas(tx, owner, demandOf(spec, deployment.minReplicas, deployment));
    const isPaused = deployment.desired === 'paused';
    const { last_number: number } = await tx
      .updateTable('deployment_settings')
      .set((eb) => ({ last_number: eb('last_number', '+', 1) }))
      .where('deployment_id', '=', deploymentId)
      .returning('last_number')
      .executeTakeFirstOrThrow();
    const id = await insertVersion(context, change, actor, {
      deploymentId,
      number,
      spec,
      note: request.note ?? null,
      state: isPaused ? 'stopped' : 'queued',
    });
    if (request.canary !== undefined) await demandCanary(tx, deployment, { id, number }, request.canary, context.now());
    if (isPaused) deployment.activeId = id;
    else deployment.targetId = id;
    deployment.rolloutStrategy = isPaused ? null : (request.strategy ?? null);
    change.record({
      action: 'version.created',
      owner,
      target: { type: 'deployment', id: deploymentId },
      after: { version: number },
    });
    return () => readVersion(tx, deploymentId, number);
  });
}

/** @throws ServiceError `wrong_state` if there is nothing to compare with */
async function demandCanary(
  tx: ServiceTx,
  deployment: DeploymentRecord,
  version: { id: string; number: number },
  split: CanarySplit,
  nowMs: number,
): Promise<void> {
  const active = findVersion(deployment, deployment.activeId);
  if (deployment.desired !== 'running' || active === undefined || !isServing(active.status.state))
    throw new ServiceError('wrong_state', 'canary: expected a deployment whose active version serves');
  await insertCanary(tx, deployment.id, version, split, nowMs);
}

async function completeVersion(
  context: StoreContext,
  tx: ServiceTx,
  actor: ServiceActor,
  baseId: string,
  request: SpecRequest,
): Promise<{ base: OpenSpec; spec: OpenSpec }> {
  const base = await openVersion(context, tx, baseId);
  const { machine } = context.options;
  // A version may keep the image of the newest version even if that image was deleted.
  const image =
    request.image_id === undefined || request.image_id === base.stored.image_id
      ? await tx.selectFrom('images').selectAll().where('id', '=', base.stored.image_id).executeTakeFirstOrThrow()
      : await findImage(tx, request.image_id);
  const spec = completeSpec(request, image, base);
  demandIsolation(spec, machine.isolation, actor.isAdmin && machine.allowsUnisolated);
  return { base, spec };
}

/**
 * Rolls out an existing version. Activating the active version cancels the current roll-out or dismisses a failed one.
 * Activating a version whose roll-out failed tries it again.
 */
export function activateVersion(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  number: number,
): Promise<VersionView> {
  return changeDeployment(context, actor, deploymentId, async ({ deployment, change, owner }) => {
    const { tx } = change;
    const nowMs = context.loopNow();
    const { id } = await findVersionRow(tx, deploymentId, number);
    if (id === deployment.activeId && deployment.targetId === null)
      throw new ServiceError('conflict', `version ${number} is already active`);
    const loaded = findVersion(deployment, id);
    await demandDisk(tx, owner, prefixCacheMb((await openVersion(context, tx, id)).stored) - cacheMbOf(deployment));
    if (id === deployment.activeId) {
      deployment.targetId = deployment.rolloutStrategy = null;
    } else {
      demandNoRollout(deployment);
      if (loaded !== undefined && !isInactive(loaded.status.state))
        throw new ServiceError('busy', `version ${number} is ${loaded.status.state}: wait until it has stopped`);
      if (deployment.desired === 'paused') {
        deployment.activeId = id;
      } else {
        deployment.targetId = id;
        deployment.rolloutStrategy = null;
        if (loaded !== undefined) queueVersion(loaded, nowMs);
        else
          await tx
            .updateTable('deployment_versions')
            .set({
              state: 'queued',
              queued_at: nowMs,
              reason: null,
              message: null,
              exit_code: null,
              num_exits: 0,
              last_lines: null,
              ended_at: null,
              started_at: null,
              ready_at: null,
            })
            .where('id', '=', id)
            .execute();
      }
    }
    change.record({
      action: 'version.activated',
      owner,
      target: { type: 'deployment', id: deploymentId },
      after: { version: number },
    });
    return () => readVersion(tx, deploymentId, number);
  });
}

/** Deletes an inactive version and returns its id, whose files may be deleted. Version numbers are not reused. */
export function deleteVersion(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  number: number,
): Promise<string> {
  return changeDeployment(context, actor, deploymentId, async ({ deployment, change, owner }) => {
    const { id, state } = await findVersionRow(change.tx, deploymentId, number);
    if (id === deployment.activeId)
      throw new ServiceError('conflict', `version ${number} is active: activate another version first`);
    if (!isInactive(state))
      throw new ServiceError('wrong_state', `version ${number} is ${state}: expected stopped or error`);
    const replica = await change.tx.selectFrom('replicas').select('id').where('version_id', '=', id).executeTakeFirst();
    if (replica !== undefined) throw new ServiceError('busy', `version ${number} is still stopping: try again shortly`);
    if (id === deployment.targetId) deployment.targetId = deployment.rolloutStrategy = null;
    deployment.versions.splice(
      0,
      deployment.versions.length,
      ...deployment.versions.filter((version) => version.id !== id),
    );
    await change.tx.deleteFrom('deployment_versions').where('id', '=', id).execute();
    change.record({
      action: 'version.deleted',
      owner,
      target: { type: 'deployment', id: deploymentId },
      before: { version: number },
    });
    return () => Promise.resolve(id);
  });
}

async function findVersionRow(
  tx: ServiceTx,
  deploymentId: string,
  number: number,
): Promise<Pick<VersionRow, 'id' | 'state'>> {
  const row = await tx
    .selectFrom('deployment_versions')
    .select(['id', 'state'])
    .where('deployment_id', '=', deploymentId)
    .where('number', '=', number)
    .executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', `the deployment has no version ${number}`);
  return row;
}

function demandNoRollout(deployment: Parameters<typeof findVersion>[0]): void {
  const target = findVersion(deployment, deployment.targetId);
  if (target !== undefined && !isInactive(target.status.state))
    throw new ServiceError(
      'busy',
      `version ${target.number} is being rolled out: wait for it, or activate the serving version to cancel it`,
    );
}
