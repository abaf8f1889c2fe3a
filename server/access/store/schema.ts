import type { Generated, Kysely, Transaction } from 'kysely';

/** Times are UTC milliseconds. Flags are 0 or 1. `rev` is the revision that last changed the row. */
export interface AccessTables {
  users: OwnerRow;
  /** `key_policy` is a JSON object, or null. */
  organizations: OwnerRow & { key_policy: string | null };
  memberships: { org_id: string; user_id: string; role: MemberRole; created_at: number };
  deployments: DeploymentRow;
  api_keys: KeyRow;
  api_key_secrets: SecretRow;
  key_bindings: { key_id: string; deployment_id: string; created_at: number };
  /** Usage per key and UTC day (days since 1970). Written in batches, without a revision. */
  key_usage: { key_id: string; day: number; requests: number; tokens: number };
  auth_revisions: { rev: number; entity: RevisionEntity; entity_id: string; at: number };
  /** One row. Every change increments `rev` first, which serializes all writers. */
  auth_state: {
    id: 1;
    rev: number;
    epoch: string;
    /** Revisions up to this one are deleted from the feed. */
    pruned_rev: Generated<number>;
    event_seq: Generated<number>;
    audit_seq: Generated<number>;
    /** Hash of the last audit row. */
    audit_hash: Generated<string>;
  };
  gateway_heartbeats: { gateway_id: string; applied_rev: number; seen_at: number; version: string };
  events: EventRow;
  /** Append only: triggers refuse updates and deletes. */
  audit_events: AuditRow;
  schema_versions: { component: string; version: number };
}

export type OwnerType = 'user' | 'org';
export type MemberRole = 'owner' | 'admin' | 'developer' | 'viewer';
export type KeyType = 'user-level' | 'deployment-level';
export type BudgetPeriod = 'day' | 'week' | 'month' | 'total';
export type RevisionEntity = 'key' | 'deployment' | 'owner';
export type ActorType = 'user' | 'key' | 'system';
export type TargetType =
  | 'key'
  | 'deployment'
  | 'user'
  | 'org'
  | 'container'
  | 'image'
  | 'source'
  | 'token'
  | 'webhook'
  | 'provider'
  | 'price'
  | 'budget';

export interface OwnerRow {
  id: string;
  name: string;
  status: 'active' | 'deleted';
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface DeploymentRow {
  id: string;
  owner_type: OwnerType;
  owner_id: string;
  name: string;
  access_control: 0 | 1;
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface KeyRow {
  id: string;
  public_id: string;
  owner_type: OwnerType;
  owner_id: string;
  name: string;
  type: KeyType;
  display: string;
  /** A deleted key keeps its row, without secrets. */
  status: 'active' | 'disabled' | 'deleted';
  expires_at: number | null;
  limit_rpm: number | null;
  limit_tpm: number | null;
  limit_parallel: number | null;
  /** A JSON array of networks. Null allows every address. */
  allowed_cidrs: string | null;
  budget_tokens: number | null;
  budget_period: BudgetPeriod | null;
  created_by: string | null;
  last_used_at: number | null;
  last_used_ip: string | null;
  created_at: number;
  updated_at: number;
  deleted_at: number | null;
  deleted_by: string | null;
  rev: number;
}

export interface SecretRow {
  key_id: string;
  version: number;
  /** An argon2id string. */
  hash: string;
  valid_from: number;
  /** Set when a rotation adds a newer secret. */
  valid_until: number | null;
}

export interface EventRow {
  seq: number;
  at: number;
  /** For example `key.created`. */
  type: string;
  owner_id: string;
  target_type: TargetType;
  target_id: string;
  /** A JSON object. */
  data: string;
}

export interface AuditRow {
  seq: number;
  id: string;
  at: number;
  actor_type: ActorType;
  actor_id: string;
  org_id: string | null;
  action: string;
  target_type: TargetType;
  target_id: string;
  ip: string | null;
  user_agent: string | null;
  /** JSON objects without secrets. */
  before: string | null;
  after: string | null;
  result: 'ok' | 'denied' | 'error';
  prev_hash: string;
  hash: string;
}

export type Db = Kysely<AccessTables>;
export type Tx = Transaction<AccessTables>;
