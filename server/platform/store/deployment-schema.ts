import type { OwnerType } from 'capstan/internal';
import type { ContainerState } from '../deployments/container-state';
import type { DeploymentState, DesiredState } from '../deployments/deployment-state';
import type { ErrorReason, VersionState } from '../deployments/version-state';

export type Mount = 'input0' | 'input1' | 'input2' | 'input3' | 'input4' | 'home';
export type Strategy = 'auto' | 'surge' | 'replace';

export interface DeploymentTables {
  images: ImageRow;
  data_sources: DataSourceRow;
  data_pulls: DataPullRow;
  data_bindings: BindingRow;
  containers: ContainerRow;
  /** All slugs ever assigned. */
  slugs: { slug: string; deployment_id: string };
  /** The service's columns of a row in `deployments`, which belongs to access. */
  deployment_settings: DeploymentSettingsRow;
  deployment_versions: VersionRow;
  replicas: ReplicaRow;
  /** One row. See `Lease`. */
  control_lease: { id: 1; holder: string | null; epoch: number; expires_at: number };
  /** Leases a whole GPU to a replica. Deleted with the replica's row. */
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
  /** Null: available to all users. */
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
  /** JSON `{path}`: a folder of this machine. Shown only to administrators. */
  locator: string;
  visibility: 'private' | 'org' | 'public';
  /** The result of the last measurement. Null before the first one. */
  size_bytes: number | null;
  num_files: number | null;
  digest: string | null;
  measure_state: 'pending' | 'measured' | 'failed' | 'cancelled';
  /** Why the measurement failed, or why there is no digest. */
  measure_message: string | null;
  measured_at: number | null;
  created_at: number;
  updated_at: number;
  rev: number;
}

/** `pending`: waits for its turn, or for the service to start again. */
export const PULL_STATES = ['pending', 'running', 'done', 'failed', 'cancelled'] as const;
export type PullState = (typeof PULL_STATES)[number];

/** The hub's model that fills a data source. Deleted with the source. */
export interface DataPullRow {
  source_id: string;
  hub: 'huggingface' | 'modelscope';
  /** `ORG/NAME[@revision][:quantization or file]` */
  model: string;
  /** Encrypted. */
  token: string | null;
  state: PullState;
  /** Counts the requests, so that a late result of an earlier one changes nothing. */
  attempt: number;
  /** Whether the folder holds a complete model. */
  is_filled: 0 | 1;
  /** Why it failed. */
  error_code: string | null;
  message: string | null;
  /** What the user should know about the model, such as that this version cannot run it. */
  note: string | null;
  commit_id: string | null;
  format: string | null;
  quantization: string | null;
  done_bytes: number;
  /** Null until the hub has listed the files. */
  total_bytes: number | null;
  bytes_per_second: number | null;
  requested_by: string | null;
  requested_at: number;
  ended_at: number | null;
}

export interface BindingRow {
  id: string;
  version_id: string | null;
  container_id: string | null;
  source_id: string;
  mount: Mount;
  mode: 'ro' | 'rw' | 'copy';
  /** The digest of the source when it was bound. */
  source_digest: string | null;
}

export interface ContainerRow {
  id: string;
  owner_type: OwnerType;
  owner_id: string;
  name: string;
  /** JSON of StoredSpec. */
  spec: string;
  /** JSON object of encrypted values by name. */
  secret_env: string;
  state: ContainerState;
  /** Why it failed or waits, shown to users. */
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
  /** The observed state, derived at the last change. */
  observed: DeploymentState;
  active_version_id: string | null;
  /** The version being rolled out. */
  target_version_id: string | null;
  /** The number of the newest version, deleted or not. */
  last_number: number;
  was_ready: 0 | 1;
  /** The desired replicas of the active version while it is not scaled to zero. */
  wanted_replicas: number;
  min_replicas: number;
  max_replicas: number;
  idle_timeout_s: number | null;
  cold_start_wait_s: number;
  strategy: Strategy;
  /** Overrides `strategy` for the current roll-out. */
  rollout_strategy: Strategy | null;
  prefix_cache_scope: 'key' | 'deployment';
  source_container_id: string | null;
  created_by: string | null;
}

export interface VersionRow {
  id: string;
  deployment_id: string;
  number: number;
  /** JSON of StoredSpec. Never changes. */
  spec: string;
  spec_hash: string;
  /** JSON object of encrypted values by name. */
  secret_env: string;
  /** Whether its home has been copied to the data directory. */
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
  /** Whether it is starting from zero replicas. */
  is_waking: 0 | 1;
  /** JSON array: the end of its log when it failed. */
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
  /** Id of the service that runs it. Null: made before services had one. */
  node: string | null;
  ordinal: number;
  state: ReplicaState;
  /** Encrypted. */
  secret: string;
  /** The driver's reference, by which a later process adopts the replica. */
  reference: string | null;
  /** JSON. */
  address: string | null;
  cpu_millis: number;
  memory_mb: number;
  restarts: number;
  /** JSON `{reason, message}`: the process listens on the wrong address, or its health check fails. */
  misplaced: string | null;
  /** Whether no process of an exited replica is left. */
  is_gone: 0 | 1;
  retry_at: number | null;
  started_at: number | null;
  ready_at: number | null;
  unready_at: number | null;
  created_at: number;
}
