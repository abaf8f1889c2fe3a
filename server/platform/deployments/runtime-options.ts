import { CapstanError, findReasoningFormat, findToolCallFormat, type HubKind, parseHubName } from 'capstan/internal';
import type { BindingRow, Mount } from '../store/deployment-schema';
import type { ModelTask } from './model-task';
import { ServiceError } from '../store/errors';

/** Options of the built-in runtime. A start script ignores them. Null: the default of `capstan serve`. */
export interface RuntimeOptions {
  /** `demo` (also null) is the embedded model, `ORG/NAME…` one of the hub. Otherwise a path below `/platform`. */
  model: string | null;
  /** Where a model from the hub comes from. */
  hub: HubKind | null;
  served_name: string | null;
  /** What the model does. */
  task: ModelTask | null;
  max_model_len: number | null;
  dtype: 'f32' | 'f16' | 'bf16' | null;
  quantization: 'none' | 'int8' | 'int4' | null;
  kv_cache_dtype: 'f32' | 'f16' | 'bf16' | 'int8' | 'fp8' | null;
  kv_cache_memory_mb: number | null;
  max_num_seqs: number | null;
  max_num_batched_tokens: number | null;
  gpu_memory_utilization: number | null;
  tensor_parallel_size: number | null;
  /** Text of a Jinja template. */
  chat_template: string | null;
  tool_call_parser: string | null;
  reasoning_parser: string | null;
  prefix_caching: boolean;
  /** What the prefix cache may take on the disk, where it survives the replicas. Null: it is only in memory. */
  prefix_cache_disk_mb: number | null;
}

export const DEFAULT_RUNTIME: RuntimeOptions = {
  model: null,
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
};

/** The flag of `capstan serve` for each option that is passed on unchanged. */
const FLAGS: Readonly<Partial<Record<keyof RuntimeOptions, string>>> = {
  task: '--task',
  max_model_len: '--max-model-len',
  dtype: '--dtype',
  quantization: '--quantization',
  kv_cache_dtype: '--kv-cache-dtype',
  max_num_seqs: '--max-num-seqs',
  max_num_batched_tokens: '--max-num-batched-tokens',
  gpu_memory_utilization: '--gpu-memory-utilization',
  tensor_parallel_size: '--tensor-parallel-size',
  chat_template: '--chat-template',
  tool_call_parser: '--tool-call-parser',
  reasoning_parser: '--reasoning-parser',
};
const MODEL_PATH = /^\/platform\/(input\/(input[0-4])|home)(\/|$)/;

/** Returns the name of the model from the hub that a specification runs, or undefined for another model. */
export function hubModelOf({ model }: RuntimeOptions): string | undefined {
  return model === null || model.startsWith('/') || parseHubName(model) === undefined ? undefined : model;
}

/** Returns options with some changed. The hub is dropped with its model: another model may be on another hub. */
export function changedRuntime(before: RuntimeOptions, change: Partial<RuntimeOptions>): RuntimeOptions {
  const after = { ...before, ...change };
  return change.hub === undefined && after.model !== before.model ? { ...after, hub: null } : after;
}

/**
 * Returns the arguments of `capstan serve`.
 * @param modelMount Where the model from the hub is mounted.
 */
export function runtimeArgs(runtime: RuntimeOptions, numGpus: number, modelMount: Mount | undefined): string[] {
  const { model, served_name: name, kv_cache_memory_mb: cacheMb, prefix_caching: caches } = runtime;
  const hubModel = hubModelOf(runtime);
  const path = hubModel !== undefined && modelMount !== undefined ? mountPath(modelMount) : (model ?? 'demo');
  const served = name ?? (hubModel === undefined ? null : (parseHubName(hubModel)?.repository ?? null));
  const flags = Object.entries(FLAGS).flatMap(([option, flag]) => {
    const value = runtime[option as keyof RuntimeOptions];
    return value === null ? [] : [flag, String(value)];
  });
  return [
    path,
    ...(served === null ? [] : ['--served-model-name', served]),
    ...flags,
    ...(cacheMb === null ? [] : ['--kv-cache-memory', `${cacheMb}M`]),
    ...(caches ? [] : ['--no-enable-prefix-caching']),
    // A replica sees only its own GPUs, numbered from 0.
    '--device',
    numGpus === 0 ? 'cpu' : `cuda:${[...Array(numGpus).keys()].join(',')}`,
  ];
}

