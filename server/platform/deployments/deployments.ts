import { randomBytes } from 'node:crypto';
import { checkNameBesideId, ensureDeployment, findDeployment, type OwnerRef } from 'capstan/internal';
import { type NewUpstream, writeUpstream } from '../upstreams/upstreams';
import { checkAliases, demandUnusedNames, writeAliases } from './aliases';
import { type FallbackEdit, writeFallbacks } from './fallbacks';
import { changeOptions, demandOwner, type ServiceActor } from '../accounts/actor';
import { serviceChange, type ServiceChange } from '../store/change';
import type { DeploymentSettingsRow } from '../store/deployment-schema';
import { type DeploymentView, readDeployment } from './views';
import { ServiceError } from '../store/errors';
import { demandQuotas, NO_DEMAND } from '../control/pool-rows';
import { applyScale, DEFAULT_SCALE, type Scale } from './scale';
import { bindHubModel, retryPulls } from './hub-models';
import { completeSpec, demandIsolation, demandOf, demandPossible, type OpenSpec, type SpecRequest } from './spec';
import { findImage } from './catalog';
import type { StoreContext } from '../store/store-context';
import { insertVersion } from './version-rows';

const SLUG_ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
/** 12 characters of 5 random bits each: 60 bits. */
const SLUG_LENGTH = 12;

/** The fields of a deployment that runs versions. */
const SPEC_FIELDS = [
  'image_id',
  'compute',
  'bindings',
  'env',
  'secret_env',
  'start_command',
  'runtime',
  'hub_token',
  'health_path',
  'start_deadline_s',
  'grace_s',
  'min_replicas',
  'max_replicas',
  'idle_timeout_s',
  'cold_start_wait_s',
  'strategy',
  'prefix_cache_scope',
  'note',
] as const satisfies readonly (keyof NewDeployment)[];

export interface NewDeployment extends SpecRequest, Partial<Scale>, FallbackEdit {
  name: string;
  /** Further names that requests may give as `model`. */
  aliases?: readonly string[];
  /** Default: the actor. */
  owner?: OwnerRef;
  access_control?: boolean;
  /** An upstream server, in place of a version. */
  upstream?: NewUpstream;
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
  const { tx } = change;
  const { machine } = context.options;
  const owner: OwnerRef = request.owner ?? { type: 'user', id: actor.userId };
  await demandOwner(tx, actor, owner, 'deployment.change');
  if (request.upstream !== undefined) {
    const given = SPEC_FIELDS.find((field) => request[field] !== undefined);
    if (given !== undefined || origin !== undefined)
      throw new ServiceError(
        'invalid_argument',
        `upstream: expected no settings of replicas beside it, got ${given ?? 'a container'}`,
      );
    await demandQuotas(tx, owner, { ...NO_DEMAND, isDeployment: true });
    const id = await insertSettings(change, actor, owner, request, DEFAULT_SCALE, undefined);
    await writeUpstream(context, tx, id, undefined, request.upstream, { userId: actor.userId, nowMs: change.nowMs });
    return readDeployment(tx, id);
  }
  const scale = applyScale(DEFAULT_SCALE, request);
  const image = await findImage(tx, request.image_id ?? origin?.spec.stored.image_id);
  const completed = completeSpec(request, image, origin?.spec);
  demandPossible(completed.stored, machine.capacity, Math.max(1, scale.min_replicas));
  demandIsolation(completed, machine.isolation, actor.isAdmin && machine.allowsUnisolated);
  const spec = await bindHubModel(context, change, actor, owner, { spec: completed, request, base: origin?.spec });
  await demandQuotas(tx, owner, demandOf(spec, scale.min_replicas));
  const id = await insertSettings(change, actor, owner, request, scale, origin);
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
  await retryPulls(tx, id, change.nowMs);
  change.emit({ action: 'version.queued', owner, target: { type: 'deployment', id }, after: { version: 1 } });
  return readDeployment(tx, id);
}

/** Inserts a deployment without a version. */
async function insertSettings(
  change: ServiceChange,
  actor: ServiceActor,
  owner: OwnerRef,
  request: NewDeployment,
  scale: Scale,
  origin: DeploymentOrigin | undefined,
): Promise<string> {
  const { tx, nowMs } = change;
  const name = checkNameBesideId('dep', request.name);
  const aliases = checkAliases(name, request.aliases ?? []);
  const id = await claimName(change, owner, name);
  await demandUnusedNames(tx, owner.id, id, { name, aliases });
  // An open deployment with the key of a provider would let anyone spend the owner's money.
  const accessControl = (request.access_control ?? request.upstream !== undefined) ? 1 : 0;
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
    observed: request.upstream === undefined ? 'pending' : 'running',
    active_version_id: null,
    target_version_id: null,
    last_number: request.upstream === undefined ? 1 : 0,
    was_ready: request.upstream === undefined ? 0 : 1,
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
  change.record({
    action: 'deployment.created',
    owner,
    target: { type: 'deployment', id },
    after: {
      name: request.name,
      slug,
      access_control: accessControl === 1,
      ...(aliases.length === 0 ? {} : { aliases }),
      ...(request.upstream === undefined ? {} : { upstream: { url: request.upstream.url } }),
      ...scale,
    },
  });
  return id;
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
        : 'name: the owner already has a deployment with this name: choose another name, or create a new version',
    );
  await access.touch('deployment', found.id);
  return found.id;
}

function newSlug(): string {
  return Array.from(randomBytes(SLUG_LENGTH), (byte) => SLUG_ALPHABET[byte % 32]).join('');
}
