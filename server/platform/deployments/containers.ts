import { checkNameBesideId, newId, type OwnerRef } from 'capstan/internal';
import { changeOptions, demandOwner, type ServiceActor, visibleOwners } from '../accounts/actor';
import { findImage } from './catalog';
import { demandSources, demandWritable } from './data-sources';
import { serviceChange, type ServiceChange } from '../store/change';
import { CONTAINER_TRANSITIONS, type ContainerEvent, type ContainerState } from './container-state';
import type { ContainerRow, ImageRow } from '../store/deployment-schema';
import { bindingViews, type DeploymentView } from './views';
import { insertDeployment, type NewDeployment } from './deployments';
import { hubModelOf, prefixCacheMb } from './runtime-options';
import { ServiceError } from '../store/errors';
import type { Page } from '../store/page';
import { type OwnerView, ownerViews, viewOf } from './owner-views';
import type { Right } from '../accounts/roles';
import type { ServiceDb, ServiceTx } from '../store/schema';
import {
  type Binding,
  completeSpec,
  demandIsolation,
  demandPossible,
  type OpenSpec,
  parseSpec,
  type SpecRequest,
  specView,
  type StoredSpec,
  type VersionSpec,
} from './spec';
import type { StoreContext } from '../store/store-context';
import { containerSlug } from './target';
import { rfc3339 } from '../store/times';
import { insertBindings, openSecrets, sealSecrets } from './version-rows';

type Reader = ServiceDb | ServiceTx;

/** A training container. The API adds its URL. */
export interface ContainerView extends Pick<
  VersionSpec,
  'image_id' | 'compute' | 'bindings' | 'env' | 'start_command' | 'runtime'
> {
  id: string;
  name: string;
  owner: OwnerView;
  state: ContainerState;
  /** Null unless it runs. */
  slug: string | null;
  reason: string | null;
  created_at: string;
  updated_at: string;
  rev: number;
}

type ContainerSpecRequest = Pick<
  SpecRequest,
  'image_id' | 'compute' | 'bindings' | 'env' | 'secret_env' | 'start_command' | 'runtime'
>;

export interface NewContainer extends ContainerSpecRequest {
  name: string;
  /** Default: the actor. */
  owner?: OwnerRef;
}

export interface ContainerEdit extends ContainerSpecRequest {
  name?: string;
}

/** What {@link deployContainer} would create. */
export interface DeployPreview {
  name: string;
  owner: OwnerView;
  spec: VersionSpec;
  warnings: string[];
}

/** Creates a stopped container. */
export function createContainer(
  context: StoreContext,
  actor: ServiceActor,
  request: NewContainer,
): Promise<ContainerView> {
  const nowMs = context.now();
  return serviceChange(context.db, nowMs, changeOptions(actor), async (change) => {
    const { tx, rev, record } = change;
    const owner: OwnerRef = request.owner ?? { type: 'user', id: actor.userId };
    await demandOwner(tx, actor, owner, 'container.change');
    const name = checkNameBesideId('con', request.name);
    await demandFreeName(tx, owner, name);
    const spec = completeContainer(context, actor, request, await findImage(tx, request.image_id));
    const id = newId('con', nowMs);
    const row: ContainerRow = {
      id,
      owner_type: owner.type,
      owner_id: owner.id,
      name,
      spec: JSON.stringify(spec.stored),
      secret_env: sealSecrets(context.box, id, spec.secrets),
      state: 'stopped',
      reason: null,
      created_by: actor.userId,
      created_at: nowMs,
      updated_at: nowMs,
      rev,
    };
    await tx.insertInto('containers').values(row).execute();
    await bind(change, actor, id, spec);
    record({ action: 'container.created', owner, target: { type: 'container', id }, after: { name } });
    return readContainer(tx, id);
  });
}

