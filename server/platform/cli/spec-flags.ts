import { readFileSync } from 'node:fs';
import { type Command, Option } from 'commander';
import {
  collect,
  parseBytes,
  parseChoice,
  parseCount,
  parseDuration,
  parseHubName,
  UsageError,
} from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { Binding, NewVersion } from '../api/objects';
import { MODEL_TASKS } from '../deployments/model-task';
import { findDataSource, findImage } from './find';

/** The flags for what a version or a container runs. */
export interface SpecFlags {
  model?: string;
  servedModelName?: string;
  task?: string;
  maxModelLen?: string;
  hub?: string;
  tokenSecret?: string;
  quantization?: string;
  dtype?: string;
  kvCacheDtype?: string;
  kvCacheMemory?: string;
  maxNumSeqs?: string;
  maxNumBatchedTokens?: string;
  gpuMemoryUtilization?: string;
  tensorParallelSize?: string;
  chatTemplate?: string;
  toolCallParser?: string;
  reasoningParser?: string;
  enablePrefixCaching?: boolean;
  prefixCacheDiskSize?: string;
  image?: string;
  start?: string;
  startFile?: string;
  input?: string[];
  home?: string;
  env?: string[];
  secretEnv?: string[];
  cpus?: string;
  memory?: string;
  gpus?: string;
  gpuType?: string;
  healthPath?: string;
  startDeadline?: string;
  grace?: string;
}

interface SpecHelp {
  /** What runs: the replicas of a deployment, or a container. */
  of: 'deployment' | 'container';
  /** Whether the command changes an earlier specification. Values without a flag then do not change. */
  isChange: boolean;
}

export function addSpecFlags(command: Command, { of, isChange }: SpecHelp): Command {
  const isContainer = of === 'container';
  const byDefault = (value: string): string => (isChange ? '' : ` (default: ${value})`);
  const replacing = (values: string): string => (isChange ? `; replaces ${values}` : '');
  const perReplica = isContainer ? '' : ' per replica';
  command
    .option(
      '--model <name>',
      `demo (the embedded model), the name of a data source with a model, ${isContainer ? '' : 'a name on the hub (ORG/NAME[@revision][:quantization or file]), '}or a path below /platform${byDefault('demo')}`,
    )
    .option(
      '--served-model-name <name>',
      `name of the model in requests${byDefault("the name on the hub, or of the model's directory")}`,
    );
  for (const option of runtimeOptions(byDefault, isContainer)) command.addOption(option);
  command
    .option('--image <name:version>', `image to run in${byDefault('the built-in runtime')}`)
    .option(
      '--start <command>',
      `shell script to run instead of the built-in runtime; it must serve on port ${isContainer ? 8080 : 80}`,
    )
    .option('--start-file <file>', 'file with the shell script, instead of --start')
    .option(
      '--input <source>',
      `data source to mount read-only; the first at /platform/input/input0, the next at input1, at most 5; repeatable${replacing('all data sources, including --home')}`,
      collect,
    )
    .option(
      '--home <source>',
      `${isContainer ? 'data source to mount with write access at /platform/home' : 'data source to copy to /platform/home'}${replacing('all data sources, including --input')}`,
    )
    .option(
      '--env <name=value>',
      `environment variable; repeatable${replacing('all variables that are not secret')}`,
      collect,
    )
    .option(
      '--secret-env <name>',
      `secret environment variable; its value comes from this command's environment and is never shown; repeatable${replacing('all secret variables')}`,
      collect,
    )
    .option('--cpus <number>', `number of cores${perReplica}, for example 2 or 0.5${byDefault('1')}`)
    .option('--memory <size>', `memory${perReplica}, for example 512M or 4G${byDefault('1G')}`)
    .option('--gpus <number>', `number of GPUs${perReplica}${byDefault('0')}`)
    .option('--gpu-type <name>', `GPU type, as capstan compute prints it${byDefault('any')}`);
  for (const option of deploymentOnlyOptions(byDefault)) command.addOption(option.hideHelp(isContainer));
  return command;
}

