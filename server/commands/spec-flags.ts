import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { parseDuration } from '../access/durations';
import type { Client } from '../api/client';
import type { Binding, NewVersion } from '../api/objects';
import { parseBytes, parseCount, UsageError } from '../flag-values';
import { findDataSource, findImage } from './find';
import { collect } from './remote';

/** What says what a version or a container runs. */
export interface SpecFlags {
  model?: string;
  servedModelName?: string;
  maxModelLen?: string;
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

export function addSpecFlags(command: Command): Command {
  return command
    .option('--model <name>', 'demo, the embedded model; or the name of a data source that holds one')
    .option('--served-model-name <name>', 'what clients send as the model')
    .option('--max-model-len <tokens>', 'context length, as 8k or 8K')
    .option('--image <name:version>', 'what it runs in (default: the built-in runtime)')
    .option('--start <command>', 'a shell script to run instead of the built-in runtime; it has to serve on port 80')
    .option('--start-file <file>', 'the file that holds it')
    .option(
      '--input <source>',
      'a data source, read-only at /platform/input/input0, the next at input1; repeatable',
      collect,
    )
    .option('--home <source>', 'a data source whose copy is /platform/home')
    .option('--env <name=value>', 'a variable; repeatable', collect)
    .option(
      '--secret-env <name>',
      "a variable whose value nobody sees again, taken from this command's environment; repeatable",
      collect,
    )
    .option('--cpus <number>', 'cores, as 2 or 0.5')
    .option('--memory <size>', 'as 512M or 4G')
    .option('--gpus <number>', 'number of GPUs')
    .option('--gpu-type <name>', 'of this type')
    .option('--health-path <path>', 'asked for readiness (default: /v1/models)')
    .option('--start-deadline <duration>', 'has to be ready within this time, as 20m')
    .option('--grace <duration>', 'time between the request to end and the end, as 30s');
}

/** What was said, as the interface takes it; what was not said is left out. @throws UsageError */
export async function toSpec(client: Client, flags: SpecFlags, env: NodeJS.ProcessEnv): Promise<NewVersion> {
  const { bindings, modelPath } = await toBindings(client, flags);
  const compute = toCompute(flags);
  const runtime = {
    ...defined('model', modelPath),
    ...defined('served_name', flags.servedModelName),
    ...defined(
      'max_model_len',
      flags.maxModelLen === undefined ? undefined : parseCount(flags.maxModelLen, '--max-model-len'),
    ),
  };
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
    ...defined('health_path', flags.healthPath),
    ...defined('start_deadline_s', seconds('--start-deadline', flags.startDeadline)),
    ...defined('grace_s', seconds('--grace', flags.grace)),
  };
}

/** A model from a data source takes the first input that is free. */
async function toBindings(
  client: Client,
  { input = [], home, model }: SpecFlags,
): Promise<{ bindings: Binding[]; modelPath: string | undefined }> {
  const isSource = model !== undefined && model !== 'demo' && !model.startsWith('/platform/');
  if (isSource && model.startsWith('/'))
    throw new UsageError(
      `--model: expected demo, a data source or a path below /platform, got '${model}': capstan data create makes a data source of a folder`,
    );
  const names = isSource ? [...input, model] : input;
  if (names.length > 5) throw new UsageError(`--input: expected at most 5 data sources, got ${names.length}`);
  const bindings: Binding[] = [];
  for (const [index, name] of names.entries())
    bindings.push({ mount: `input${index}` as Binding['mount'], source_id: (await findDataSource(client, name)).id });
  if (home !== undefined) bindings.push({ mount: 'home', source_id: (await findDataSource(client, home)).id });
  return { bindings, modelPath: isSource ? `/platform/input/input${names.length - 1}` : model };
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
    throw new UsageError('--start and --start-file: expected one of them, got both');
  if (startFile === undefined) return start;
  try {
    return readFileSync(startFile, 'utf8');
  } catch (error) {
    throw new UsageError(
      `--start-file: expected a file that can be read, got '${startFile}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
    );
  }
}

function toVariable(text: string): [string, string] {
  const at = text.indexOf('=');
  if (at < 1) throw new UsageError(`--env: expected NAME=VALUE, got '${text}'`);
  return [text.slice(0, at), text.slice(at + 1)];
}

function secretOf(name: string, env: NodeJS.ProcessEnv): string {
  const value = env[name];
  // NOTE: a value on the command line could be read by every process of this machine.
  if (value === undefined)
    throw new UsageError(`--secret-env: expected the name of a variable that is set here, got '${name.split('=')[0]}'`);
  return value;
}

export function seconds(flag: string, text: string | undefined): number | undefined {
  return text === undefined
    ? undefined
    : /^\d+$/.test(text)
      ? Number(text)
      : Math.ceil(parseDuration(flag, text) / 1000);
}

export function defined<K extends string, V>(name: K, value: V | undefined): Partial<Record<K, V>> {
  return (value === undefined ? {} : { [name]: value }) as Partial<Record<K, V>>;
}
