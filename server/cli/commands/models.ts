import type { Command } from 'commander';
import { type CachedRepository, CapstanError, type FitOptions, type HubOptions } from '../../../ts';
import { findRevision } from '../../../ts/hub/revisions';
import { formatBytes } from '../../base/bytes';
import { LoadProgress } from '../../base/load-progress';
import { fitWarning, uncheckedWarning } from '../../base/model-fit';
import { Shutdown } from '../../base/shutdown';
import { UsageError } from '../../base/usage-error';
import { counted } from '../../base/words';
import { parseChoice, parseCount } from '../flag-values';
import { HUB_HELP, HUB_MODEL_ARGUMENT, HUBS } from '../model-argument';
import { type CommandIo, PROCESS_IO } from './io';
import { describeModel, renderModels } from './model-list';

interface Flags {
  hub?: string;
  maxModelLen?: string;
  quantization?: string;
  json?: boolean;
  yes?: boolean;
}

/** Adds `capstan pull` and `capstan models …`. @param onExit Receives the exit code. */
export function addModelCommands(program: Command, onExit: (code: number) => void, io: CommandIo = PROCESS_IO): void {
  addFitFlags(program.command('pull').description('download a model from the hub, or update it'))
    .argument('<name>', HUB_MODEL_ARGUMENT)
    .addHelpText('after', PULL_HELP)
    .action(async (name: string, flags: Flags) => onExit(await pull(name, flags, io)));
  const models = program
    .command('models')
    .description('manage the downloaded models on this machine')
    .addHelpText('after', MODELS_HELP);
  const json = (command: Command): Command => command.option('--json', 'print JSON');
  json(
    addHub(
      models
        .command('list')
        .description('list the models in the cache, including those that other programs downloaded'),
    ),
  ).action((flags: Flags) => list(flags, io));
  json(addFitFlags(models.command('info').description('show what a load would download, and whether the model fits')))
    .argument('<name>', HUB_MODEL_ARGUMENT)
    .action((name: string, flags: Flags) => info(name, flags, io));
  addHub(models.command('rm').description('delete a model from the cache'))
    .argument('<name>', 'ORG/NAME[@revision]; without a revision, all of them')
    .option('-y, --yes', 'delete without a question')
    .action((name: string, flags: Flags) => remove(name, flags, io));
}

function addHub(command: Command): Command {
  return command.option('--hub <name>', HUB_HELP);
}

function addFitFlags(command: Command): Command {
  return addHub(command)
    .option('--max-model-len <tokens>', 'context length, to estimate whether the model fits (default: at most 4,096)')
    .option('--quantization <type>', 'quantization at load, to estimate whether the model fits: none, int8 or int4');
}

function hubOf({ hub }: Flags): Pick<HubOptions, 'hub'> {
  return hub === undefined ? {} : { hub: parseChoice(hub, '--hub', HUBS) };
}

function fitOptions({ maxModelLen, quantization }: Flags): FitOptions {
  return {
    ...(maxModelLen === undefined ? {} : { maxModelLen: parseCount(maxModelLen, '--max-model-len') }),
    ...(quantization === undefined
      ? {}
      : { quantization: parseChoice(quantization, '--quantization', ['none', 'int8', 'int4']) }),
  };
}

