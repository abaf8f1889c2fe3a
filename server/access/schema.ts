import type { Kysely, Transaction } from 'kysely';

/** Times are UTC milliseconds; flags are 0 and 1; `rev` is the revision that last changed the row. */
export interface AccessTables {
  users: OwnerRow;
  organizations: OwnerRow;
  memberships: { org_id: string; user_id: string; role: MemberRole; created_at: number };
  deployments: DeploymentRow;
  api_keys: KeyRow;
  api_key_secrets: SecretRow;
  key_bindings: { key_id: string; deployment_id: string; created_at: number };
  auth_revisions: { rev: number; entity: RevisionEntity; entity_id: string; at: number };
  /** One row. Every change increments `rev` first, which also makes writers wait for one another. */
  auth_state: { id: 1; rev: number; epoch: string };
  schema_versions: { component: string; version: number };
}

export type OwnerType = 'user' | 'org';
export type MemberRole = 'owner' | 'admin' | 'developer' | 'viewer';
export type KeyType = 'user-level' | 'deployment-level';
export type RevisionEntity = 'key' | 'deployment' | 'owner';

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
  /** A deleted key stays as a tombstone without secrets. */
  status: 'active' | 'disabled' | 'deleted';
  expires_at: number | null;
  limit_rpm: number | null;
  limit_tpm: number | null;
  limit_parallel: number | null;
  created_by: string | null;
  last_used_at: number | null;
  last_used_ip: string | null;
  created_at: number;
  updated_at: number;
  deleted_at: number | null;
  rev: number;
}

export interface SecretRow {
  key_id: string;
  version: number;
  /** An argon2id string. */
  hash: string;
  valid_from: number;
  /** Set when a rotation gave the key a newer secret. */
  valid_until: number | null;
}

export type Db = Kysely<AccessTables>;
export type Tx = Transaction<AccessTables>;