/** Flags with the names and meanings that they have in `capstan serve`. */
function runtimeOptions(byDefault: (value: string) => string, isContainer: boolean): Option[] {
  return [
    new Option(
      '--hub <name>',
      `hub that the model is downloaded from: huggingface or modelscope${byDefault('huggingface')}`,
    ).hideHelp(isContainer),
    new Option(
      '--token-secret <name>',
      'environment variable with the token for a gated or private model on the hub; the token is encrypted and never shown',
    ).hideHelp(isContainer),
    new Option('--task <task>', `what the model does: generate, embed or score${byDefault('what its files say')}`),
    new Option(
      '--max-model-len <tokens>',
      `context length; 8k is 8,000 and 8K is 8,192${byDefault("the model's, lowered to fit the KV cache")}`,
    ),
    new Option('--quantization <bits>', `quantize the weights at load: none, int8 or int4${byDefault('none')}`),
    new Option('--dtype <type>', `data type of the weights: auto, f32, f16 or bf16${byDefault('auto')}`),
    new Option(
      '--kv-cache-dtype <type>',
      `data type of the KV cache: auto, f32, f16, bf16 or int8; on a GPU auto or fp8${byDefault('auto')}`,
    ),
    new Option(
      '--kv-cache-memory <size>',
      `size of the KV cache, for example 512M or 2G${byDefault('as of capstan serve')}`,
    ),
    new Option(
      '--max-num-seqs <number>',
      `maximum number of sequences that run at the same time${byDefault('64, on a GPU 256')}`,
    ),
    new Option(
      '--max-num-batched-tokens <tokens>',
      `maximum number of tokens per step${byDefault('512, on a GPU 8192')}`,
    ),
    new Option('--gpu-memory-utilization <share>', `share of the memory of each GPU to use${byDefault('0.9')}`),
    new Option(
      '--tensor-parallel-size <ranks>',
      `number of ranks that each layer is split over; with GPUs their number${byDefault('auto')}`,
    ),
    new Option('--chat-template <file>', `Jinja file that replaces the chat template of the model`),
    new Option('--tool-call-parser <name>', `format of tool calls${byDefault('auto')}`),
    new Option('--reasoning-parser <name>', `format of reasoning${byDefault('auto')}`),
    new Option('--enable-prefix-caching', `reuse the KV cache of equal prompt prefixes${byDefault('on')}`),
    new Option('--no-enable-prefix-caching', 'do not reuse it'),
  ];
}

/** Containers refuse these flags with their own message. */
function deploymentOnlyOptions(byDefault: (value: string) => string): Option[] {
  return [
    new Option(
      '--prefix-cache-disk-size <size>',
      `keep the prefix cache on the disk too, up to this size, for example 10G, so that it survives restarts and scaling to zero; CPU only${byDefault('none')}`,
    ),
    new Option(
      '--health-path <path>',
      `path of the health check; a status from 200 to 299 means ready${byDefault('/v1/models')}`,
    ),
    new Option(
      '--start-deadline <duration>',
      `maximum time until a replica is ready, for example 10m${byDefault('20m')}`,
    ),
    new Option(
      '--grace <duration>',
      `maximum time that open requests may continue when a replica stops, for example 10s${byDefault('30s')}`,
    ),
  ];
}

