import { randomBytes } from 'node:crypto';
import type { NewDeployment } from '../api/objects';
import { checkNameBesideId } from '../access/key-values';
import { ensureDeployment, findDeployment, type OwnerRef } from '../access/owners';
import { changeOptions, demandOwner, type ServiceActor } from './actor';
import { serviceChange, type ServiceChange } from './change';
import type { DeploymentSettingsRow } from './deployment-schema';
import { type DeploymentRecord, readDeployment } from './deployment-views';
import { ServiceError } from './errors';
import { countDeployments, demandGpuQuota, quotaOf } from './pool-rows';
import { checkScale, DEFAULT_SCALE, type Scale, scaleOf } from './scale';
import type { ServiceTx } from './schema';
import { completeSpec, demandIsolation, demandPossible, type OpenSpec } from './spec';
import { findImage } from './catalog';
import type { StoreContext } from './store-context';
import { insertVersion } from './version-rows';

const SLUG_ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
/** Five random bits each: 60. */
const SLUG_LENGTH = 12;

/** Of a container: what its deployment inherits where the request says nothing. */
export interface DeploymentOrigin {
  containerId: string;
  spec: OpenSpec;
}

/** Accepted: its address is there at once, its first version comes up by itself. */
export function createDeployment(
  context: StoreContext,
  actor: ServiceActor,
  wish: NewDeployment,
): Promise<DeploymentRecord> {
  const nowMs = context.now();
  return serviceChange(context.db, nowMs, changeOptions(actor), (change) =>
    makeDeployment(context, change, actor, wish),
  );
}

export async function makeDeployment(
  context: StoreContext,
  change: ServiceChange,
  actor: ServiceActor,
  wish: NewDeployment,
  origin?: DeploymentOrigin,
): Promise<DeploymentRecord> {
  const { tx, nowMs } = change;
  const { machine } = context.options;
  const owner: OwnerRef = wish.owner ?? { type: 'user', id: actor.userId };
  await demandOwner(tx, actor, owner, 'deployment.change');
  const scale = checkScale({ ...DEFAULT_SCALE, ...scaleOf(wish) });
  const image = await findImage(tx, wish.image_id ?? origin?.spec.stored.image_id);
  const spec = completeSpec(wish, image, origin?.spec);
  demandPossible(spec.stored, machine.capacity, Math.max(1, scale.min_replicas));
  demandIsolation(spec.stored, machine.isolation, actor.isAdmin && machine.allowsUnisolated);
  await demandQuota(tx, owner, spec, scale);
  const id = await claimName(change, owner, checkNameBesideId('dep', wish.name));
  const accessControl = wish.access_control === true ? 1 : 0;
  await tx
    .updateTable('deployments')
    .set({ access_control: accessControl, updated_at: nowMs, rev: change.rev })
    .where('id', '=', id)
    .execute();
  const slug = newSlug();
  await tx.insertInto('slugs').values({ slug, deployment_id: id }).execute();
  const row: DeploymentSettingsRow = {
    deployment_id: id,
    slug,
    desired: 'running',
    observed: 'pending',
    active_version_id: null,
    target_version_id: null,
    last_number: 1,
    was_ready: 0,
    wanted_replicas: Math.max(1, scale.min_replicas),
    ...scale,
    strategy: wish.strategy ?? 'auto',
    rollout_strategy: null,
    prefix_cache_scope: wish.prefix_cache_scope ?? 'key',
    source_container_id: origin?.containerId ?? null,
    created_by: actor.userId,
  };
  await tx.insertInto('deployment_settings').values(row).execute();
  const version = await insertVersion(context, change, actor, {
    deploymentId: id,
    number: 1,
    spec,
    note: wish.note ?? null,
    state: 'queued',
  });
  await tx
    .updateTable('deployment_settings')
    .set({ active_version_id: version })
    .where('deployment_id', '=', id)
    .execute();
  change.record({
    action: 'deployment.created',
    owner,
    target: { type: 'deployment', id },
    after: { name: wish.name, slug, access_control: accessControl === 1, ...scale },
  });
  change.tell({ action: 'version.queued', owner, target: { type: 'deployment', id }, after: { version: 1 } });
  return readDeployment(tx, id);
}

/** A row that keys made for a name, before there was such a deployment, becomes its own. */
async function claimName({ access, tx }: ServiceChange, owner: OwnerRef, name: string): Promise<string> {
  const found = await findDeployment(access.tx, owner.id, name);
  // Its making is recorded with all that it is, once.
  if (found === undefined) return (await ensureDeployment({ ...access, record: () => {} }, owner, name)).id;
  const taken = await tx
    .selectFrom('deployment_settings')
    .select('desired')
    .where('deployment_id', '=', found.id)
    .executeTakeFirst();
  if (taken !== undefined)
    throw new ServiceError(
      'conflict',
      taken.desired === 'deleted'
        ? 'name: the deployment of this name is still being deleted: try again shortly'
        : 'name: the owner has a deployment of this name',
    );
  await access.touch('deployment', found.id);
  return found.id;
}

async function demandQuota(tx: ServiceTx, owner: OwnerRef, { stored }: OpenSpec, scale: Scale): Promise<void> {
  const quota = await quotaOf(tx, owner);
  if (quota.deployments !== null) {
    const count = (await countDeployments(tx, [owner.id])).get(owner.id) ?? 0;
    if (count >= quota.deployments)
      throw new ServiceError('quota_exceeded', `the owner's quota of deployments is ${quota.deployments}`);
  }
  demandGpuQuota(quota.gpu, stored.compute.gpu_count * Math.max(1, scale.min_replicas));
}

function newSlug(): string {
  return Array.from(randomBytes(SLUG_LENGTH), (byte) => SLUG_ALPHABET[byte % 32]).join('');
}