/** Changes a container. A running container keeps its old spec until its next start. */
export function editContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  edit: ContainerEdit,
  ifRev?: number,
): Promise<ContainerView> {
  return changeContainer(context, actor, containerId, ifRev, async (change, row) => {
    const { tx, record } = change;
    const base = await openContainer(context, tx, row);
    const image =
      edit.image_id === undefined || edit.image_id === base.stored.image_id
        ? await imageOf(tx, base.stored)
        : await findImage(tx, edit.image_id);
    const spec = completeContainer(context, actor, edit, image, base);
    const name = edit.name === undefined || edit.name === row.name ? row.name : checkNameBesideId('con', edit.name);
    if (name !== row.name) await demandFreeName(tx, { type: row.owner_type, id: row.owner_id }, name);
    await tx.deleteFrom('data_bindings').where('container_id', '=', containerId).execute();
    await tx
      .updateTable('containers')
      .set({ name, spec: JSON.stringify(spec.stored), secret_env: sealSecrets(context.box, containerId, spec.secrets) })
      .where('id', '=', containerId)
      .execute();
    await bind(change, actor, containerId, spec);
    record({
      action: 'container.updated',
      owner: { type: row.owner_type, id: row.owner_id },
      target: { type: 'container', id: containerId },
      before: { name: row.name },
      after: { name },
    });
  });
}

export function commandContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  event: Extract<ContainerEvent, 'start' | 'stop'>,
): Promise<ContainerView> {
  return changeContainer(context, actor, containerId, undefined, async ({ tx, record, emit }, row) => {
    const state = CONTAINER_TRANSITIONS[row.state][event];
    if (state === undefined) throw new ServiceError('wrong_state', `cannot ${event} a container in state ${row.state}`);
    // The rights may have changed since the home was bound.
    if (event === 'start') await demandHome(tx, actor, (await openContainer(context, tx, row)).bindings);
    await tx.updateTable('containers').set({ state, reason: null }).where('id', '=', row.id).execute();
    const owner: OwnerRef = { type: row.owner_type, id: row.owner_id };
    record({ action: `container.${event}`, owner, target: { type: 'container', id: row.id } });
    emit({ action: `container.${state}`, owner, target: { type: 'container', id: row.id } });
  });
}

/** Deletes a stopped container. Deployments created from it stay. */
export function deleteContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  ifRev?: number,
): Promise<void> {
  return serviceChange(context.db, context.now(), changeOptions(actor), async ({ tx, record }) => {
    const row = await demandContainer(tx, actor, containerId, 'container.change', ifRev);
    const replica = await tx
      .selectFrom('replicas')
      .select('id')
      .where('container_id', '=', containerId)
      .executeTakeFirst();
    if (replica !== undefined || (row.state !== 'stopped' && row.state !== 'error'))
      throw new ServiceError('wrong_state', `the container is ${row.state}: stop it first`);
    await tx.deleteFrom('containers').where('id', '=', containerId).execute();
    record({
      action: 'container.deleted',
      owner: { type: row.owner_type, id: row.owner_id },
      target: { type: 'container', id: containerId },
      before: { name: row.name },
    });
  });
}

/** Returns containers, newest first. */
export async function pageContainers(
  db: ServiceDb,
  actor: ServiceActor,
  { owner, after, limit }: { owner?: OwnerRef; after?: string; limit: number },
): Promise<Page<ContainerView>> {
  const owners = owner === undefined ? await visibleOwners(db, actor) : [owner];
  if (owner !== undefined) await demandOwner(db, actor, owner, 'read');
  let query = db
    .selectFrom('containers')
    .selectAll()
    .where(
      'owner_id',
      'in',
      owners.map(({ id }) => id),
    )
    .orderBy('id', 'desc')
    .limit(limit + 1);
  if (after !== undefined) query = query.where('id', '<', after);
  const rows = await query.execute();
  return { data: await toContainers(db, rows.slice(0, limit)), next: rows.length > limit ? rows[limit - 1].id : null };
}

