import type { Binding, Compute, NewVersion, RuntimeOptions, VersionSpec } from '../../api/objects';

/** The values of the runtime options. An empty text means the default. */
export const HUBS = ['', 'modelscope'] as const;
export const DTYPES = ['', 'f32', 'f16', 'bf16'] as const;
export const QUANTIZATIONS = ['', 'none', 'int8', 'int4'] as const;
export const CACHE_DTYPES = ['', 'f32', 'f16', 'bf16', 'int8', 'fp8'] as const;

/** A specification while it is edited. Numbers are kept as text, as the user typed them. */
export interface SpecDraft {
  imageId: string;
  cores: string;
  memoryMb: string;
  gpuCount: string;
  gpuType: string;
  bindings: Binding[];
  env: EnvRow[];
  usesScript: boolean;
  startCommand: string;
  model: string;
  hub: (typeof HUBS)[number];
  /** Empty: none, or the one that the data source of the model has. */
  hubToken: string;
  servedName: string;
  /** Empty: what the model's files say. */
  task: NonNullable<RuntimeOptions['task']> | '';
  maxModelLen: string;
  dtype: (typeof DTYPES)[number];
  quantization: (typeof QUANTIZATIONS)[number];
  kvCacheDtype: (typeof CACHE_DTYPES)[number];
  kvCacheMemoryMb: string;
  maxNumSeqs: string;
  maxNumBatchedTokens: string;
  gpuMemory: string;
  tensorParallel: string;
  chatTemplate: string;
  toolCallParser: string;
  reasoningParser: string;
  prefixCaching: boolean;
  prefixCacheDiskMb: string;
  healthPath: string;
  startDeadlineS: string;
  graceS: string;
}

export interface EnvRow {
  name: string;
  /** Null for a stored secret, which the service does not return. Null leaves it unchanged. */
  value: string | null;
  isSecret: boolean;
}

/** Containers have no health check. */
export type SpecSource = Pick<VersionSpec, 'image_id' | 'compute' | 'bindings' | 'env' | 'start_command' | 'runtime'> &
  Partial<Pick<VersionSpec, 'health_path' | 'start_deadline_s' | 'grace_s'>>;

/** Whether a model is one on the hub, such as `ORG/NAME:Q4_K_M`. */
export function isHubModel(model: string): boolean {
  return /^(hf:)?[\w.-]+\/[\w.-]+([@:].*)?$/.test(model);
}

const DEFAULT_COMPUTE: Compute = { cpu_millis: 1_000, memory_mb: 1_024, gpu_count: 0, gpu_type: null };

export function emptyDraft(imageId: string): SpecDraft {
  return draftOf({
    image_id: imageId,
    compute: DEFAULT_COMPUTE,
    bindings: [],
    env: {},
    start_command: null,
    runtime: {
      model: 'demo',
      hub: null,
      served_name: null,
      task: null,
      max_model_len: null,
      dtype: null,
      quantization: null,
      kv_cache_dtype: null,
      kv_cache_memory_mb: null,
      max_num_seqs: null,
      max_num_batched_tokens: null,
      gpu_memory_utilization: null,
      tensor_parallel_size: null,
      chat_template: null,
      tool_call_parser: null,
      reasoning_parser: null,
      prefix_caching: true,
      prefix_cache_disk_mb: null,
    },
  });
}

export function draftOf({
  image_id,
  compute,
  bindings,
  env,
  start_command,
  runtime,
  health_path = '/v1/models',
  start_deadline_s = 1_200,
  grace_s = 30,
}: SpecSource): SpecDraft {
  return {
    imageId: image_id,
    cores: String(compute.cpu_millis / 1000),
    memoryMb: String(compute.memory_mb),
    gpuCount: String(compute.gpu_count),
    gpuType: compute.gpu_type ?? '',
    bindings: bindings.map(({ mount, source_id }) => ({ mount, source_id })),
    env: Object.entries(env).map(([name, value]) => ({ name, value, isSecret: value === null })),
    usesScript: start_command !== null,
    startCommand: start_command ?? '',
    model: runtime.model ?? '',
    hub: runtime.hub === 'modelscope' ? 'modelscope' : '',
    hubToken: '',
    servedName: runtime.served_name ?? '',
    task: runtime.task ?? '',
    maxModelLen: text(runtime.max_model_len),
    dtype: runtime.dtype ?? '',
    quantization: runtime.quantization ?? '',
    kvCacheDtype: runtime.kv_cache_dtype ?? '',
    kvCacheMemoryMb: text(runtime.kv_cache_memory_mb),
    maxNumSeqs: text(runtime.max_num_seqs),
    maxNumBatchedTokens: text(runtime.max_num_batched_tokens),
    gpuMemory: text(runtime.gpu_memory_utilization),
    tensorParallel: text(runtime.tensor_parallel_size),
    chatTemplate: runtime.chat_template ?? '',
    toolCallParser: runtime.tool_call_parser ?? '',
    reasoningParser: runtime.reasoning_parser ?? '',
    prefixCaching: runtime.prefix_caching,
    prefixCacheDiskMb: text(runtime.prefix_cache_disk_mb),
    healthPath: health_path,
    startDeadlineS: String(start_deadline_s),
    graceS: String(grace_s),
  };
}

