import { createHash } from 'node:crypto';
import { counted } from 'capstan/internal';
import type { DriverCapacity, Isolation } from '../driver/driver';
import type { Demand } from '../control/pool-rows';
import type { DeploymentRecord } from '../control/records';
import { refusedVariable } from './environment';
import { ServiceError } from '../store/errors';
import {
  changedRuntime,
  checkModel,
  checkRuntime,
  DEFAULT_RUNTIME,
  prefixCacheMb,
  type RuntimeOptions,
} from './runtime-options';
import type { BindingRow, ImageRow, Mount } from '../store/deployment-schema';

/** The compute resources of one replica. */
export interface Compute {
  cpu_millis: number;
  memory_mb: number;
  gpu_count: number;
  /** Null: any type. */
  gpu_type: string | null;
}

/** A data source bound to a mount point below `/platform`. */
export interface Binding {
  mount: Mount;
  source_id: string;
}

export interface BindingView extends Binding {
  source_name: string;
  mode: BindingRow['mode'];
  /** The digest of the source when it was bound. Null if it was not known then. */
  source_digest: string | null;
}

/** The JSON stored with a version or container. Bindings and secret values have their own table and column. */
export interface StoredSpec {
  image_id: string;
  image_type: ImageRow['type'];
  compute: Compute;
  env: Record<string, string>;
  start_command: string | null;
  runtime: RuntimeOptions;
  health_path: string;
  start_deadline_s: number;
  grace_s: number;
  /** Where the model from the hub is mounted. Absent for another model. */
  model_mount?: Mount;
}

/** Reads a stored spec. Those of earlier releases lack options. */
export function parseSpec(text: string): StoredSpec {
  const stored = JSON.parse(text) as StoredSpec;
  return { ...stored, runtime: { ...DEFAULT_RUNTIME, ...stored.runtime } };
}

/** The spec as shown to users. Secret variables appear in `env` with the value null. */
export interface VersionSpec extends Omit<StoredSpec, 'image_type' | 'env' | 'model_mount'> {
  bindings: BindingView[];
  env: Record<string, string | null>;
}

/** The spec fields of a request. Missing fields are inherited or have defaults, see {@link completeSpec}. */
export interface SpecRequest {
  image_id?: string;
  compute?: Partial<Compute>;
  bindings?: Binding[];
  env?: Record<string, string>;
  secret_env?: Record<string, string>;
  start_command?: string | null;
  runtime?: Partial<RuntimeOptions>;
  /** For a gated or private model from the hub. It belongs to the data source of the model, not to the version. */
  hub_token?: string | null;
  health_path?: string;
  start_deadline_s?: number;
  grace_s?: number;
}

/** A complete spec with decrypted secret values. It never leaves the store. */
export interface OpenSpec {
  stored: StoredSpec;
  bindings: Binding[];
  secrets: Record<string, string>;
}

export const DEFAULT_COMPUTE: Compute = { cpu_millis: 1_000, memory_mb: 1_024, gpu_count: 0, gpu_type: null };
const MAX_ENV_NAMES = 500;

/**
 * Returns the spec of `request`. Missing fields come from `base`, or else have their defaults.
 * @throws ServiceError `invalid_argument`
 */
export function completeSpec(
  request: SpecRequest,
  image: Pick<ImageRow, 'id' | 'type' | 'default_start' | 'gpu_required'>,
  base?: OpenSpec,
): OpenSpec {
  const bindings = request.bindings ?? base?.bindings ?? [];
  const env = request.env ?? base?.stored.env ?? {};
  const secrets = request.secret_env ?? without(base?.secrets ?? {}, request.env ?? {});
  const startCommand =
    request.start_command === undefined ? (base?.stored.start_command ?? image.default_start) : request.start_command;
  const stored: StoredSpec = {
    image_id: image.id,
    image_type: image.type,
    compute: { ...(base?.stored.compute ?? DEFAULT_COMPUTE), ...defined(request.compute ?? {}) },
    env: request.env === undefined ? without(env, secrets) : env,
    start_command: startCommand,
    runtime: changedRuntime(base?.stored.runtime ?? DEFAULT_RUNTIME, defined(request.runtime ?? {})),
    health_path: request.health_path ?? base?.stored.health_path ?? '/v1/models',
    start_deadline_s: request.start_deadline_s ?? base?.stored.start_deadline_s ?? 1_200,
    grace_s: request.grace_s ?? base?.stored.grace_s ?? 30,
  };
  checkEnv(stored.env, secrets);
  checkBindings(bindings);
  checkModel(stored.runtime, bindings);
  if (startCommand === null) {
    checkRuntime(stored.runtime, stored.compute.gpu_count);
    checkRanks(stored);
  }
  if (image.type === 'host-env' && startCommand === null)
    throw new ServiceError('invalid_argument', 'start_command: this image has no runtime: provide a start script');
  if (image.gpu_required === 1 && stored.compute.gpu_count === 0)
    throw new ServiceError('invalid_argument', 'compute.gpu_count: this image needs a GPU: expected at least 1, got 0');
  return { stored, bindings, secrets };
}