export async function getContainer(db: ServiceDb, actor: ServiceActor, containerId: string): Promise<ContainerView> {
  return (await toContainers(db, [await demandContainer(db, actor, containerId, 'read')]))[0];
}

/** Returns the deployment that {@link deployContainer} would create without changes. */
export async function previewDeploy(
  { db, box, options }: StoreContext,
  actor: ServiceActor,
  containerId: string,
): Promise<DeployPreview> {
  const row = await demandContainer(db, actor, containerId, 'read');
  const { stored } = await openContainer({ box }, db, row);
  demandStart(stored);
  const bindings = ((await bindingViews(db, 'container_id', [row.id])).get(row.id) ?? []).map((binding) => ({
    ...binding,
    mode: binding.mount === 'home' ? ('copy' as const) : ('ro' as const),
  }));
  const owners = await ownerViews(db, [{ type: row.owner_type, id: row.owner_id }]);
  const warnings: string[] = [];
  if (bindings.some(({ mount }) => mount === 'home')) warnings.push('home_copied');
  if (stored.start_command !== null && options.machine.isolation.level !== 'L2') warnings.push('not_isolated');
  if (row.state === 'running' && stored.compute.gpu_count > 0) warnings.push('container_holds_gpus');
  return {
    name: row.name,
    owner: viewOf(owners, row.owner_id),
    spec: specView(stored, bindings, Object.keys(JSON.parse(row.secret_env) as object)),
    warnings,
  };
}

/** Creates a deployment from a container's spec and `request`. By default it belongs to the container's owner. */
export function deployContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  request: NewDeployment,
): Promise<DeploymentView> {
  return serviceChange(context.db, context.now(), changeOptions(actor), async (change) => {
    const row = await demandContainer(change.tx, actor, containerId, 'read');
    const spec = await openContainer(context, change.tx, row);
    if (request.start_command === undefined && request.image_id === undefined) demandStart(spec.stored);
    return insertDeployment(
      context,
      change,
      actor,
      { ...request, owner: request.owner ?? { type: row.owner_type, id: row.owner_id } },
      { containerId, spec },
    );
  });
}

/** Returns the spec of a container with decrypted secret values. */
export async function openContainer(
  { box }: Pick<StoreContext, 'box'>,
  db: Reader,
  row: ContainerRow,
): Promise<OpenSpec> {
  const bindings = await db
    .selectFrom('data_bindings')
    .select(['mount', 'source_id'])
    .where('container_id', '=', row.id)
    .orderBy('mount')
    .execute();
  return { stored: parseSpec(row.spec), bindings, secrets: openSecrets(box, row.id, row.secret_env) };
}

function completeContainer(
  { options: { machine } }: StoreContext,
  actor: ServiceActor,
  request: ContainerEdit,
  image: ImageRow,
  base?: OpenSpec,
): OpenSpec {
  const { name: _name, ...rest } = request;
  // A container of an image without a runtime may be created without a start script and get one later.
  const spec =
    image.type === 'host-env' && (rest.start_command ?? base?.stored.start_command ?? image.default_start) === null
      ? withoutScript(completeSpec({ ...rest, start_command: 'true' }, image, base))
      : completeSpec(rest, image, base);
  const { start_command: script, runtime } = spec.stored;
  if (script === null && hubModelOf(runtime) !== undefined)
    throw new ServiceError(
      'invalid_argument',
      'runtime.model: a training container cannot run a model from the hub: pull it into a data source and bind that',
    );
  if (prefixCacheMb(spec.stored) > 0)
    throw new ServiceError(
      'invalid_argument',
      'runtime.prefix_cache_disk_mb: expected null: only deployments keep their prefix cache on the disk',
    );
  demandPossible(spec.stored, machine.capacity, 1);
  demandIsolation(spec, machine.isolation, actor.isAdmin && machine.allowsUnisolated);
  return spec;
}

function withoutScript(spec: OpenSpec): OpenSpec {
  return { ...spec, stored: { ...spec.stored, start_command: null } };
}

