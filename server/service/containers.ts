import type { Container, ContainerEdit, DeployPreview, NewContainer, NewDeployment } from '../api/objects';
import type { Page } from '../api/json-schema';
import { newId } from '../access/ids';
import { checkNameBesideId } from '../access/key-values';
import type { OwnerRef } from '../access/owners';
import { changeOptions, demandOwner, type ServiceActor, visibleOwners } from './actor';
import { findImage } from './catalog';
import { demandSources } from './data-sources';
import { serviceChange, type ServiceChange } from './change';
import { CONTAINER_TRANSITIONS, type ContainerEvent } from './container-state';
import type { ContainerRow, ImageRow } from './deployment-schema';
import { bindingViews, type DeploymentRecord } from './deployment-views';
import { makeDeployment } from './deployments';
import { ServiceError } from './errors';
import { ownerViews, viewOf } from './owner-views';
import type { Right } from './roles';
import type { ServiceDb, ServiceTx } from './schema';
import { completeSpec, demandIsolation, demandPossible, type OpenSpec, specView, type StoredSpec } from './spec';
import type { StoreContext } from './store-context';
import { containerSlug } from './target';
import { rfc3339 } from './times';
import { insertBindings, openSecrets, sealSecrets } from './version-rows';

type Reader = ServiceDb | ServiceTx;

/** Without the address that the gateway gives it; `slug` while it runs. */
export type ContainerRecord = Omit<Container, 'url'> & { slug: string | null };