/** Returns the flags as fields of the API, without those that are not set. @throws UsageError */
export async function toSpec(client: Client, flags: SpecFlags, env: NodeJS.ProcessEnv): Promise<NewVersion> {
  const { bindings, modelPath } = await toBindings(client, flags);
  const compute = toCompute(flags);
  const runtime = { ...defined('model', modelPath), ...toRuntime(flags) };
  return {
    ...defined('image_id', flags.image === undefined ? undefined : (await findImage(client, flags.image)).id),
    ...defined('bindings', bindings.length === 0 ? undefined : bindings),
    ...defined('compute', Object.keys(compute).length === 0 ? undefined : compute),
    ...defined('runtime', Object.keys(runtime).length === 0 ? undefined : runtime),
    ...defined('start_command', toStartCommand(flags)),
    ...defined('env', flags.env === undefined ? undefined : Object.fromEntries(flags.env.map(toVariable))),
    ...defined(
      'secret_env',
      flags.secretEnv === undefined
        ? undefined
        : Object.fromEntries(flags.secretEnv.map((name) => [name, secretOf(name, env)])),
    ),
    ...defined(
      'hub_token',
      flags.tokenSecret === undefined ? undefined : secretOf(flags.tokenSecret, env, '--token-secret'),
    ),
    ...defined('health_path', flags.healthPath),
    ...defined('start_deadline_s', seconds('--start-deadline', flags.startDeadline)),
    ...defined('grace_s', seconds('--grace', flags.grace)),
  };
}

/** `auto` asks for the default, which is null in the API. */
function toRuntime(flags: SpecFlags): NonNullable<NewVersion['runtime']> {
  const parsed = <V>(text: string | undefined, parse: (value: string) => V): V | null | undefined => {
    if (text === undefined) return undefined;
    return text === 'auto' ? null : parse(text);
  };
  const count = (text: string | undefined, flag: string) => parsed(text, (value) => parseCount(value, flag));
  const choice = <const T extends string>(text: string | undefined, flag: string, choices: readonly T[]) =>
    parsed(text, (value) => parseChoice(value, flag, choices));
  const { kvCacheMemory, gpuMemoryUtilization: share, chatTemplate } = flags;
  return {
    ...defined('hub', choice(flags.hub, '--hub', ['huggingface', 'modelscope'])),
    ...defined('served_name', flags.servedModelName),
    ...defined('task', choice(flags.task, '--task', MODEL_TASKS)),
    ...defined('max_model_len', count(flags.maxModelLen, '--max-model-len')),
    ...defined('quantization', choice(flags.quantization, '--quantization', ['none', 'int8', 'int4'])),
    ...defined('dtype', choice(flags.dtype, '--dtype', ['f32', 'f16', 'bf16'])),
    ...defined('kv_cache_dtype', choice(flags.kvCacheDtype, '--kv-cache-dtype', ['f32', 'f16', 'bf16', 'int8', 'fp8'])),
    ...defined(
      'kv_cache_memory_mb',
      parsed(kvCacheMemory, (text) => Math.ceil(parseBytes(text, '--kv-cache-memory') / 2 ** 20)),
    ),
    ...defined('max_num_seqs', count(flags.maxNumSeqs, '--max-num-seqs')),
    ...defined('max_num_batched_tokens', count(flags.maxNumBatchedTokens, '--max-num-batched-tokens')),
    ...defined('gpu_memory_utilization', parsed(share, parseUtilization)),
    ...defined('tensor_parallel_size', count(flags.tensorParallelSize, '--tensor-parallel-size')),
    ...defined(
      'chat_template',
      parsed(chatTemplate, (file) => readTextFile(file, '--chat-template')),
    ),
    ...defined('tool_call_parser', parsed(flags.toolCallParser, String)),
    ...defined('reasoning_parser', parsed(flags.reasoningParser, String)),
    ...defined('prefix_caching', flags.enablePrefixCaching),
    ...defined('prefix_cache_disk_mb', diskSize(flags.prefixCacheDiskSize)),
  };
}

function diskSize(text: string | undefined): number | null | undefined {
  if (text === undefined || text === 'none') return text === undefined ? undefined : null;
  return Math.ceil(parseBytes(text, '--prefix-cache-disk-size') / 2 ** 20);
}

function parseUtilization(text: string): number {
  const share = /^\d*\.?\d+$/.test(text) ? Number(text) : NaN;
  if (!(share > 0 && share <= 1))
    throw new UsageError(`--gpu-memory-utilization: expected a number above 0 and at most 1, got '${text}'`);
  return share;
}

