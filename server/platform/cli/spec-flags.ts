import { readFileSync } from 'node:fs';
import { type Command, Option } from 'commander';
import { collect, parseBytes, parseCount, parseDuration, UsageError } from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { Binding, NewVersion } from '../api/objects';
import { findDataSource, findImage } from './find';

/** The flags for what a version or a container runs. */
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

interface SpecHelp {
  /** What runs: the replicas of a deployment, or a container. */
  of: 'deployment' | 'container';
  /** Whether the command changes an earlier specification. Values without a flag then stay as they are. */
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
      `demo (the embedded model), the name of a data source with a model, or a path below /platform${byDefault('demo')}`,
    )
    .option(
      '--served-model-name <name>',
      `name of the model in requests${byDefault("the name of the model's directory")}`,
    )
    .option(
      '--max-model-len <tokens>',
      `context length; 8k is 8,000 and 8K is 8,192${byDefault("the model's, lowered to fit the KV cache")}`,
    )
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

/** Containers refuse these flags with their own message. */
function deploymentOnlyOptions(byDefault: (value: string) => string): Option[] {
  return [
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

/** Binds the data sources to inputs in order. A data source in `--model` takes the first free input. */
async function toBindings(
  client: Client,
  { input = [], home, model }: SpecFlags,
): Promise<{ bindings: Binding[]; modelPath: string | undefined }> {
  const isSource = model !== undefined && model !== 'demo' && !model.startsWith('/platform/');
  if (isSource && model.startsWith('/'))
    throw new UsageError(
      `--model: expected demo, a data source or a path below /platform, got '${model}'. Create a data source from a folder with: capstan data create`,
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
    throw new UsageError('--start and --start-file: expected one, got both');
  if (startFile === undefined) return start;
  try {
    return readFileSync(startFile, 'utf8');
  } catch (error) {
    throw new UsageError(
      `--start-file: expected a readable file, got '${startFile}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
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
      `${flag}: expected the name of a variable in this command's environment, got '${name.split('=')[0]}'`,
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
