import type { KeyBudget, KeyLimits } from './values';
import type { KeyRow, KeyType, OwnerType } from '../store/schema';

export type KeyState = 'active' | 'rotating' | 'disabled' | 'expired' | 'exhausted' | 'deleted';

/** A key without its secret, as users see it. Times are UTC milliseconds. */
export interface ApiKey {
  id: string;
  publicId: string;
  owner: { type: OwnerType; id: string; name: string };
  name: string;
  type: KeyType;
  /** The deployments that a deployment-level key is bound to. */
  deployments: { id: string; name: string }[];
  display: string;
  state: KeyState;
  expiresAt: number | null;
  /** End of the grace period in which the previous secret is also valid. */
  rotatingUntil: number | null;
  limits: KeyLimits;
  /** Networks that may use the key. Null allows every address. */
  allowedCidrs: string[] | null;
  /** The budget, and the tokens used according to the database. Null means no budget. */
  budget: (KeyBudget & { used: number; resetsAt: number | null }) | null;
  createdBy: string | null;
  createdAt: number;
  updatedAt: number;
  lastUsedAt: number | null;
  lastUsedIp: string | null;
  rev: number;
}

/** A new key with its secret, which is not stored and cannot be read again. */
export interface NewKey {
  key: ApiKey;
  secret: string;
  secretVersion: number;
}

/** Returns the state of a key. If several apply, one that refuses the key takes precedence. */
export function keyState(
  { status, expires_at: expiresAt }: Pick<KeyRow, 'status' | 'expires_at'>,
  rotatingUntil: number | null,
  isExhausted: boolean,
  nowMs: number,
): KeyState {
  if (status !== 'active') return status;
  if (expiresAt !== null && expiresAt <= nowMs) return 'expired';
  if (isExhausted) return 'exhausted';
  return rotatingUntil === null ? 'active' : 'rotating';
}

/** Returns the key object of the management API and of `--json`. */
export function keyJson(key: ApiKey, secret?: string): Record<string, unknown> {
  return {
    id: key.id,
    public_id: key.publicId,
    name: key.name,
    type: key.type,
    owner: key.owner,
    deployments: key.deployments,
    display: key.display,
    state: key.state,
    expires_at: time(key.expiresAt),
    rotating_until: time(key.rotatingUntil),
    limits: key.limits,
    allowed_cidrs: key.allowedCidrs,
    budget:
      key.budget === null
        ? null
        : {
            tokens: key.budget.tokens,
            period: key.budget.period,
            used: key.budget.used,
            resets_at: time(key.budget.resetsAt),
          },
    created_by: key.createdBy,
    created_at: time(key.createdAt),
    updated_at: time(key.updatedAt),
    last_used_at: time(key.lastUsedAt),
    last_used_ip: key.lastUsedIp,
    rev: key.rev,
    ...(secret === undefined ? {} : { secret }),
  };
}

function time(ms: number | null): string | null {
  return ms === null ? null : new Date(ms).toISOString();
}
