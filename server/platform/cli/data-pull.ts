import type { Command } from 'commander';
import {
  type CommandIo,
  counted,
  fitWarning,
  parseChoice,
  parseCount,
  uncheckedWarning,
  UsageError,
} from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { DataPullPreview, DataSource } from '../api/objects';
import { addWaitFlags, timeoutOf, type WaitFlags } from './deploy-flags';
import { findDataSource, findOwner, findOwnerOrSelf } from './find';
import { describePull, sizeText as size } from './pull-text';
import { type Call, printJson, remote } from './remote';
import { defined, secretOf } from './spec-flags';
import { plain } from './text';
import { waitForPull } from './wait';

interface Flags extends WaitFlags {
  hub?: string;
  tokenSecret?: string;
  description?: string;
  visibility?: string;
  owner?: string;
  cancel?: boolean;
  check?: boolean;
  maxModelLen?: string;
  quantization?: string;
}

/** Adds `capstan data pull`. */
export function addDataPull(data: Command, io?: CommandIo): void {
  const command = remote<Flags>(
    data,
    'pull <name> [model]',
    'download a model from the hub into a data source, on the machine of the service',
    pull,
    io,
  );
  command
    .option('--hub <name>', 'hub that the model is downloaded from: huggingface or modelscope (default: huggingface)')
    .option(
      '--token-secret <name>',
      'environment variable with the token for a gated or private model; the token is encrypted and never shown',
    )
    .option('--description <text>', 'description of a new data source')
    .option(
      '--visibility <who>',
      'who can use a new data source; private or org: only its owner; public: all users (default: private)',
    )
    .option('--owner <owner>', 'owner of a new data source: org:SLUG (default: yourself)')
    .option('--check', 'show what would be downloaded and whether it fits, and download nothing')
    .option('--max-model-len <tokens>', 'context length, to estimate whether the model fits (default: at most 4,096)')
    .option('--quantization <type>', 'quantization at load, to estimate whether the model fits: none, int8 or int4')
    .option('--cancel', 'stop the running download instead; the next pull continues it');
  addWaitFlags(command, 'the model is complete').addHelpText('after', HELP_TAIL);
}

async function pull({ client, flags, args: [name, model], io }: Call<Flags>): Promise<void> {
  if (flags.cancel === true) return cancel(client, name, flags.json === true, io);
  const existing = await findExisting(client, name, flags);
  const wanted = model ?? existing?.pull?.model;
  if (wanted === undefined)
    throw new UsageError(`expected the name of a model, ORG/NAME[@revision][:quantization or file], got none`);
  const request = {
    model: wanted,
    ...defined('hub', hubOf(flags, existing)),
    ...defined(
      'token',
      flags.tokenSecret === undefined ? undefined : secretOf(flags.tokenSecret, io.env, '--token-secret'),
    ),
  };
  const preview = await client.request<DataPullPreview>('POST', '/data-pulls/preview', {
    body: { ...request, ...defined('source_id', existing?.id), ...fitOptions(flags) },
  });
  if (flags.check === true) return flags.json ? printJson(io, preview) : io.out(describePreview(preview));
  if (!flags.json) io.err(describePreview(preview));
  const started = await (existing === undefined
    ? create(client, name, request, flags)
    : client.request<DataSource>('POST', `/data-sources/${existing.id}/pull`, { body: request }));
  const source = flags.wait === true ? await waitForPull(client, started, timeoutOf(flags), io) : started;
  if (flags.json) return printJson(io, source);
  io.out(`${plain(source.name)} (${source.id}): ${describePull(source.pull)}\n`);
  if (flags.wait !== true) io.err(`The service downloads it. See the progress with: capstan data get ${name}\n`);
}

async function create(client: Client, name: string, request: object, flags: Flags): Promise<DataSource> {
  const visibility = parseChoice(flags.visibility ?? 'private', '--visibility', ['private', 'org', 'public']);
  return client.request<DataSource>('POST', '/data-pulls', {
    body: {
      name,
      ...request,
      visibility,
      ...defined('description', flags.description),
      ...defined('owner', await findOwner(client, flags.owner)),
    },
  });
}

