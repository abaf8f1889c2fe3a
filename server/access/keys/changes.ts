import type { ApiKey, NewKey } from './api-key';
import { type Change, change, type ChangeOptions } from '../store/change';
import { AccessError } from '../errors';
import { hashSecret } from '../check/hash';
import { newId } from '../../base/ids';
import { displayKey, generateKey } from '../../base/key-format';
import { demandPolicy } from './policy';
import { describeKey, findKey } from './queries';
import { limitsOf } from './rows';
import {
  checkBudget,
  checkCidrs,
  checkExpiry,
  checkGrace,
  checkLimits,
  checkName,
  checkType,
  type KeyBudget,
  type KeyLimits,
  NO_LIMITS,
} from './values';
import { checkDeploymentName, demandActiveOwner, ensureDeployment, ensureOwner, type OwnerRef } from '../owners';
import type { OwnerName } from '../owner-names';
import type { Db, KeyRow, KeyType } from '../store/schema';

export interface KeySpec {
  name: string;
  type: KeyType;
  /** An owner given by name is created if missing. An owner given by id must exist. */
  owner: OwnerName | OwnerRef;
  /**
   * Names or ids of the owner's deployments. Missing names are created. A deployment-level key needs at least one, a
   * user-level key must have none.
   */
  deployments?: readonly string[];
  /** Null means that the key never expires. */
  expiresAt?: number | null;
  limits?: Partial<KeyLimits>;
  /** Networks and addresses. Null allows every address. */
  allowedCidrs?: readonly string[] | null;
  budget?: KeyBudget | null;
  /** Default: the user who creates the key. */
  createdBy?: string | null;
}

/** Absent fields stay unchanged. */
export type KeyEdit = Partial<
  Pick<KeySpec, 'name' | 'type' | 'deployments' | 'expiresAt' | 'limits' | 'allowedCidrs' | 'budget'>
>;

type SpecColumns = Pick<
  KeyRow,
  | 'name'
  | 'type'
  | 'expires_at'
  | 'limit_rpm'
  | 'limit_tpm'
  | 'limit_parallel'
  | 'allowed_cidrs'
  | 'budget_tokens'
  | 'budget_period'
>;

/** Validates a spec without reading the database. @throws AccessError */
export function checkSpec(spec: KeySpec, nowMs: number): SpecColumns {
  const type = checkType(spec.type);
  checkDeployments(type, spec.deployments ?? []);
  return {
    name: checkName(spec.name),
    type,
    expires_at: checkExpiry(spec.expiresAt ?? null, nowMs),
    ...limitColumns(checkLimits(spec.limits ?? {})),
    ...cidrColumn(checkCidrs(spec.allowedCidrs ?? null)),
    ...budgetColumns(checkBudget(spec.budget ?? null)),
  };
}

export async function createKey(db: Db, spec: KeySpec, nowMs: number, options: ChangeOptions = {}): Promise<NewKey> {
  const values = checkSpec(spec, nowMs);
  const createdBy = spec.createdBy ?? (options.actor?.type === 'user' ? options.actor.id : null);
  const { publicId, secret } = generateKey();
  // Hash before the transaction, which holds the lock of all writers.
  const hash = await hashSecret(secret);
  return change(db, nowMs, options, async (context) => {
    const owner =
      'id' in spec.owner ? await demandActiveOwner(context.tx, spec.owner) : await ensureOwner(context, spec.owner);
    const row: KeyRow = {
      id: newId('key', nowMs),
      public_id: publicId,
      owner_type: owner.type,
      owner_id: owner.id,
      ...values,
      display: displayKey(secret),
      status: 'active',
      created_by: createdBy,
      last_used_at: null,
      last_used_ip: null,
      created_at: nowMs,
      updated_at: nowMs,
      deleted_at: null,
      deleted_by: null,
      rev: context.rev,
    };
    await demandPolicy(context.tx, row);
    await context.tx.insertInto('api_keys').values(row).execute();
    await context.tx
      .insertInto('api_key_secrets')
      .values({ key_id: row.id, version: 1, hash, valid_from: nowMs, valid_until: null })
      .execute();
    await bind(context, row, owner, spec.deployments ?? []);
    await context.touch('key', row.id);
    const key = await describeKey(context.tx, row, nowMs);
    context.record({ action: 'key.created', owner, target: { type: 'key', id: row.id }, after: auditView(key) });
    return { key, secret, secretVersion: 1 };
  });
}