/** Prints the path of the model to standard output, and everything else to standard error. Returns the exit code. */
async function pull(name: string, flags: Flags, io: CommandIo): Promise<number> {
  const options = { ...hubOf(flags), engineOptions: fitOptions(flags) };
  const { pullModel } = await import('../../../ts/index.js');
  const shutdown = new Shutdown();
  const progress = new LoadProgress((text) => io.err(`${text}\n`));
  try {
    const { path, commit } = await pullModel(name, {
      ...options,
      signal: shutdown.signal,
      onProgress: (done) => progress.update({ stage: 'download', ...done }),
      onDownload: (plan) => {
        const warning = fitWarning(plan);
        if (plan.problem !== null) io.err(`warning: this version cannot run the model: ${plan.problem}\n`);
        const unchecked = uncheckedWarning(plan);
        for (const text of [warning, unchecked]) if (text !== undefined) io.err(`warning: ${text}\n`);
        io.err(
          `downloading ${plan.repository}: ${counted(plan.files.length, 'file')}, ${formatBytes(plan.totalBytes)}\n`,
        );
      },
    });
    progress.end();
    io.err(`${name} is complete (commit ${commit})\n`);
    io.out(`${path}\n`);
    return 0;
  } catch (error) {
    progress.end();
    if (!(error instanceof CapstanError && error.code === 'aborted')) throw error;
    io.err(`stopped. Run the command again to continue the download\n`);
    return 130;
  } finally {
    shutdown.dispose();
  }
}

async function list(flags: Flags, io: CommandIo): Promise<void> {
  const { listModels } = await import('../../../ts/index.js');
  const models = await listModels(hubOf(flags));
  io.out(flags.json ? `${JSON.stringify(models)}\n` : renderModels(models, io.now()));
}

async function info(name: string, flags: Flags, io: CommandIo): Promise<void> {
  const { modelInfo } = await import('../../../ts/index.js');
  const found = await modelInfo(name, { ...hubOf(flags), engineOptions: fitOptions(flags) });
  io.out(flags.json ? `${JSON.stringify(found)}\n` : describeModel(found));
}

async function remove(name: string, flags: Flags, io: CommandIo): Promise<void> {
  const { listModels, removeModel } = await import('../../../ts/index.js');
  const hub = hubOf(flags);
  const [repository, revision] = name.replace(/^hf:/, '').split('@', 2);
  const found = (await listModels(hub)).find((model) => model.repository === repository);
  const commit = revision === undefined ? undefined : findRevision(found?.revisions ?? [], revision)?.commit;
  // The branch may move before the answer, so the commit in the question is the one that is deleted.
  const target = commit === undefined || flags.yes === true ? name : `${repository}@${commit}`;
  const isKnown = found !== undefined && (revision === undefined || commit !== undefined);
  if (isKnown && flags.yes !== true) await confirm(name, commit, found, io);
  io.err(`freed ${formatBytes(await removeModel(target, hub))}\n`);
}

/** @throws UsageError unless the user agrees. */
async function confirm(
  name: string,
  commit: string | undefined,
  { revisions, sizeBytes }: CachedRepository,
  { ask }: CommandIo,
): Promise<void> {
  const what =
    commit === undefined
      ? `${name} (${counted(revisions.length, 'revision')}, ${formatBytes(sizeBytes)})`
      : `${name} (commit ${commit}) and the files that only it uses`;
  if (ask === undefined) throw new UsageError(`expected --yes to delete ${what}. Other programs may use it`);
  const answer = await ask(`Delete ${what}? Other programs may use it. [y/N] `);
  if (!/^y(es)?$/i.test(answer.trim())) throw new UsageError('cancelled: nothing was deleted');
}

const PULL_HELP = `
Downloads the files that a load needs, into the cache that Hugging Face's tools
share: HF_HUB_CACHE, else hub in HF_HOME, else ~/.cache/huggingface/hub. Checks
the hash of each file. Continues a download that was stopped.

Variables: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE,
HF_HUB_OFFLINE, MODELSCOPE_API_TOKEN, HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY.

Examples:
  capstan pull Qwen/Qwen2.5-0.5B-Instruct
  capstan pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M    one quantization of a GGUF repository
  capstan pull ORG/NAME@v1.0                             a branch, a tag or a commit
  capstan serve $(capstan pull ORG/NAME)                 prints the path
`;

const MODELS_HELP = `
Examples:
  capstan models list
  capstan models info Qwen/Qwen2.5-0.5B-Instruct --max-model-len 8K
  capstan models rm ORG/NAME@v1.0
`;