async function cancel(client: Client, name: string, isJson: boolean, io: CommandIo): Promise<void> {
  const { id } = await findDataSource(client, name);
  const source = await client.request<DataSource>('DELETE', `/data-sources/${id}/pull`);
  if (isJson) return printJson(io, source);
  io.out(`${plain(source.name)} (${id}): ${describePull(source.pull)}\n`);
}

/** Returns the data source with this ID, or the owner's with this name. undefined if a new one is wanted. */
async function findExisting(client: Client, name: string, { owner }: Flags): Promise<DataSource | undefined> {
  const sources = await client.dataSources.list();
  const { id: ownerId } = await findOwnerOrSelf(client, owner ?? 'me');
  return sources.find((source) => source.id === name || (source.name === name && source.owner.id === ownerId));
}

function hubOf({ hub }: Flags, existing: DataSource | undefined): 'huggingface' | 'modelscope' | undefined {
  return hub === undefined ? existing?.pull?.hub : parseChoice(hub, '--hub', ['huggingface', 'modelscope']);
}

function fitOptions({ maxModelLen, quantization }: Flags): object {
  return {
    ...defined('max_model_len', maxModelLen === undefined ? undefined : parseCount(maxModelLen, '--max-model-len')),
    ...defined(
      'quantization',
      quantization === undefined ? undefined : parseChoice(quantization, '--quantization', ['none', 'int8', 'int4']),
    ),
  };
}

function describePreview(preview: DataPullPreview): string {
  const { repository, commit, format, quantization, files, total_bytes: total, problem } = preview;
  const { free_disk_bytes: free, unchecked_files: uncheckedFiles } = preview;
  const unchecked = uncheckedWarning({ uncheckedFiles });
  const lines = [
    `${plain(repository)}: ${format}${quantization === null ? '' : `, ${plain(quantization)}`}, ${counted(files.length, 'file')}, ${size(total)} (commit ${plain(commit).slice(0, 12)})`,
    fitText(preview),
    free !== null && free < total ? `warning: the disk of the service has ${size(free)} free` : undefined,
    problem === null ? undefined : `warning: this version cannot run the model: ${plain(problem)}`,
    unchecked === undefined ? undefined : `warning: ${plain(unchecked)}`,
  ];
  return lines.filter((line) => line !== undefined).join('\n') + '\n';
}

function fitText({ repository, fit }: DataPullPreview): string | undefined {
  if (fit === null) return undefined;
  const { weight_bytes: weightBytes, kv_cache_bytes: kvCacheBytes, context_length: contextLength, verdict } = fit;
  const { available_bytes: availableBytes, machine_bytes: machineBytes } = fit;
  if (verdict === 'fits')
    return `fits: needs about ${size(weightBytes + kvCacheBytes)} of memory for ${contextLength} tokens; the machine has ${size(machineBytes)}, ${size(availableBytes)} of it free`;
  const numbers = { weightBytes, kvCacheBytes, contextLength, availableBytes, machineBytes };
  const suggestion = toSuggestion(fit.suggestion);
  const warning = fitWarning({ repository, fit: { ...numbers, verdict, suggestion } });
  return warning === undefined ? undefined : `warning: ${plain(warning)}`;
}

function toSuggestion(
  suggestion: NonNullable<DataPullPreview['fit']>['suggestion'],
): { variant: string } | { quantization: 'int8' | 'int4' } | null {
  if (suggestion === null) return null;
  const { variant, quantization } = suggestion;
  if (variant !== null) return { variant };
  return quantization === null ? null : { quantization };
}

const HELP_TAIL = `
The service downloads in the background, and continues after a restart. If the
data source exists and nothing uses it, its model is replaced. Without a model,
the last one is pulled again. Administrators can pull for all owners, others
only for owners with a disk quota.

Examples:
  capstan data pull qwen Qwen/Qwen2.5-0.5B-Instruct --wait
  capstan data pull qwen-q4 Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M --check
  HF_TOKEN=hf_… capstan data pull llama meta-llama/Llama-3.2-1B --token-secret HF_TOKEN
  capstan deploy chat --model qwen
`;
