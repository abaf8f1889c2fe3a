import { createHash } from 'node:crypto';
import type { Binding, BindingView, Compute, NewVersion, RuntimeOptions, VersionSpec } from '../api/objects';
import type { DriverCapacity, Isolation } from '../driver/driver';
import { ServiceError } from './errors';
import type { ImageRow } from './deployment-schema';

/** What is stored of a version or a container: all but its bindings and its secret values, which have tables and columns of their own. */
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
}

/** What a request says of a spec. */
export type SpecWish = Pick<
  NewVersion,
  | 'image_id'
  | 'compute'
  | 'bindings'
  | 'env'
  | 'secret_env'
  | 'start_command'
  | 'runtime'
  | 'health_path'
  | 'start_deadline_s'
  | 'grace_s'
>;

/** A spec with what belongs to it, its secrets in the open: inside the store alone. */
export interface OpenSpec {
  stored: StoredSpec;
  bindings: Binding[];
  secrets: Record<string, string>;
}

export const DEFAULT_RUNTIME: RuntimeOptions = {
  model: null,
  served_name: null,
  max_model_len: null,
  gpu_memory_utilization: null,
  tensor_parallel_size: null,
  prefix_caching: true,
};
export const DEFAULT_COMPUTE: Compute = { cpu_millis: 1_000, memory_mb: 1_024, gpu_count: 0, gpu_type: null };
const RESERVED_ENV = /^(PLATFORM_|CAPSTAN_)/;
const MODEL_PATH = /^\/platform\/(input\/(input[0-4])|home)(\/|$)/;
const MAX_ENV_NAMES = 500;

/** The wish, and for what it leaves out that which it is made from, else the defaults. @throws ServiceError */
export function completeSpec(
  wish: SpecWish,
  image: Pick<ImageRow, 'id' | 'type' | 'default_start' | 'gpu_required'>,
  base?: OpenSpec,
): OpenSpec {
  const bindings = wish.bindings ?? base?.bindings ?? [];
  const env = wish.env ?? base?.stored.env ?? {};
  const secrets = wish.secret_env ?? without(base?.secrets ?? {}, wish.env ?? {});
  const startCommand =
    wish.start_command === undefined ? (base?.stored.start_command ?? image.default_start) : wish.start_command;
  const stored: StoredSpec = {
    image_id: image.id,
    image_type: image.type,
    compute: { ...(base?.stored.compute ?? DEFAULT_COMPUTE), ...defined(wish.compute ?? {}) },
    env: wish.env === undefined ? without(env, secrets) : env,
    start_command: startCommand,
    runtime: { ...(base?.stored.runtime ?? DEFAULT_RUNTIME), ...defined(wish.runtime ?? {}) },
    health_path: wish.health_path ?? base?.stored.health_path ?? '/v1/models',
    start_deadline_s: wish.start_deadline_s ?? base?.stored.start_deadline_s ?? 1_200,
    grace_s: wish.grace_s ?? base?.stored.grace_s ?? 30,
  };
  checkEnv(stored.env, secrets);
  checkBindings(bindings);
  checkModel(stored.runtime.model, bindings);
  if (startCommand === null) checkRanks(stored);
  if (image.type === 'host-env' && startCommand === null)
    throw new ServiceError('invalid_argument', 'start_command: this image runs nothing by itself: give a start script');
  if (image.gpu_required === 1 && stored.compute.gpu_count === 0)
    throw new ServiceError('invalid_argument', 'compute.gpu_count: this image needs a GPU');
  return { stored, bindings, secrets };
}

/** Whether this machine could ever run it. @throws ServiceError */
export function demandPossible({ compute }: StoredSpec, capacity: DriverCapacity, replicas: number): void {
  const gpus = capacity.gpus.filter(({ type }) => compute.gpu_type === null || type === compute.gpu_type).length;
  if (compute.gpu_count * replicas > gpus)
    throw new ServiceError(
      'invalid_argument',
      `compute.gpu_count: ${compute.gpu_count} for each of ${replicas} replicas; this machine has ${gpus}${compute.gpu_type === null ? '' : ` of type ${compute.gpu_type}`}`,
    );
  if (compute.memory_mb * replicas > capacity.memoryMb)
    throw new ServiceError(
      'invalid_argument',
      `compute.memory_mb: ${compute.memory_mb} for each of ${replicas} replicas; this machine has ${capacity.memoryMb}`,
    );
  if (compute.cpu_millis > capacity.cpuMillis)
    throw new ServiceError(
      'invalid_argument',
      `compute.cpu_millis: ${compute.cpu_millis}; this machine has ${capacity.cpuMillis}`,
    );
}

