import type { Command } from 'commander';
import { type CommandIo, counted, renderTable, UsageError } from 'capstan/internal/cli';
import type { Image, NewVersion, Version, VersionSpec } from '../api/objects';
import { addCanaryFlags, type CanaryFlags, toCanary } from './canary';
import { addStrategyFlag, addWaitFlags, timeoutOf, toStrategy, type WaitFlags } from './deploy-flags';
import { findDeployment } from './find';
import { type Call, printJson, remote, requireYes } from './remote';
import { addSpecFlags, defined, type SpecFlags, toSpec } from './spec-flags';
import { describeCompute, formatTime, plain, renderFields, runsText } from './text';
import { waitUntilRunning } from './wait';

interface CreateFlags extends SpecFlags, WaitFlags, CanaryFlags {
  note?: string;
  strategy?: string;
}

/** Adds `capstan versions …`. */
export function addVersionsCommand(program: Command, io?: CommandIo): void {
  const versions = program
    .command('versions')
    .description('manage the versions of a deployment: roll out changes and roll back')
    .addHelpText('after', HELP_TAIL);
  remote(versions, 'list <name>', 'list the versions of a deployment', list, io);
  remote(versions, 'get <name> <number>', 'show a version: what it runs, its state and why it failed', get, io);
  const creating = remote<CreateFlags>(
    versions,
    'create <name>',
    'create a version and roll it out; settings without a flag keep their value from the newest version',
    create,
    io,
  );
  addSpecFlags(creating, { of: 'deployment', isChange: true }).option('--note <text>', 'note for the version');
  addStrategyFlag(creating, "the deployment's");
  addCanaryFlags(creating);
  addWaitFlags(creating, 'the version serves');
  addWaitFlags(
    remote<WaitFlags>(versions, 'activate <name> <number>', 'roll out an earlier version again', activate, io),
    'the version serves',
  );
  remote<{ yes?: boolean }>(
    versions,
    'delete <name> <number>',
    'delete a stopped or failed version and its logs',
    remove,
    io,
  ).option('--yes', 'confirm the deletion');
}

async function list({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  const { id, upstream } = await findDeployment(client, name);
  if (upstream !== null) return listUpstream({ client, flags, io }, id);
  const found = await client.versions.list(id);
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['NUMBER', 'STATE', 'ACTIVE', 'CREATED', 'READY', 'REASON', 'NOTE'],
      found.map((version) => [
        String(version.number),
        version.state,
        version.is_active ? 'yes' : '',
        formatTime(version.created_at),
        formatTime(version.ready_at),
        version.reason?.code ?? '',
        plain(version.note ?? ''),
      ]),
    ),
  );
}

async function listUpstream({ client, flags, io }: Omit<Call<object>, 'args'>, id: string): Promise<void> {
  const { data } = await client.versions.listUpstream(id);
  if (flags.json) return printJson(io, { data, next: null });
  io.out(
    renderTable(
      ['NUMBER', 'CREATED', 'KEY', 'INTERFACES', 'MODEL', 'URL'],
      data.map(({ version, created_at: at, has_secret: hasSecret, interfaces, model, url }) => [
        String(version),
        formatTime(at),
        hasSecret ? 'yes' : 'no',
        interfaces.join(','),
        plain(model ?? ''),
        url,
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
  const canary = toCanary(flags);
  if (canary !== undefined && flags.wait === true)
    throw new UsageError('--wait: cannot be used with --canary, because the roll-out waits for a decision');
  const body: NewVersion = {
    ...(await toSpec(client, flags, io.env)),
    ...defined('note', flags.note),
    ...defined('strategy', toStrategy(flags.strategy)),
    ...defined('canary', canary),
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
  requireYes(flags, `delete version ${number} of ${name} and its logs`);
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
      `${formatTime(version.created_at)}${version.created_by_name === null ? '' : ` by ${plain(version.created_by_name)}`}`,
    ],
    ['ready', formatTime(version.ready_at)],
    ['ended', version.ended_at === null ? undefined : formatTime(version.ended_at)],
    ...describeSpec(spec, images),
    ...version.replicas.map(
      (replica) => [`replica ${replica.ordinal}`, `${replica.state}, ${counted(replica.restarts, 'restart')}`] as const,
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
    ['compute', describeCompute(compute)],
    ['runs', runsText(start, runtime)],
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
  capstan versions activate chat 1 --wait      roll back to version 1
`;
