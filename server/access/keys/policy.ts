import { type Change, change, type ChangeOptions } from '../store/change';
import { AccessError } from '../errors';
import { KEY_TYPES } from './values';
import type { Db, KeyRow, KeyType, Tx } from '../store/schema';

/** Rules of an organization for its keys. Existing keys are not affected until their expiry or type is edited. */
export interface KeyPolicy {
  /** Maximum time from creation to expiry. Null means no limit. */
  maxLifetimeMs: number | null;
  requireExpiry: boolean;
  /** At least one. */
  allowedTypes: readonly KeyType[];
}

/** Sets the policy of an organization. Null removes it. */
export async function setKeyPolicy(
  db: Db,
  orgId: string,
  policy: KeyPolicy | null,
  nowMs: number,
  options: ChangeOptions = {},
): Promise<void> {
  await change(db, nowMs, options, (context) => writeKeyPolicy(context, orgId, policy));
}

/** {@link setKeyPolicy} inside an open change. */
export async function writeKeyPolicy(
  { tx, rev, nowMs, touch, record }: Change,
  orgId: string,
  policy: KeyPolicy | null,
): Promise<void> {
  if (policy !== null) checkPolicy(policy);
  const before = await readKeyPolicy(tx, orgId);
  await tx
    .updateTable('organizations')
    .set({ key_policy: policy === null ? null : JSON.stringify(policy), updated_at: nowMs, rev })
    .where('id', '=', orgId)
    .execute();
  await touch('owner', orgId);
  const org = { type: 'org', id: orgId } as const;
  record({ action: 'owner.key_policy', owner: org, target: org, before: { policy: before }, after: { policy } });
}

export async function readKeyPolicy(db: Db | Tx, orgId: string): Promise<KeyPolicy | null> {
  const row = await db
    .selectFrom('organizations')
    .select('key_policy')
    .where('id', '=', orgId)
    .where('status', '=', 'active')
    .executeTakeFirst();
  if (row === undefined) throw new AccessError('not_found', `owner: organization ${orgId} not found`);
  return row.key_policy === null ? null : (JSON.parse(row.key_policy) as KeyPolicy);
}

/** @throws AccessError `forbidden` if the policy of the key's organization does not allow the key. */
export async function demandPolicy(
  tx: Tx,
  { owner_type: ownerType, owner_id: ownerId, type, expires_at: expiresAt, created_at: createdAt }: KeyRow,
): Promise<void> {
  const policy = ownerType === 'org' ? await readKeyPolicy(tx, ownerId) : null;
  if (policy === null) return;
  const { maxLifetimeMs, requireExpiry, allowedTypes } = policy;
  if (!allowedTypes.includes(type))
    throw new AccessError('forbidden', `type: the organization allows only ${allowedTypes.join(' and ')} keys`);
  if (expiresAt === null && (requireExpiry || maxLifetimeMs !== null))
    throw new AccessError('forbidden', 'expires: the organization requires an expiry');
  if (maxLifetimeMs !== null && expiresAt !== null && expiresAt > createdAt + maxLifetimeMs) {
    throw new AccessError(
      'forbidden',
      `expires: the organization allows no expiry after ${new Date(createdAt + maxLifetimeMs).toISOString()}`,
    );
  }
}

function checkPolicy({ maxLifetimeMs, requireExpiry, allowedTypes }: KeyPolicy): void {
  if (maxLifetimeMs !== null && !(Number.isSafeInteger(maxLifetimeMs) && maxLifetimeMs >= 1))
    throw new AccessError('invalid_argument', 'max_lifetime: expected 1 millisecond or more, or none');
  if (typeof requireExpiry !== 'boolean')
    throw new AccessError('invalid_argument', 'require_expiry: expected true or false');
  if (
    !Array.isArray(allowedTypes) ||
    allowedTypes.length === 0 ||
    !allowedTypes.every((type: KeyType) => KEY_TYPES.includes(type))
  ) {
    throw new AccessError('invalid_argument', `allowed_types: expected one or more of ${KEY_TYPES.join(', ')}`);
  }
}