/**
 * Whether the specification runs a model of a data source without a name. Its folder's name, such as `input0`, means
 * nothing to clients.
 */
export function isUnnamed({ model, served_name: name }: RuntimeOptions): boolean {
  return name === null && model !== null && model.startsWith('/');
}

/** Returns what the prefix cache of a deployment may take on the disk. 0: it is only in memory. */
export function prefixCacheMb({
  start_command: script,
  runtime,
}: {
  start_command: string | null;
  /** Those of earlier releases lack options. */
  runtime: Partial<RuntimeOptions>;
}): number {
  return script === null ? (runtime.prefix_cache_disk_mb ?? 0) : 0;
}

function mountPath(mount: Mount): string {
  return mount === 'home' ? '/platform/home' : `/platform/input/${mount}`;
}

/** Checks the options of a version without a start script. @throws ServiceError `invalid_argument` */
export function checkRuntime(runtime: RuntimeOptions, numGpus: number): void {
  checkParser('tool_call_parser', runtime.tool_call_parser, findToolCallFormat);
  checkParser('reasoning_parser', runtime.reasoning_parser, findReasoningFormat);
  const { chat_template: template, dtype, kv_cache_dtype: cacheDtype, prefix_cache_disk_mb: diskMb } = runtime;
  const refuse = (option: string, expected: string): never => {
    throw new ServiceError('invalid_argument', `runtime.${option}: ${expected}`);
  };
  // Another text would name a file, which the runtime would read with the rights of the service.
  if (template !== null && !/[{\n]/.test(template)) refuse('chat_template', 'expected the text of a Jinja template');
  if (template !== null && template.includes('\0')) refuse('chat_template', 'expected a text without NUL');
  if (numGpus > 0 && dtype === 'f32') refuse('dtype', 'expected f16, bf16 or null on a GPU, got f32');
  if (numGpus > 0 && cacheDtype !== null && cacheDtype !== 'fp8')
    refuse('kv_cache_dtype', `expected fp8 or null on a GPU, got ${cacheDtype}`);
  if (numGpus === 0 && cacheDtype === 'fp8')
    refuse('kv_cache_dtype', 'expected f32, f16, bf16, int8 or null on the CPU, got fp8: it works on GPUs only');
  if (diskMb !== null && numGpus > 0)
    refuse('prefix_cache_disk_mb', `expected null on a GPU, got ${diskMb}: it works on the CPU only`);
  if (diskMb !== null && !runtime.prefix_caching)
    refuse('prefix_cache_disk_mb', `expected null with prefix_caching false, got ${diskMb}`);
}

function checkParser(
  option: 'tool_call_parser' | 'reasoning_parser',
  name: string | null,
  find: (name: string, mentions: () => boolean) => unknown,
): void {
  if (name === null) return;
  try {
    find(name, () => false);
  } catch (error) {
    if (!(error instanceof CapstanError)) throw error;
    throw new ServiceError('invalid_argument', `runtime.${option}: expected ${error.expected}, got ${error.received}`);
  }
}

/** @throws ServiceError `invalid_argument` */
export function checkModel(runtime: RuntimeOptions, bindings: readonly { mount: BindingRow['mount'] }[]): void {
  const { model, hub } = runtime;
  if (hubModelOf(runtime) !== undefined) return;
  if (hub !== null)
    throw new ServiceError('invalid_argument', 'runtime.hub: expected null, because runtime.model is not on a hub');
  if (model === null || model === 'demo') return;
  const [, , input] = MODEL_PATH.exec(model) ?? [];
  if (!MODEL_PATH.test(model) || model.split('/').includes('..'))
    throw new ServiceError(
      'invalid_argument',
      'runtime.model: expected demo, a name on the hub (ORG/NAME[@revision][:quantization or file]), or a path below /platform/input/input0 … input4 or /platform/home',
    );
  if (input !== undefined && !bindings.some(({ mount }) => mount === input))
    throw new ServiceError('invalid_argument', `runtime.model: nothing is bound to ${input}`);
}
