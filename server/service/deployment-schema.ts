import type { OwnerType } from '../access/schema';
import type { ContainerState } from './container-state';
import type { DeploymentState, DesiredState } from './deployment-state';
import type { ErrorReason, VersionState } from './version-state';

export type Mount = 'input0' | 'input1' | 'input2' | 'input3' | 'input4' | 'home';
export type Strategy = 'auto' | 'surge' | 'replace';

export interface DeploymentTables {
  images: ImageRow;
  data_sources: DataSourceRow;
  data_bindings: BindingRow;
  containers: ContainerRow;
  /** Every slug that was ever given. */
  slugs: { slug: string; deployment_id: string };
  /** What the service adds to a deployment of access. */
  deployment_settings: DeploymentSettingsRow;
  deployment_versions: VersionRow;
  replicas: ReplicaRow;
  /** A whole GPU to one replica; gone with its row. */
  gpu_leases: {
    node: string;
    gpu_uuid: string;
    slot: number;
    replica_id: string;
    exclusive: 0 | 1;
    acquired_at: number;
  };
}

export interface ImageRow {
  id: string;
  name: string;
  version: string;
  type: 'builtin-runtime' | 'host-env';
  gpu_required: 0 | 1;
  default_start: string | null;
  /** Null: everybody's. */
  owner_type: OwnerType | null;
  owner_id: string | null;
  status: 'active' | 'deleted';
  created_at: number;
}

export interface DataSourceRow {
  id: string;
  owner_type: OwnerType;
  owner_id: string;
  name: string;
  description: string | null;
  type: 'dataset' | 'model' | 'workspace' | 'upload';
  /** JSON `{path}`: a folder of this machine. Never shown. */
  locator: string;
  visibility: 'private' | 'org' | 'public';
  /** What was measured last; null before. */
  size_bytes: number | null;
  num_files: number | null;
  digest: string | null;
  measure_state: 'pending' | 'measured' | 'failed' | 'cancelled';
  /** Why it failed, or what could not be known. */
  measure_message: string | null;
  measured_at: number | null;
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface BindingRow {
  id: string;
  version_id: string | null;
  container_id: string | null;
  source_id: string;
  mount: Mount;
  mode: 'ro' | 'rw' | 'copy';
  /** Of the source as it was known when this was bound. */
  source_digest: string | null;
}

export interface ContainerRow {
  id: string;
  owner_type: OwnerType;
  owner_id: string;
  name: string;
  /** JSON, see StoredSpec. */
  spec: string;
  /** JSON: name to sealed value. */
  secret_env: string;
  state: ContainerState;
  /** Why it is in error, or waits; for people. */
  reason: string | null;
  created_by: string | null;
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface DeploymentSettingsRow {
  deployment_id: string;
  slug: string;
  desired: DesiredState;
  /** As derived at the last change; what lists are filtered by, and events are made from. */
  observed: DeploymentState;
  active_version_id: string | null;
  /** Of a rollout. */
  target_version_id: string | null;
  /** Of the newest version, deleted or not. */
  last_number: number;
  was_ready: 0 | 1;
  /** How many replicas the active version is to have while it is awake. */
  wanted_replicas: number;
  min_replicas: number;
  max_replicas: number;
  idle_timeout_s: number | null;
  cold_start_wait_s: number;
  strategy: Strategy;
  /** Of the rollout that is under way, where it was asked for. */
  rollout_strategy: Strategy | null;
  prefix_cache_scope: 'key' | 'deployment';
  source_container_id: string | null;
  created_by: string | null;
}

export interface VersionRow {
  id: string;
  deployment_id: string;
  number: number;
  /** JSON, see StoredSpec; never changes. */
  spec: string;
  spec_hash: string;
  /** JSON: name to sealed value. */
  secret_env: string;
  /** Whether the copy of its home that each start copies is made. */
  home_state: 'none' | 'pending' | 'ready';
  state: VersionState;
  reason: ErrorReason | null;
  message: string | null;
  exit_code: number | null;
  num_exits: number;
  retry_at: number | null;
  queued_at: number;
  started_at: number | null;
  ready_at: number | null;
  ended_at: number | null;
  /** On its way up from zero. */
  is_waking: 0 | 1;
  /** JSON: the end of its log when it went into error. */
  last_lines: string | null;
  note: string | null;
  created_by: string | null;
  created_at: number;
}

export type ReplicaState = 'created' | 'starting' | 'ready' | 'unready' | 'exited' | 'stopping';

export interface ReplicaRow {
  id: string;
  version_id: string | null;
  container_id: string | null;
  ordinal: number;
  state: ReplicaState;
  /** Sealed. */
  secret: string;
  /** The driver's, for a later process. */
  reference: string | null;
  /** JSON. */
  address: string | null;
  memory_mb: number;
  restarts: number;
  /** JSON `{reason, message}`: it listens where nobody asks. */
  misplaced: string | null;
  retry_at: number | null;
  started_at: number | null;
  ready_at: number | null;
  unready_at: number | null;
  created_at: number;
}
