import type { KeyBudget, KeyLimits } from './key-values';
import type { KeyRow, KeyType, OwnerType } from './schema';

export type KeyState = 'active' | 'rotating' | 'disabled' | 'expired' | 'exhausted' | 'deleted';

/** A key as people see it: everything but its secret. Times are UTC milliseconds. */
export interface ApiKey {
  id: string;
  publicId: string;
  owner: { type: OwnerType; id: string; name: string };
  name: string;
  type: KeyType;
  /** What a deployment-level key is bound to. */
  deployments: { id: string; name: string }[];
  display: string;
  state: KeyState;
  expiresAt: number | null;
  /** Until when the secret before the last rotation passes too. */
  rotatingUntil: number | null;
  limits: KeyLimits;
  /** Networks that it may be used from; null is everywhere. */
  allowedCidrs: string[] | null;
  /** With what it used of it, as far as that is written; null is none. */
  budget: (KeyBudget & { used: number; resetsAt: number | null }) | null;
  createdBy: string | null;
  createdAt: number;
  updatedAt: number;
  lastUsedAt: number | null;
  lastUsedIp: string | null;
  rev: number;
}

/** A key whose secret exists here for the only time. */
export interface NewKey {
  key: ApiKey;
  secret: string;
  secretVersion: number;
}

/** Where several are true, the first that refuses the key. */
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

/** The key object of the management interface and of `--json`. */
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