export function editKey(
  db: Db,
  reference: string,
  edit: KeyEdit,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<ApiKey> {
  return changeKey(db, reference, 'key.updated', nowMs, options, async (context, row) => {
    const type = edit.type === undefined ? row.type : checkType(edit.type);
    if (edit.name !== undefined) row.name = checkName(edit.name);
    if (edit.expiresAt !== undefined) row.expires_at = checkExpiry(edit.expiresAt, nowMs);
    if (edit.limits !== undefined) Object.assign(row, limitColumns(checkLimits(edit.limits, limitsOf(row))));
    if (edit.allowedCidrs !== undefined) Object.assign(row, cidrColumn(checkCidrs(edit.allowedCidrs)));
    if (edit.budget !== undefined) Object.assign(row, budgetColumns(checkBudget(edit.budget)));
    if (type !== row.type || edit.deployments !== undefined) {
      row.type = type;
      await context.tx.deleteFrom('key_bindings').where('key_id', '=', row.id).execute();
      await bind(context, row, { type: row.owner_type, id: row.owner_id }, edit.deployments ?? []);
    }
    if (edit.expiresAt !== undefined || edit.type !== undefined) await demandPolicy(context.tx, row);
  });
}

export function setKeyEnabled(
  db: Db,
  reference: string,
  isEnabled: boolean,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<ApiKey> {
  return changeKey(db, reference, isEnabled ? 'key.enabled' : 'key.disabled', nowMs, options, (_context, row) => {
    row.status = isEnabled ? 'active' : 'disabled';
  });
}

/**
 * Gives the key a new secret. The previous secret stays valid for `graceMs`. With 0, every older secret ends at once,
 * including one in the grace period of an earlier rotation.
 */
export async function rotateKey(
  db: Db,
  reference: string,
  graceMs: number,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<NewKey> {
  checkGrace(graceMs);
  const { public_id: publicId } = await findKey(db, reference);
  const { secret } = generateKey(publicId);
  const hash = await hashSecret(secret);
  let secretVersion = 0;
  const key = await changeKey(db, publicId, 'key.rotated', nowMs, options, async ({ tx }, row) => {
    const secrets = await tx
      .selectFrom('api_key_secrets')
      .selectAll()
      .where('key_id', '=', row.id)
      .orderBy('version', 'desc')
      .execute();
    if (graceMs > 0 && secrets.some(({ valid_until: until }) => until !== null && until > nowMs)) {
      throw new AccessError(
        'conflict',
        'the key is already rotating: wait until its grace period ends, or rotate it without a grace period',
      );
    }
    const [current] = secrets;
    secretVersion = (current?.version ?? 0) + 1;
    let deletion = tx.deleteFrom('api_key_secrets').where('key_id', '=', row.id);
    if (graceMs > 0) deletion = deletion.where('version', '<', secretVersion - 1);
    await deletion.execute();
    await tx
      .updateTable('api_key_secrets')
      .set({ valid_until: nowMs + graceMs })
      .where('key_id', '=', row.id)
      .execute();
    await tx
      .insertInto('api_key_secrets')
      .values({ key_id: row.id, version: secretVersion, hash, valid_from: nowMs, valid_until: null })
      .execute();
    row.display = displayKey(secret);
  });
  return { key, secret, secretVersion };
}

/** Ends the grace period of a rotation. */
export function finishRotation(db: Db, reference: string, nowMs: number, options: ChangeOptions = {}): Promise<ApiKey> {
  return changeKey(db, reference, 'key.rotation_finished', nowMs, options, async ({ tx }, row) => {
    await tx.deleteFrom('api_key_secrets').where('key_id', '=', row.id).where('valid_until', 'is not', null).execute();
  });
}

/** Deletes a key permanently. Its row stays, without secrets and bindings. */
export function deleteKey(db: Db, reference: string, nowMs: number, options: ChangeOptions = {}): Promise<ApiKey> {
  return changeKey(db, reference, 'key.deleted', nowMs, options, (context, row) =>
    markDeleted(context, row, options.actor?.id ?? null),
  );
}

/** Deletes a user or an organization and the keys it owns. Keys of a user's organizations stay. */
export async function deleteOwner(db: Db, owner: OwnerRef, nowMs: number, options: ChangeOptions = {}): Promise<void> {
  await change(db, nowMs, options, (context) => endOwner(context, owner, options.actor?.id ?? null));
}

/** {@link deleteOwner} inside an open change. */
export async function endOwner(context: Change, { type, id }: OwnerRef, deletedBy: string | null): Promise<void> {
  const { tx, rev, nowMs, touch, record } = context;
  const { numUpdatedRows } = await tx
    .updateTable(type === 'user' ? 'users' : 'organizations')
    .set({ status: 'deleted', updated_at: nowMs, rev })
    .where('id', '=', id)
    .where('status', '=', 'active')
    .executeTakeFirst();
  if (numUpdatedRows === 0n) throw new AccessError('not_found', `owner: ${id} not found`);
  await tx
    .deleteFrom('memberships')
    .where(type === 'user' ? 'user_id' : 'org_id', '=', id)
    .execute();
  const rows = await tx
    .selectFrom('api_keys')
    .selectAll()
    .where('owner_id', '=', id)
    .where('status', '!=', 'deleted')
    .execute();
  for (const row of rows) {
    const before = auditView(await describeKey(tx, row, nowMs));
    await markDeleted(context, row, deletedBy);
    await write(context, row);
    record({ action: 'key.deleted', owner: { type, id }, target: { type: 'key', id: row.id }, before });
  }
  await touch('owner', id);
  record({ action: 'owner.deleted', owner: { type, id }, target: { type, id } });
}

/** Reads a key inside a change, lets `run` edit its row, writes the row and records `action`. */
function changeKey(
  db: Db,
  reference: string,
  action: string,
  nowMs: number,
  options: ChangeOptions,
  run: (context: Change, row: KeyRow) => Promise<void> | void,
): Promise<ApiKey> {
  const { ifRev } = options;
  return change(db, nowMs, options, async (context) => {
    const row = await findKey(context.tx, reference);
    if (ifRev !== undefined && ifRev !== row.rev)
      throw new AccessError('stale', `the key has changed: expected revision ${ifRev}, it is now ${row.rev}`);
    const before = auditView(await describeKey(context.tx, row, nowMs));
    await run(context, row);
    await write(context, row);
    const key = await describeKey(context.tx, row, nowMs);
    context.record({ action, owner: key.owner, target: { type: 'key', id: key.id }, before, after: auditView(key) });
    return key;
  });
}

/** Returns the fields of a key that the audit records. */
function auditView({
  name,
  type,
  display,
  state,
  expiresAt,
  rotatingUntil,
  limits,
  allowedCidrs,
  budget,
  deployments,
}: ApiKey): object {
  return {
    name,
    type,
    display,
    state,
    expires_at: expiresAt,
    rotating_until: rotatingUntil,
    limits,
    allowed_cidrs: allowedCidrs,
    budget: budget === null ? null : { tokens: budget.tokens, period: budget.period },
    deployments: deployments.map(({ id }) => id),
  };
}

async function write({ tx, rev, nowMs, touch }: Change, row: KeyRow): Promise<void> {
  row.rev = rev;
  row.updated_at = nowMs;
  // Omit the last use. It is written separately, and the value in `row` may be old.
  const { id, last_used_at: _at, last_used_ip: _ip, ...columns } = row;
  await tx.updateTable('api_keys').set(columns).where('id', '=', id).execute();
  await touch('key', id);
}

/** Removes secrets and bindings, and sets the deleted status in `row`. The caller writes the row. */
async function markDeleted({ tx, nowMs }: Change, row: KeyRow, deletedBy: string | null): Promise<void> {
  await tx.deleteFrom('api_key_secrets').where('key_id', '=', row.id).execute();
  await tx.deleteFrom('key_bindings').where('key_id', '=', row.id).execute();
  row.status = 'deleted';
  row.deleted_at = nowMs;
  row.deleted_by = deletedBy;
}

function checkDeployments(type: KeyType, deployments: readonly string[]): void {
  if (type === 'user-level' && deployments.length > 0)
    throw new AccessError(
      'invalid_argument',
      'deployments: expected none, because a user-level key works for all deployments of its owner',
    );
  if (type === 'deployment-level' && deployments.length === 0)
    throw new AccessError('invalid_argument', 'deployments: a deployment-level key needs one or more');
  for (const name of deployments) checkDeploymentName(name);
}

async function bind(
  context: Change,
  { id, type }: KeyRow,
  owner: OwnerRef,
  deployments: readonly string[],
): Promise<void> {
  checkDeployments(type, deployments);
  const ids = new Set<string>();
  for (const idOrName of deployments) ids.add((await ensureDeployment(context, owner, idOrName)).id);
  for (const deploymentId of ids) {
    await context.tx
      .insertInto('key_bindings')
      .values({ key_id: id, deployment_id: deploymentId, created_at: context.nowMs })
      .execute();
  }
}

function limitColumns({ rpm, tpm, parallel }: KeyLimits = NO_LIMITS): Pick<
  KeyRow,
  'limit_rpm' | 'limit_tpm' | 'limit_parallel'
> {
  return { limit_rpm: rpm, limit_tpm: tpm, limit_parallel: parallel };
}

function cidrColumn(cidrs: readonly string[] | null): Pick<KeyRow, 'allowed_cidrs'> {
  return { allowed_cidrs: cidrs === null ? null : JSON.stringify(cidrs) };
}

function budgetColumns(budget: KeyBudget | null): Pick<KeyRow, 'budget_tokens' | 'budget_period'> {
  return { budget_tokens: budget?.tokens ?? null, budget_period: budget?.period ?? null };
}
