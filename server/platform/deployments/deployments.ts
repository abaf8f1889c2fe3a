import { randomBytes } from 'node:crypto';
import { checkNameBesideId, ensureDeployment, findDeployment, type OwnerRef } from 'capstan/internal';
import { checkAliases, demandUnusedNames, writeAliases } from './aliases';
import { type FallbackEdit, writeFallbacks } from './fallbacks';
import { changeOptions, demandOwner, type ServiceActor } from '../accounts/actor';
import { serviceChange, type ServiceChange } from '../store/change';
import type { DeploymentSettingsRow } from '../store/deployment-schema';
import { type DeploymentView, readDeployment } from './views';
import { ServiceError } from '../store/errors';
import { demandQuotas } from '../control/pool-rows';
import { applyScale, DEFAULT_SCALE, type Scale } from './scale';
import { bindHubModel, retryPulls } from './hub-models';
import { completeSpec, demandIsolation, demandOf, demandPossible, type OpenSpec, type SpecRequest } from './spec';
import { findImage } from './catalog';
import type { StoreContext } from '../store/store-context';
import { insertVersion } from './version-rows';

const SLUG_ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
/** 12 characters of 5 random bits each: 60 bits. */
const SLUG_LENGTH = 12;

export interface NewDeployment extends SpecRequest, Partial<Scale>, FallbackEdit {
  name: string;
  /** Further names that requests may give as `model`. */
  aliases?: readonly string[];
  /** Default: the actor. */
  owner?: OwnerRef;
  access_control?: boolean;
  strategy?: DeploymentView['strategy'];
  prefix_cache_scope?: DeploymentView['prefix_cache_scope'];
  note?: string;
}

/** The container whose spec the deployment inherits. */
export interface DeploymentOrigin {
  containerId: string;
  spec: OpenSpec;
}

/** Creates a deployment with a queued first version. Its URL exists at once. */
export function createDeployment(
  context: StoreContext,
  actor: ServiceActor,
  request: NewDeployment,
): Promise<DeploymentView> {
  const nowMs = context.now();
  return serviceChange(context.db, nowMs, changeOptions(actor), (change) =>
    insertDeployment(context, change, actor, request),
  );
}

export async function insertDeployment(
  context: StoreContext,
  change: ServiceChange,
  actor: ServiceActor,
  request: NewDeployment,
  origin?: DeploymentOrigin,
): Promise<DeploymentView> {
  const { tx, nowMs } = change;
  const { machine } = context.options;
  const owner: OwnerRef = request.owner ?? { type: 'user', id: actor.userId };
  await demandOwner(tx, actor, owner, 'deployment.change');
  const scale = applyScale(DEFAULT_SCALE, request);
  const image = await findImage(tx, request.image_id ?? origin?.spec.stored.image_id);
  const completed = completeSpec(request, image, origin?.spec);
  demandPossible(completed.stored, machine.capacity, Math.max(1, scale.min_replicas));
  demandIsolation(completed, machine.isolation, actor.isAdmin && machine.allowsUnisolated);
  const spec = await bindHubModel(context, change, actor, owner, { spec: completed, request, base: origin?.spec });
  await demandQuotas(tx, owner, demandOf(spec, scale.min_replicas, true));
  const name = checkNameBesideId('dep', request.name);
  const aliases = checkAliases(name, request.aliases ?? []);
  const id = await claimName(change, owner, name);
  await demandUnusedNames(tx, owner.id, id, { name, aliases });
  const accessControl = request.access_control === true ? 1 : 0;
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
    strategy: request.strategy ?? 'auto',
    rollout_strategy: null,
    prefix_cache_scope: request.prefix_cache_scope ?? 'key',
    source_container_id: origin?.containerId ?? null,
    created_by: actor.userId,
  };
  await tx.insertInto('deployment_settings').values(row).execute();
  await writeAliases(tx, owner.id, id, aliases);
  await writeFallbacks(tx, owner.id, id, request);
  const version = await insertVersion(context, change, actor, {
    deploymentId: id,
    number: 1,
    spec,
    note: request.note ?? null,
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
    after: {
      name: request.name,
      slug,
      access_control: accessControl === 1,
      ...(aliases.length === 0 ? {} : { aliases }),
      ...scale,
    },
  });
  await retryPulls(tx, id, nowMs);
  change.emit({ action: 'version.queued', owner, target: { type: 'deployment', id }, after: { version: 1 } });
  return readDeployment(tx, id);
}

/** Returns the row of this name. Keys may have created the row before the deployment existed. */
async function claimName({ access, tx }: ServiceChange, owner: OwnerRef, name: string): Promise<string> {
  const found = await findDeployment(access.tx, owner.id, name);
  // The caller records `deployment.created` with all settings, so suppress the record of the bare row.
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
        ? 'name: the deployment with this name is still being deleted: try again shortly'
        : 'name: the owner already has a deployment with this name',
    );
  await access.touch('deployment', found.id);
  return found.id;
}

function newSlug(): string {
  return Array.from(randomBytes(SLUG_LENGTH), (byte) => SLUG_ALPHABET[byte % 32]).join('');
}