/** Binds the data sources to inputs in order. A data source in `--model` takes the first free input. */
async function toBindings(
  client: Client,
  { input = [], home, model }: SpecFlags,
): Promise<{ bindings: Binding[]; modelPath: string | undefined }> {
  const isNamed = model !== undefined && model !== 'demo' && !model.startsWith('/platform/');
  const isSource = isNamed && !(await isOfHub(client, model));
  if (isSource && model.startsWith('/'))
    throw new UsageError(
      `--model: expected demo, a data source or a path below /platform, got '${model}'. Create a data source from a folder with: capstan data create`,
    );
  const names = isSource ? [...input, model] : input;
  if (names.length > 5) throw new UsageError(`--input: expected at most 5 data sources, got ${names.length}`);
  const bindings: Binding[] = [];
  for (const [index, name] of names.entries())
    bindings.push({
      mount: `input${index}` as Binding['mount'],
      source_id: (await findDataSource(client, name, isSource && name === model ? MODEL_ADVICE : undefined)).id,
    });
  if (home !== undefined) bindings.push({ mount: 'home', source_id: (await findDataSource(client, home)).id });
  return { bindings, modelPath: isSource ? `/platform/input/input${names.length - 1}` : model };
}

const MODEL_ADVICE = 'Expected demo, a data source (capstan data list) or a model from the hub such as Qwen/Qwen3-4B';

/** Whether a model is a name on the hub. A data source of that name comes first, unless it begins with `hf:`. */
async function isOfHub(client: Client, model: string): Promise<boolean> {
  if (model.startsWith('hf:')) return true;
  if (parseHubName(model) === undefined) return false;
  const sources = await client.dataSources.list();
  return !sources.some(({ id, name }) => id === model || name === model);
}

function toCompute({ cpus, memory, gpus, gpuType }: SpecFlags): NonNullable<NewVersion['compute']> {
  if (cpus !== undefined && !/^\d+(\.\d+)?$/.test(cpus))
    throw new UsageError(`--cpus: expected a number such as 2 or 0.5, got '${cpus}'`);
  if (gpus !== undefined && !/^\d{1,3}$/.test(gpus))
    throw new UsageError(`--gpus: expected a whole number, got '${gpus}'`);
  return {
    ...defined('cpu_millis', cpus === undefined ? undefined : Math.round(Number(cpus) * 1000)),
    ...defined('memory_mb', memory === undefined ? undefined : Math.ceil(parseBytes(memory, '--memory') / 2 ** 20)),
    ...defined('gpu_count', gpus === undefined ? undefined : Number(gpus)),
    ...defined('gpu_type', gpuType),
  };
}

function toStartCommand({ start, startFile }: SpecFlags): string | undefined {
  if (start !== undefined && startFile !== undefined)
    throw new UsageError('--start and --start-file: expected one, got both');
  return startFile === undefined ? start : readTextFile(startFile, '--start-file');
}

function readTextFile(file: string, flag: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new UsageError(
      `${flag}: expected a readable file, got '${file}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
    );
  }
}

function toVariable(text: string): [string, string] {
  const at = text.indexOf('=');
  if (at < 1) throw new UsageError(`--env: expected NAME=VALUE, got '${text}'`);
  return [text.slice(0, at), text.slice(at + 1)];
}

/** @throws UsageError */
export function secretOf(name: string, env: NodeJS.ProcessEnv, flag = '--secret-env'): string {
  const value = env[name];
  // NOTE: secrets are not accepted on the command line, because every process of the machine can read it.
  if (value === undefined)
    throw new UsageError(
      `${flag}: expected the name of a variable in this command's environment, got '${name.split('=')[0]}', which is not set`,
    );
  return value;
}

/** Parses a duration, or a number of seconds. */
export function seconds(flag: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  return /^\d+$/.test(text) ? Number(text) : Math.ceil(parseDuration(flag, text) / 1000);
}

/** Returns `{ [name]: value }`, or an empty object if the value is undefined. */
export function defined<K extends string, V>(name: K, value: V | undefined): Partial<Record<K, V>> {
  return (value === undefined ? {} : { [name]: value }) as Partial<Record<K, V>>;
}