/** Made stopped. */
export function createContainer(
  context: StoreContext,
  actor: ServiceActor,
  wish: NewContainer,
): Promise<ContainerRecord> {
  const nowMs = context.now();
  return serviceChange(context.db, nowMs, changeOptions(actor), async (change) => {
    const { tx, rev, record } = change;
    const owner: OwnerRef = wish.owner ?? { type: 'user', id: actor.userId };
    await demandOwner(tx, actor, owner, 'container.change');
    const name = checkNameBesideId('con', wish.name);
    await demandFreeName(tx, owner, name);
    const spec = completeContainer(context, actor, wish, await findImage(tx, wish.image_id));
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

/** What runs goes on as it was started; the next start has it. */
export function editContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  edit: ContainerEdit,
  ifRev?: number,
): Promise<ContainerRecord> {
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
): Promise<ContainerRecord> {
  return changeContainer(context, actor, containerId, undefined, async ({ tx, record, tell }, row) => {
    const state = CONTAINER_TRANSITIONS[row.state][event];
    if (state === undefined) throw new ServiceError('wrong_state', `a container that is ${row.state} cannot ${event}`);
    await tx.updateTable('containers').set({ state, reason: null }).where('id', '=', row.id).execute();
    const owner: OwnerRef = { type: row.owner_type, id: row.owner_id };
    record({ action: `container.${event}`, owner, target: { type: 'container', id: row.id } });
    tell({ action: `container.${state}`, owner, target: { type: 'container', id: row.id } });
  });
}

/** Only what is at rest. Deployments that were made from it stay. */
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

/** The newest first. */
export async function pageContainers(
  db: ServiceDb,
  actor: ServiceActor,
  { owner, after, limit }: { owner?: OwnerRef; after?: string; limit: number },
): Promise<Page<ContainerRecord>> {
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

export async function getContainer(db: ServiceDb, actor: ServiceActor, containerId: string): Promise<ContainerRecord> {
  return (await toContainers(db, [await demandContainer(db, actor, containerId, 'read')]))[0];
}

/** What one click would deploy: compute, image, workspace and data as the container has them. */
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

/** A deployment of what the container is, with what the request says otherwise; it belongs to the container's owner unless it names another. */
export function deployContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  wish: NewDeployment,
): Promise<DeploymentRecord> {
  return serviceChange(context.db, context.now(), changeOptions(actor), async (change) => {
    const row = await demandContainer(change.tx, actor, containerId, 'read');
    const spec = await openContainer(context, change.tx, row);
    if (wish.start_command === undefined && wish.image_id === undefined) demandStart(spec.stored);
    return makeDeployment(
      context,
      change,
      actor,
      { ...wish, owner: wish.owner ?? { type: row.owner_type, id: row.owner_id } },
      { containerId, spec },
    );
  });
}

/** With its secrets in the open. */
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
  return { stored: JSON.parse(row.spec) as StoredSpec, bindings, secrets: openSecrets(box, row.id, row.secret_env) };
}

function completeContainer(
  { options: { machine } }: StoreContext,
  actor: ServiceActor,
  wish: ContainerEdit,
  image: ImageRow,
  base?: OpenSpec,
): OpenSpec {
  const { name: _name, ...rest } = wish;
  // A container of an image that runs nothing by itself may be made without a script, and be given one later.
  const spec =
    image.type === 'host-env' && (rest.start_command ?? base?.stored.start_command ?? image.default_start) === null
      ? withoutScript(completeSpec({ ...rest, start_command: 'true' }, image, base))
      : completeSpec(rest, image, base);
  demandPossible(spec.stored, machine.capacity, 1);
  demandIsolation(spec.stored, machine.isolation, actor.isAdmin && machine.allowsUnisolated);
  return spec;
}

function withoutScript(spec: OpenSpec): OpenSpec {
  return { ...spec, stored: { ...spec.stored, start_command: null } };
}

export function demandStart({ image_type: type, start_command: script }: StoredSpec): void {
  if (type === 'host-env' && script === null)
    throw new ServiceError('conflict', 'the container has no start script: give it one first');
}

async function changeContainer(
  context: StoreContext,
  actor: ServiceActor,
  containerId: string,
  ifRev: number | undefined,
  run: (change: ServiceChange, row: ContainerRow) => Promise<void>,
): Promise<ContainerRecord> {
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
export async function demandContainer(
  db: Reader,
  actor: ServiceActor,
  containerId: string,
  right: Right,
  ifRev?: number,
): Promise<ContainerRow> {
  const row = await db.selectFrom('containers').selectAll().where('id', '=', containerId).executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'there is no such container');
  await demandOwner(db, actor, { type: row.owner_type, id: row.owner_id }, right);
  if (ifRev !== undefined && ifRev !== row.rev)
    throw new ServiceError(
      'stale',
      `the container was changed by somebody else: its revision is ${row.rev}, not ${ifRev}`,
    );
  return row;
}

async function demandFreeName(tx: ServiceTx, owner: OwnerRef, name: string): Promise<void> {
  const taken = await tx
    .selectFrom('containers')
    .select('id')
    .where('owner_id', '=', owner.id)
    .where('name', '=', name)
    .executeTakeFirst();
  if (taken !== undefined) throw new ServiceError('conflict', 'name: the owner has a container of this name');
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
  await insertBindings(tx, { version_id: null, container_id: containerId }, bindings, nowMs);
}

function imageOf(tx: ServiceTx, { image_id }: StoredSpec): Promise<ImageRow> {
  return tx.selectFrom('images').selectAll().where('id', '=', image_id).executeTakeFirstOrThrow();
}

async function readContainer(tx: ServiceTx, id: string): Promise<ContainerRecord> {
  return (
    await toContainers(tx, [
      await tx.selectFrom('containers').selectAll().where('id', '=', id).executeTakeFirstOrThrow(),
    ])
  )[0];
}

async function toContainers(db: Reader, rows: readonly ContainerRow[]): Promise<ContainerRecord[]> {
  if (rows.length === 0) return [];
  const ids = rows.map(({ id }) => id);
  const owners = await ownerViews(
    db,
    rows.map(({ owner_type: type, owner_id: id }) => ({ type, id })),
  );
  const bindings = await bindingViews(db, 'container_id', ids);
  return rows.map((row) => {
    const { image_id, compute, env, start_command, runtime } = specView(
      JSON.parse(row.spec) as StoredSpec,
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
