import type { ChangeRecord } from './store/audit';
import { type Change, change, type ChangeOptions } from './store/change';
import { AccessError } from './errors';
import { newId } from '../base/ids';
import { checkText } from './keys/values';
import type { OwnerName } from './owner-names';
import type { Db, DeploymentRow, OwnerType, Tx } from './store/schema';

export interface OwnerRef {
  type: OwnerType;
  id: string;
}

/** The fields of a deployment that the key check needs. */
export interface DeploymentRef {
  id: string;
  ownerType: OwnerType;
  ownerId: string;
  name: string;
  accessControl: boolean;
}

export const DEFAULT_DEPLOYMENT = 'default';

const TABLES = { user: 'users', org: 'organizations' } as const;
const ID_PREFIXES = { user: 'usr', org: 'org' } as const;

export async function findOwner(db: Db | Tx, { type, name }: OwnerName): Promise<OwnerRef | undefined> {
  const row = await db.selectFrom(TABLES[type]).select(['id', 'status']).where('name', '=', name).executeTakeFirst();
  if (row?.status === 'deleted') throw new AccessError('conflict', `owner: ${type}:${name} was deleted`);
  return row === undefined ? undefined : { type, id: row.id };
}

export async function ensureOwner({ tx, rev, nowMs, touch, record }: Change, owner: OwnerName): Promise<OwnerRef> {
  const found = await findOwner(tx, owner);
  if (found !== undefined) return found;
  const id = newId(ID_PREFIXES[owner.type], nowMs);
  await tx
    .insertInto(TABLES[owner.type])
    .values({ id, name: owner.name, status: 'active', created_at: nowMs, updated_at: nowMs, rev })
    .execute();
  await touch('owner', id);
  const ref = { type: owner.type, id };
  record({ action: 'owner.created', owner: ref, target: ref, after: { name: owner.name } });
  return ref;
}

/** Returns the owner. @throws AccessError `not_found` unless it exists and is active. Never creates one. */
export async function demandActiveOwner(tx: Tx, { type, id }: OwnerRef): Promise<OwnerRef> {
  const row = await tx
    .selectFrom(TABLES[type])
    .select('id')
    .where('id', '=', id)
    .where('status', '=', 'active')
    .executeTakeFirst();
  if (row === undefined) throw new AccessError('not_found', `owner: ${id} not found`);
  return { type, id };
}

/** Finds a deployment of this owner by id (`dep_…`) or by name. */
export async function findDeployment(
  db: Db | Tx,
  ownerId: string,
  idOrName: string,
): Promise<DeploymentRef | undefined> {
  const row = await db
    .selectFrom('deployments')
    .selectAll()
    .where('owner_id', '=', ownerId)
    .where((eb) => eb.or([eb('id', '=', idOrName), eb('name', '=', idOrName)]))
    .orderBy((eb) => eb.case().when('id', '=', idOrName).then(0).else(1).end())
    .executeTakeFirst();
  return row === undefined ? undefined : toDeploymentRef(row);
}

/** Finds a deployment of any owner. */
export async function findDeploymentById(db: Db | Tx, id: string): Promise<DeploymentRef | undefined> {
  const row = await db.selectFrom('deployments').selectAll().where('id', '=', id).executeTakeFirst();
  return row === undefined ? undefined : toDeploymentRef(row);
}

export function checkDeploymentName(name: string): string {
  return checkText('deployment', name, 100);
}

export async function ensureDeployment(
  { tx, rev, nowMs, touch, record }: Change,
  owner: OwnerRef,
  idOrName: string,
): Promise<DeploymentRef> {
  const found = await findDeployment(tx, owner.id, idOrName);
  if (found !== undefined) return found;
  // A name never looks like an id, so this id is unknown or belongs to another owner.
  if (/^dep_/.test(idOrName))
    throw new AccessError('not_found', `deployment: this owner has no deployment ${idOrName}`);
  const row: DeploymentRow = {
    id: newId('dep', nowMs),
    owner_type: owner.type,
    owner_id: owner.id,
    name: checkDeploymentName(idOrName),
    access_control: 0,
    created_at: nowMs,
    updated_at: nowMs,
    rev,
  };
  await tx.insertInto('deployments').values(row).execute();
  await touch('deployment', row.id);
  record({
    action: 'deployment.created',
    owner,
    target: { type: 'deployment', id: row.id },
    after: { name: row.name },
  });
  return toDeploymentRef(row);
}