function demandStart({ image_type: type, start_command: script }: StoredSpec): void {
  if (type === 'host-env' && script === null)
    throw new ServiceError('conflict', 'the container has no start script: add one first');
}

async function changeContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  ifRev: number | undefined,
  run: (change: ServiceChange, row: ContainerRow) => Promise<void>,
): Promise<ContainerView> {
  return serviceChange(context.db, context.now(), changeOptions(actor), async (change) => {
    const row = await demandContainer(change.tx, actor, containerId, 'container.change', ifRev);
    await run(change, row);
    await change.tx
      .updateTable('containers')
      .set({ updated_at: change.nowMs, rev: change.rev })
      .where('id', '=', containerId)
      .execute();
    return readContainer(change.tx, containerId);
  });
}

/** @throws ServiceError */
async function demandContainer(
  db: Reader,
  actor: ServiceActor,
  containerId: string,
  right: Right,
  ifRev?: number,
): Promise<ContainerRow> {
  const row = await db.selectFrom('containers').selectAll().where('id', '=', containerId).executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'container not found');
  await demandOwner(db, actor, { type: row.owner_type, id: row.owner_id }, right);
  if (ifRev !== undefined && ifRev !== row.rev)
    throw new ServiceError('stale', `the container has changed: its revision is ${row.rev}, not ${ifRev}`);
  return row;
}

async function demandFreeName(tx: ServiceTx, owner: OwnerRef, name: string): Promise<void> {
  const taken = await tx
    .selectFrom('containers')
    .select('id')
    .where('owner_id', '=', owner.id)
    .where('name', '=', name)
    .executeTakeFirst();
  if (taken !== undefined) throw new ServiceError('conflict', 'name: the owner already has a container with this name');
}

async function bind(
  { tx, nowMs }: ServiceChange,
  actor: ServiceActor,
  containerId: string,
  { bindings }: OpenSpec,
): Promise<void> {
  await demandSources(
    tx,
    actor,
    bindings.map(({ source_id: id }) => id),
  );
  await demandHome(tx, actor, bindings);
  await insertBindings(tx, { version_id: null, container_id: containerId }, bindings, nowMs);
}

async function demandHome(tx: ServiceTx, actor: ServiceActor, bindings: readonly Binding[]): Promise<void> {
  const home = bindings.find(({ mount }) => mount === 'home');
  if (home !== undefined) await demandWritable(tx, actor, home.source_id);
}

function imageOf(tx: ServiceTx, { image_id }: StoredSpec): Promise<ImageRow> {
  return tx.selectFrom('images').selectAll().where('id', '=', image_id).executeTakeFirstOrThrow();
}

async function readContainer(tx: ServiceTx, id: string): Promise<ContainerView> {
  return (
    await toContainers(tx, [
      await tx.selectFrom('containers').selectAll().where('id', '=', id).executeTakeFirstOrThrow(),
    ])
  )[0];
}

async function toContainers(db: Reader, rows: readonly ContainerRow[]): Promise<ContainerView[]> {
  if (rows.length === 0) return [];
  const ids = rows.map(({ id }) => id);
  const owners = await ownerViews(
    db,
    rows.map(({ owner_type: type, owner_id: id }) => ({ type, id })),
  );
  const bindings = await bindingViews(db, 'container_id', ids);
  return rows.map((row) => {
    const { image_id, compute, env, start_command, runtime } = specView(
      parseSpec(row.spec),
      [],
      Object.keys(JSON.parse(row.secret_env) as object),
    );
    return {
      id: row.id,
      name: row.name,
      owner: viewOf(owners, row.owner_id),
      state: row.state,
      image_id,
      compute,
      bindings: bindings.get(row.id) ?? [],
      env,
      start_command,
      runtime,
      slug: row.state === 'running' ? containerSlug(row.id) : null,
      reason: row.reason,
      created_at: rfc3339(row.created_at),
      updated_at: rfc3339(row.updated_at),
      rev: row.rev,
    };
  });
}