/** A start script shares the machine with the service where there are no namespaces. @throws ServiceError */
export function demandIsolation({ start_command: script }: StoredSpec, { level }: Isolation, isAllowed: boolean): void {
  if (script === null || level === 'L2' || isAllowed) return;
  throw new ServiceError(
    'forbidden',
    `start_command: replicas are not isolated here (level ${level}): a start script needs an administrator and a service that was started with --allow-unisolated`,
  );
}

/** The same words for the same spec. */
export function specHash({ stored, bindings }: OpenSpec): string {
  return createHash('sha256')
    .update(JSON.stringify([sorted(stored), bindings]))
    .digest('hex');
}

/** What is shown: secret values as null. */
export function specView(
  { image_type: _type, env, ...rest }: StoredSpec,
  bindings: BindingView[],
  secretNames: readonly string[],
): VersionSpec {
  return { ...rest, env: { ...env, ...Object.fromEntries(secretNames.map((name) => [name, null])) }, bindings };
}

/** For `capstan serve`. */
export function runtimeArgs({ runtime, compute }: StoredSpec): string[] {
  const {
    model,
    served_name: name,
    max_model_len: length,
    gpu_memory_utilization: utilization,
    tensor_parallel_size: ranks,
    prefix_caching: caches,
  } = runtime;
  return [
    model ?? 'demo',
    ...(name === null ? [] : ['--served-model-name', name]),
    ...(length === null ? [] : ['--max-model-len', String(length)]),
    ...(utilization === null ? [] : ['--gpu-memory-utilization', String(utilization)]),
    ...(ranks === null ? [] : ['--tensor-parallel-size', String(ranks)]),
    ...(caches ? [] : ['--no-enable-prefix-caching']),
    // A replica sees its own GPUs alone, numbered from 0.
    '--device',
    compute.gpu_count === 0 ? 'cpu' : `cuda:${[...Array(compute.gpu_count).keys()].join(',')}`,
  ];
}

function checkEnv(env: Record<string, string>, secrets: Record<string, string>): void {
  const names = [...Object.keys(env), ...Object.keys(secrets)];
  if (names.length > MAX_ENV_NAMES)
    throw new ServiceError('invalid_argument', `env: expected at most ${MAX_ENV_NAMES} names, got ${names.length}`);
  for (const name of names)
    if (RESERVED_ENV.test(name))
      throw new ServiceError('invalid_argument', `env: ${name} is set by the service itself`);
  for (const name of Object.keys(env))
    if (name in secrets) throw new ServiceError('invalid_argument', `env: ${name} is among the secret ones too`);
  for (const value of [...Object.values(env), ...Object.values(secrets)])
    if (value.includes('\0')) throw new ServiceError('invalid_argument', 'env: a value cannot hold a NUL');
}

function checkBindings(bindings: readonly Binding[]): void {
  const mounts = bindings.map(({ mount }) => mount);
  if (new Set(mounts).size < mounts.length)
    throw new ServiceError('invalid_argument', 'bindings: each mount can be bound once');
}

function checkModel(model: string | null, bindings: readonly Binding[]): void {
  if (model === null || model === 'demo') return;
  const [, , input] = MODEL_PATH.exec(model) ?? [];
  if (!MODEL_PATH.test(model) || model.split('/').includes('..'))
    throw new ServiceError(
      'invalid_argument',
      'runtime.model: expected demo, or a folder below /platform/input/input0 … input4 or /platform/home',
    );
  if (input !== undefined && !bindings.some(({ mount }) => mount === input))
    throw new ServiceError('invalid_argument', `runtime.model: nothing is bound to ${input}`);
}

function checkRanks({ compute: { gpu_count: gpus }, runtime: { tensor_parallel_size: ranks } }: StoredSpec): void {
  if (gpus > 0 && ranks !== null && ranks !== gpus)
    throw new ServiceError(
      'invalid_argument',
      `runtime.tensor_parallel_size: expected ${gpus}, which compute.gpu_count is, or null, got ${ranks}`,
    );
}

function defined<T extends object>(values: T): Partial<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Partial<T>;
}

function without(values: Record<string, string>, names: object): Record<string, string> {
  return Object.fromEntries(Object.entries(values).filter(([name]) => !(name in names)));
}

function sorted(value: unknown): unknown {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, inner]) => [name, sorted(inner)]),
  );
}