function text(value: number | null): string {
  return value === null ? '' : String(value);
}

/** The error message of each invalid field. */
export type DraftProblems = Partial<Record<keyof SpecDraft, DraftProblem>>;
type DraftProblem =
  | 'spec.error.number'
  | 'spec.error.required'
  | 'spec.error.path'
  | 'spec.error.env'
  | 'spec.error.envTwice'
  | 'spec.error.binding'
  | 'spec.error.template'
  | 'spec.error.parser'
  | 'spec.error.bindingTwice'
  | 'spec.error.secret';

const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]{0,127}$/;

/** With `from`, checks the draft as a change of that draft. */
export function problemsOf(draft: SpecDraft, from?: SpecDraft): DraftProblems {
  const problems: DraftProblems = {};
  const check = (field: keyof SpecDraft, isValid: boolean, message: DraftProblem) => {
    if (!isValid) problems[field] ??= message;
  };
  check('imageId', draft.imageId !== '', 'spec.error.required');
  check('cores', isWithin(Number(draft.cores) * 1000, 100, 1_024_000), 'spec.error.number');
  check('memoryMb', isInteger(draft.memoryMb, 64, 67_108_864), 'spec.error.number');
  check('gpuCount', isInteger(draft.gpuCount, 0, 64), 'spec.error.number');
  check('startCommand', !draft.usesScript || draft.startCommand.trim() !== '', 'spec.error.required');
  check(
    'maxModelLen',
    draft.maxModelLen === '' || isInteger(draft.maxModelLen, 1, Number.MAX_SAFE_INTEGER),
    'spec.error.number',
  );
  check(
    'gpuMemory',
    draft.gpuMemory === '' || (Number(draft.gpuMemory) > 0 && Number(draft.gpuMemory) <= 1),
    'spec.error.number',
  );
  check('tensorParallel', draft.tensorParallel === '' || isInteger(draft.tensorParallel, 1, 64), 'spec.error.number');
  const isCount = (value: string, max: number) => value === '' || isInteger(value, 1, max);
  check('kvCacheMemoryMb', isCount(draft.kvCacheMemoryMb, 67_108_864), 'spec.error.number');
  check('prefixCacheDiskMb', !draft.prefixCaching || isCount(draft.prefixCacheDiskMb, 67_108_864), 'spec.error.number');
  check('maxNumSeqs', isCount(draft.maxNumSeqs, 65_536), 'spec.error.number');
  check('maxNumBatchedTokens', isCount(draft.maxNumBatchedTokens, 16_777_216), 'spec.error.number');
  check('chatTemplate', draft.chatTemplate === '' || /[{\n]/.test(draft.chatTemplate), 'spec.error.template');
  for (const field of ['toolCallParser', 'reasoningParser'] as const)
    check(field, /^[a-z0-9_]{0,64}$/.test(draft[field]), 'spec.error.parser');
  check('healthPath', /^\/[!-~]*$/.test(draft.healthPath), 'spec.error.path');
  check('startDeadlineS', isInteger(draft.startDeadlineS, 1, 86_400), 'spec.error.number');
  check('graceS', isInteger(draft.graceS, 0, 3_600), 'spec.error.number');
  check(
    'env',
    draft.env.every(({ name }) => ENV_NAME.test(name)),
    'spec.error.env',
  );
  check('env', new Set(draft.env.map(({ name }) => name)).size === draft.env.length, 'spec.error.envTwice');
  check('env', !changesSecrets(draft, from) || draft.env.every(({ value }) => value !== null), 'spec.error.secret');
  check(
    'bindings',
    draft.bindings.every(({ source_id }) => source_id !== ''),
    'spec.error.binding',
  );
  check(
    'bindings',
    new Set(draft.bindings.map(({ mount }) => mount)).size === draft.bindings.length,
    'spec.error.bindingTwice',
  );
  return problems;
}

function isInteger(value: string, min: number, max: number): boolean {
  return /^\d+$/.test(value) && isWithin(Number(value), min, max);
}

function isWithin(value: number, min: number, max: number): boolean {
  return Number.isFinite(value) && value >= min && value <= max;
}

type SpecRequest = Omit<NewVersion, 'note' | 'strategy'>;

/**
 * The request for a draft. With `from`, it contains only the differences, and the service inherits the rest. Stored
 * secrets can only be inherited, because the service does not return them.
 */
export function toRequest(
  draft: SpecDraft,
  from?: SpecDraft,
  { withHealth = true }: { withHealth?: boolean } = {},
): SpecRequest {
  const full = fullRequest(draft, withHealth);
  if (from === undefined) return { ...full, ...envRequest(draft) };
  const before = fullRequest(from, withHealth);
  const changed = Object.fromEntries(
    Object.entries(full).filter(
      ([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name as keyof SpecRequest]),
    ),
  );
  return { ...changed, ...(JSON.stringify(draft.env) === JSON.stringify(from.env) ? {} : envRequest(draft, from)) };
}

/** Sends all plain variables, and all secrets if any secret changed. */
function envRequest(draft: SpecDraft, from?: SpecDraft): Pick<SpecRequest, 'env' | 'secret_env'> {
  const valuesOf = (isSecret: boolean) =>
    Object.fromEntries(
      draft.env
        .filter((row) => row.isSecret === isSecret && row.value !== null)
        .map(({ name, value }) => [name, value as string]),
    );
  return { env: valuesOf(false), ...(changesSecrets(draft, from) ? { secret_env: valuesOf(true) } : {}) };
}

/** The service replaces all secrets at once. If one changes, the request needs the values of all others. */
function changesSecrets(draft: SpecDraft, from?: SpecDraft): boolean {
  const secrets = (rows: readonly EnvRow[]) => JSON.stringify(rows.filter(({ isSecret }) => isSecret));
  return secrets(draft.env) !== secrets(from?.env ?? []);
}

function fullRequest(draft: SpecDraft, withHealth: boolean): SpecRequest {
  return {
    image_id: draft.imageId,
    compute: {
      cpu_millis: Math.round(Number(draft.cores) * 1000),
      memory_mb: Number(draft.memoryMb),
      gpu_count: Number(draft.gpuCount),
      gpu_type: draft.gpuType === '' || draft.gpuCount === '0' ? null : draft.gpuType,
    },
    bindings: draft.bindings,
    start_command: draft.usesScript ? draft.startCommand : null,
    runtime: toRuntime(draft),
    ...(withHealth && sendsToken(draft) ? { hub_token: draft.hubToken.trim() } : {}),
    ...(withHealth
      ? { health_path: draft.healthPath, start_deadline_s: Number(draft.startDeadlineS), grace_s: Number(draft.graceS) }
      : {}),
  };
}

function sendsToken({ hubToken, model, usesScript }: SpecDraft): boolean {
  return hubToken.trim() !== '' && isHubModel(model) && !usesScript;
}

function toRuntime(draft: SpecDraft): RuntimeOptions {
  const number = (value: string) => (value === '' ? null : Number(value));
  const option = <V extends string>(value: V) => (value === '' ? null : (value as Exclude<V, ''>));
  return {
    model: option(draft.model),
    hub: isHubModel(draft.model) ? option(draft.hub) : null,
    served_name: option(draft.servedName),
    task: option(draft.task),
    max_model_len: number(draft.maxModelLen),
    dtype: option(draft.dtype),
    quantization: option(draft.quantization),
    kv_cache_dtype: option(draft.kvCacheDtype),
    kv_cache_memory_mb: number(draft.kvCacheMemoryMb),
    max_num_seqs: number(draft.maxNumSeqs),
    max_num_batched_tokens: number(draft.maxNumBatchedTokens),
    gpu_memory_utilization: number(draft.gpuMemory),
    tensor_parallel_size: number(draft.tensorParallel),
    chat_template: option(draft.chatTemplate),
    tool_call_parser: option(draft.toolCallParser),
    reasoning_parser: option(draft.reasoningParser),
    prefix_caching: draft.prefixCaching,
    prefix_cache_disk_mb: draft.prefixCaching ? number(draft.prefixCacheDiskMb) : null,
  };
}
