import type { Command } from 'commander';
import type { Image, NewVersion, Version, VersionSpec } from '../api/objects';
import { UsageError } from '../flag-values';
import { renderTable } from '../text-table';
import { addWaitFlags, timeoutOf, toStrategy, type WaitFlags } from './deploy-flags';
import { findDeployment } from './find';
import type { CommandIo } from './io';
import { type Call, printJson, remote } from './remote';
import { addSpecFlags, defined, type SpecFlags, toSpec } from './spec-flags';
import { megabytes, minute, plain, renderFields } from './text';
import { waitUntilRunning } from './wait';

interface CreateFlags extends SpecFlags, WaitFlags {
  note?: string;
  strategy?: string;
}

/** Mounts `capstan versions …`. */
export function addVersionsCommand(program: Command, io?: CommandIo): void {
  const versions = program
    .command('versions')
    .description('the versions of a deployment: what each runs, rolling out and back')
    .addHelpText('after', HELP_TAIL);
  remote(versions, 'list <name>', 'show the versions of a deployment', list, io);
  remote(versions, 'get <name> <number>', 'show one: what it runs, its state and why it failed', get, io);
  addWaitFlags(
    addSpecFlags(
      remote<CreateFlags>(
        versions,
        'create <name>',
        'roll out a change; what flags do not say stays as it is',
        create,
        io,
      ),
    ),
  )
    .option('--note <text>', 'shown with the version')
    .option('--strategy <name>', 'for this rollout: auto, surge or replace');
  addWaitFlags(
    remote<WaitFlags>(versions, 'activate <name> <number>', 'roll out an earlier version again', activate, io),
  );
  remote<{ yes?: boolean }>(
    versions,
    'delete <name> <number>',
    'delete a version that is stopped or failed, with its logs',
    remove,
    io,
  ).option('--yes', 'yes, for good');
}

async function list({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  const found = await client.versions.list((await findDeployment(client, name)).id);
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['NUMBER', 'STATE', 'ACTIVE', 'CREATED', 'READY', 'REASON', 'NOTE'],
      found.map((version) => [
        String(version.number),
        version.state,
        version.is_active ? 'yes' : '',
        minute(version.created_at),
        minute(version.ready_at),
        version.reason?.code ?? '',
        plain(version.note ?? ''),
      ]),
    ),
  );
}

async function get({ client, flags, args: [name, number], io }: Call<object>): Promise<void> {
  const version = await client.versions.get((await findDeployment(client, name)).id, parseNumber(number));
  if (flags.json) return printJson(io, version);
  io.out(describeVersion(version, await client.images.list()));
}

async function create({ client, flags, args: [name], io }: Call<CreateFlags>): Promise<void> {
  const body: NewVersion = {
    ...(await toSpec(client, flags, io.env)),
    ...defined('note', flags.note),
    ...defined('strategy', toStrategy(flags.strategy)),
  };
  const { id } = await findDeployment(client, name);
  const version = await client.versions.create(id, body);
  if (flags.wait === true) await waitUntilRunning(client, id, timeoutOf(flags), io);
  if (flags.json) return printJson(io, flags.wait === true ? await client.versions.get(id, version.number) : version);
  io.out(`version ${version.number} of ${plain(name)} ${flags.wait === true ? 'serves' : `is ${version.state}`}\n`);
}

async function activate({ client, flags, args: [name, number], io }: Call<WaitFlags>): Promise<void> {
  const { id } = await findDeployment(client, name);
  await client.versions.activate(id, parseNumber(number));
  if (flags.wait === true) await waitUntilRunning(client, id, timeoutOf(flags), io);
  const version = await client.versions.get(id, parseNumber(number));
  if (flags.json) return printJson(io, version);
  io.out(`version ${version.number} of ${plain(name)} ${flags.wait === true ? 'serves' : `is ${version.state}`}\n`);
}

async function remove({ client, flags, args: [name, number], io }: Call<{ yes?: boolean }>): Promise<void> {
  if (flags.yes !== true)
    throw new UsageError(`this cannot be undone: --yes deletes version ${number} of ${name} and its logs`);
  const { id } = await findDeployment(client, name);
  await client.versions.remove(id, parseNumber(number));
  if (!flags.json) io.out(`deleted version ${number} of ${plain(name)}\n`);
}

export function parseNumber(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new UsageError(`version: expected a number, got '${text}'`);
  return Number(text);
}

function describeVersion(version: Version, images: readonly Image[]): string {
  const { reason, spec } = version;
  const fields = renderFields([
    ['version', String(version.number)],
    ['id', version.id],
    ['state', `${version.state}${version.is_active ? ', active' : ''}`],
    [
      'reason',
      reason === null
        ? undefined
        : `${reason.code}: ${plain(reason.message)}${reason.exit_code === null ? '' : ` (exit code ${reason.exit_code})`}`,
    ],
    ['note', version.note === null ? undefined : plain(version.note)],
    [
      'created',
      `${minute(version.created_at)}${version.created_by_name === null ? '' : ` by ${plain(version.created_by_name)}`}`,
    ],
    ['ready', minute(version.ready_at)],
    ['ended', version.ended_at === null ? undefined : minute(version.ended_at)],
    ...describeSpec(spec, images),
    ...version.replicas.map(
      (replica) => [`replica ${replica.ordinal}`, `${replica.state}, ${replica.restarts} restarts`] as const,
    ),
  ]);
  const lines = reason?.last_lines.slice(-20).map((line) => `  | ${plain(line)}\n`) ?? [];
  return `${fields}${lines.join('')}`;
}

export function describeSpec(
  { image_id: imageId, compute, bindings, env, start_command: start, runtime, health_path: healthPath }: VersionSpec,
  images: readonly Image[],
): [string, string | undefined][] {
  const image = images.find(({ id }) => id === imageId);
  return [
    ['image', image === undefined ? imageId : `${plain(image.name)}:${plain(image.version)}`],
    [
      'compute',
      `${compute.cpu_millis / 1000} cores, ${megabytes(compute.memory_mb)}${compute.gpu_count === 0 ? '' : `, ${compute.gpu_count} GPU ${compute.gpu_type ?? ''}`}`.trimEnd(),
    ],
    ['runs', start === null ? `capstan serve ${runtime.model ?? 'demo'}` : plain(start)],
    [
      'data',
      bindings.length === 0
        ? undefined
        : bindings.map(({ mount, source_name: name, mode }) => `${mount}=${plain(name)} (${mode})`).join(', '),
    ],
    [
      'environment',
      Object.keys(env).length === 0
        ? undefined
        : Object.entries(env)
            .map(([name, value]) => `${name}=${value === null ? '(secret)' : plain(value)}`)
            .join(' '),
    ],
    ['health', healthPath],
  ];
}

const HELP_TAIL = `
Examples:
  capstan versions create chat --max-model-len 4K --note 'shorter context' --wait
  capstan versions list chat
  capstan versions activate chat 1 --wait      back to the first
`;