/** Returns the owner's deployment of this name. Creates owner and deployment if missing, otherwise changes nothing. */
export async function openDeployment(
  db: Db,
  owner: OwnerName,
  name: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<DeploymentRef> {
  const ownerRef = await findOwner(db, owner);
  const found = ownerRef === undefined ? undefined : await findDeployment(db, ownerRef.id, name);
  return (
    found ??
    change(db, nowMs, options, async (context) => ensureDeployment(context, await ensureOwner(context, owner), name))
  );
}

/** Sets whether requests need a key. Takes effect once followers apply it. The key check does not read this flag. */
export async function setAccessControl(
  db: Db,
  deploymentId: string,
  isOn: boolean,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<DeploymentRef> {
  return change(db, nowMs, options, (context) => setAccessInChange(context, deploymentId, isOn));
}

/** {@link setAccessControl} inside an open change. */
export async function setAccessInChange(
  { tx, rev, nowMs, touch, record }: Change,
  deploymentId: string,
  isOn: boolean,
): Promise<DeploymentRef> {
  const row = await lockedDeployment(tx, deploymentId);
  await tx
    .updateTable('deployments')
    .set({ access_control: isOn ? 1 : 0, updated_at: nowMs, rev })
    .where('id', '=', deploymentId)
    .execute();
  await touch('deployment', row.id);
  record({
    ...recordOf(row),
    action: 'deployment.access_control',
    before: { access_control: row.access_control === 1 },
    after: { access_control: isOn },
  });
  return toDeploymentRef({ ...row, access_control: isOn ? 1 : 0 });
}

/** Deletes the deployment and its key bindings. A deployment-level key without bindings stays listed but gets 403. */
export async function deleteDeployment(
  db: Db,
  deploymentId: string,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  await change(db, nowMs, options, (context) => deleteInChange(context, deploymentId));
}

/** {@link deleteDeployment} inside an open change. */
export async function deleteInChange({ tx, rev, nowMs, touch, record }: Change, deploymentId: string): Promise<void> {
  const row = await lockedDeployment(tx, deploymentId);
  const bound = await tx
    .selectFrom('key_bindings')
    .select('key_id')
    .where('deployment_id', '=', deploymentId)
    .execute();
  for (const { key_id: keyId } of bound) {
    await tx.updateTable('api_keys').set({ rev, updated_at: nowMs }).where('id', '=', keyId).execute();
    await touch('key', keyId);
  }
  await tx.deleteFrom('key_bindings').where('deployment_id', '=', deploymentId).execute();
  await tx.deleteFrom('deployments').where('id', '=', deploymentId).execute();
  await touch('deployment', deploymentId);
  record({
    ...recordOf(row),
    action: 'deployment.deleted',
    before: { name: row.name, keys: bound.map(({ key_id: keyId }) => keyId) },
  });
}

async function lockedDeployment(tx: Tx, deploymentId: string): Promise<DeploymentRow> {
  const row = await tx.selectFrom('deployments').selectAll().where('id', '=', deploymentId).executeTakeFirst();
  if (row === undefined) throw new AccessError('not_found', `deployment: ${deploymentId} not found`);
  return row;
}

function recordOf({ id, owner_type: type, owner_id: ownerId }: DeploymentRow): Pick<ChangeRecord, 'owner' | 'target'> {
  return { owner: { type, id: ownerId }, target: { type: 'deployment', id } };
}

function toDeploymentRef({
  id,
  owner_type: ownerType,
  owner_id: ownerId,
  name,
  access_control: accessControl,
}: DeploymentRow): DeploymentRef {
  return { id, ownerType, ownerId, name, accessControl: accessControl === 1 };
}