/** @throws ServiceError `invalid_argument` if this machine is too small even when nothing else runs. */
export function demandPossible({ compute }: StoredSpec, capacity: DriverCapacity, replicas: number): void {
  const { gpu_type: gpuType } = compute;
  const gpus = capacity.gpus.filter(({ type }) => gpuType === null || type === gpuType).length;
  const ofType = gpuType === null ? '' : ` of type ${gpuType}`;
  // While the GPUs are unknown, a version waits for them.
  if (capacity.gpuProblem === undefined && compute.gpu_count * replicas > gpus)
    throw new ServiceError(
      'invalid_argument',
      `compute.gpu_count: got ${compute.gpu_count} for each of ${counted(replicas, 'replica')}; this machine has ${gpus}${ofType}`,
    );
  if (compute.memory_mb * replicas > capacity.memoryMb)
    throw new ServiceError(
      'invalid_argument',
      `compute.memory_mb: got ${compute.memory_mb} for each of ${counted(replicas, 'replica')}; this machine has ${capacity.memoryMb}`,
    );
  if (compute.cpu_millis > capacity.cpuMillis)
    throw new ServiceError(
      'invalid_argument',
      `compute.cpu_millis: got ${compute.cpu_millis}; this machine has ${capacity.cpuMillis}`,
    );
}

/** Returns what a version needs of the owner's quotas. */
export function demandOf(
  { stored, bindings }: OpenSpec,
  minReplicas: number,
  /** Undefined for the first version of a deployment. */
  deployment?: DeploymentRecord,
): Demand {
  const { compute } = stored;
  const replicas = Math.max(1, minReplicas);
  return {
    gpus: compute.gpu_count * replicas,
    cpuMillis: compute.cpu_millis * replicas,
    memoryMb: compute.memory_mb * replicas,
    homeId: bindings.find(({ mount }) => mount === 'home')?.source_id,
    cacheMb: Math.max(0, prefixCacheMb(stored) - cacheMbOf(deployment)),
    isDeployment: deployment === undefined,
  };
}

/** Returns what the prefix cache of a deployment may take on the disk already. */
export function cacheMbOf(deployment: DeploymentRecord | undefined): number {
  const serving = deployment?.versions.filter(({ id }) => id === deployment.activeId || id === deployment.targetId);
  return Math.max(0, ...(serving ?? []).map((version) => version.prefixCacheMb));
}

/**
 * Checks that a start script may run on this machine, and its variables. Below level L2 nothing isolates it from the
 * service.
 * @throws ServiceError `forbidden` or `invalid_argument`
 */
export function demandIsolation({ stored, secrets }: OpenSpec, { level }: Isolation, isAllowed: boolean): void {
  const { start_command: script, env } = stored;
  for (const [name, value] of [...Object.entries(env), ...Object.entries(secrets)]) {
    const reason = refusedVariable([name, value], script, level);
    if (reason !== undefined) throw new ServiceError('invalid_argument', `env: ${name} cannot be set: ${reason}`);
  }
  if (script === null || level === 'L2' || isAllowed) return;
  throw new ServiceError(
    'forbidden',
    `start_command: replicas are not isolated on this machine (level ${level}). Start scripts need an administrator and a service started with --allow-unisolated`,
  );
}

/** Returns a digest that is equal for equal specs. Secret values are not part of it. */
export function specHash({ stored, bindings }: OpenSpec): string {
  return createHash('sha256')
    .update(JSON.stringify([sorted(stored), bindings]))
    .digest('hex');
}

export function specView(
  { image_type: _type, model_mount: _mount, env, ...rest }: StoredSpec,
  bindings: BindingView[],
  secretNames: readonly string[],
): VersionSpec {
  return { ...rest, env: { ...env, ...Object.fromEntries(secretNames.map((name) => [name, null])) }, bindings };
}

function checkEnv(env: Record<string, string>, secrets: Record<string, string>): void {
  const names = [...Object.keys(env), ...Object.keys(secrets)];
  if (names.length > MAX_ENV_NAMES)
    throw new ServiceError('invalid_argument', `env: expected at most ${MAX_ENV_NAMES} names, got ${names.length}`);
  for (const name of Object.keys(env))
    if (Object.hasOwn(secrets, name)) throw new ServiceError('invalid_argument', `env: ${name} is also in secret_env`);
  for (const value of [...Object.values(env), ...Object.values(secrets)])
    if (value.includes('\0')) throw new ServiceError('invalid_argument', 'env: a value cannot contain NUL');
}

function checkBindings(bindings: readonly Binding[]): void {
  const mounts = bindings.map(({ mount }) => mount);
  if (new Set(mounts).size < mounts.length)
    throw new ServiceError('invalid_argument', 'bindings: each mount can be bound only once');
}

function checkRanks({ compute: { gpu_count: gpus }, runtime: { tensor_parallel_size: ranks } }: StoredSpec): void {
  if (gpus > 0 && ranks !== null && ranks !== gpus)
    throw new ServiceError(
      'invalid_argument',
      `runtime.tensor_parallel_size: expected ${gpus} (compute.gpu_count) or null, got ${ranks}`,
    );
}

function defined<T extends object>(values: T): Partial<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Partial<T>;
}

function without(values: Record<string, string>, names: object): Record<string, string> {
  return Object.fromEntries(Object.entries(values).filter(([name]) => !Object.hasOwn(names, name)));
}

function sorted(value: unknown): unknown {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, inner]) => [name, sorted(inner)]),
  );
}
