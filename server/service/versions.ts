import type { NewVersion, Version } from '../api/objects';
import type { ServiceActor } from './actor';
import { findImage } from './catalog';
import type { VersionRow } from './deployment-schema';
import { readVersion } from './deployment-views';
import { changeWork } from './deployment-commands';
import { ServiceError } from './errors';
import { demandGpuQuota, quotaOf } from './pool-rows';
import type { ServiceTx } from './schema';
import { completeSpec, demandIsolation, demandPossible, type OpenSpec, type SpecWish } from './spec';
import type { StoreContext } from './store-context';
import { insertVersion, openVersion } from './version-rows';
import { isInactive } from './version-state';
import { findVersion, queueVersion } from './work';

/** What the request leaves out is as in the newest version. It is rolled out at once, unless the deployment is paused: then it is what starts next. */
export function createVersion(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  wish: NewVersion,
): Promise<Version> {
  return changeWork(context, actor, deploymentId, async ({ work, change, owner }) => {
    const { tx } = change;
    demandNoRollout(work);
    const newest = await tx
      .selectFrom('deployment_versions')
      .select('id')
      .where('deployment_id', '=', deploymentId)
      .orderBy('number', 'desc')
      .executeTakeFirstOrThrow();
    const spec = await completeVersion(context, tx, actor, newest.id, wish);
    demandPossible(spec.stored, context.options.machine.capacity, Math.max(1, work.min));
    demandGpuQuota((await quotaOf(tx, owner)).gpu, spec.stored.compute.gpu_count * Math.max(1, work.min));
    const isPaused = work.desired === 'paused';
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
      note: wish.note ?? null,
      state: isPaused ? 'stopped' : 'queued',
    });
    if (isPaused) work.activeId = id;
    else work.targetId = id;
    work.rolloutStrategy = isPaused ? null : (wish.strategy ?? null);
    change.record({
      action: 'version.created',
      owner,
      target: { type: 'deployment', id: deploymentId },
      after: { version: number },
    });
    return () => readVersion(tx, deploymentId, number);
  });
}

async function completeVersion(
  context: StoreContext,
  tx: ServiceTx,
  actor: ServiceActor,
  baseId: string,
  wish: SpecWish,
): Promise<OpenSpec> {
  const base = await openVersion(context, tx, baseId);
  const { machine } = context.options;
  // The image of the newest version may be deleted by now, and still serves.
  const image =
    wish.image_id === undefined || wish.image_id === base.stored.image_id
      ? await tx.selectFrom('images').selectAll().where('id', '=', base.stored.image_id).executeTakeFirstOrThrow()
      : await findImage(tx, wish.image_id);
  const spec = completeSpec(wish, image, base);
  if (spec.stored.start_command !== base.stored.start_command)
    demandIsolation(spec.stored, machine.isolation, actor.isAdmin && machine.allowsUnisolated);
  return spec;
}

/**
 * Rolls back, or forward, to a version that exists. The active one: a rollout under way ends, and one that failed is forgotten. The one whose rollout failed: another try.
 */
export function activateVersion(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  number: number,
): Promise<Version> {
  return changeWork(context, actor, deploymentId, async ({ work, change, owner }) => {
    const { tx, nowMs } = change;
    const { id } = await findVersionRow(tx, deploymentId, number);
    if (id === work.activeId && work.targetId === null)
      throw new ServiceError('conflict', `version ${number} is active already`);
    const loaded = findVersion(work, id);
    if (id === work.activeId) {
      work.targetId = work.rolloutStrategy = null;
    } else {
      demandNoRollout(work);
      if (loaded !== undefined && !isInactive(loaded.life.state))
        throw new ServiceError('busy', `version ${number} is ${loaded.life.state}: try again when it has stopped`);
      if (work.desired === 'paused') {
        work.activeId = id;
      } else {
        work.targetId = id;
        work.rolloutStrategy = null;
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

/** Only one that is at rest, and is neither what serves nor what is to. Its number is not given again. Returns its id, whose files may go. */
export function deleteVersion(
  context: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
  number: number,
): Promise<string> {
  return changeWork(context, actor, deploymentId, async ({ work, change, owner }) => {
    const { id, state } = await findVersionRow(change.tx, deploymentId, number);
    if (id === work.activeId) throw new ServiceError('conflict', `version ${number} is the active one`);
    if (!isInactive(state))
      throw new ServiceError(
        'wrong_state',
        `version ${number} is ${state}: only stopped versions and those in error can be deleted`,
      );
    const replica = await change.tx.selectFrom('replicas').select('id').where('version_id', '=', id).executeTakeFirst();
    if (replica !== undefined) throw new ServiceError('busy', `version ${number} is still ending: try again shortly`);
    if (id === work.targetId) work.targetId = work.rolloutStrategy = null;
    work.versions.splice(0, work.versions.length, ...work.versions.filter((version) => version.id !== id));
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

function demandNoRollout(work: Parameters<typeof findVersion>[0]): void {
  const target = findVersion(work, work.targetId);
  if (target !== undefined && !isInactive(target.life.state))
    throw new ServiceError(
      'busy',
      `version ${target.number} is being rolled out: wait for it, or activate the version that serves to end it`,
    );
}
