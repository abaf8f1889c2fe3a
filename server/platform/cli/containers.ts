import type { Command } from 'commander';
import { type CommandIo, renderTable, UsageError } from 'capstan/internal/cli';
import type { Container, NewContainer } from '../api/objects';
import { addWaitFlags, timeoutOf, type WaitFlags } from './deploy-flags';
import { findContainer, findOwner } from './find';
import { type Call, printJson, remote, requireYes } from './remote';
import { addSpecFlags, defined, type SpecFlags, toSpec } from './spec-flags';
import { describeCompute, formatTime, plain, renderFields, runsText } from './text';
import { waitForContainer } from './wait';
import { describeSpec } from './versions';

interface CreateFlags extends SpecFlags, WaitFlags {
  owner?: string;
}

/** Adds `capstan containers …`. */
export function addContainersCommand(program: Command, io?: CommandIo): void {
  const containers = program
    .command('containers')
    .description('manage training containers, where you prepare a model before you deploy it')
    .addHelpText('after', HELP_TAIL);
  remote(containers, 'list', 'list containers', list, io);
  remote(containers, 'get <name>', 'show a container', get, io);
  addSpecFlags(
    remote<CreateFlags>(
      containers,
      'create <name>',
      'create a container; it stays stopped until you start it',
      create,
      io,
    ),
    { of: 'container', isChange: false },
  ).option('--owner <owner>', 'owner of the container: org:SLUG (default: yourself)');
  addSpecFlags(
    remote<CreateFlags & { name?: string }>(
      containers,
      'edit <name>',
      'change what a container runs from its next start; settings without a flag do not change',
      edit,
      io,
    ),
    { of: 'container', isChange: true },
  ).option('--name <text>', 'new name');
  addWaitFlags(
    remote<WaitFlags>(containers, 'start <name>', 'start a container; its URL forwards to its port 8080', start, io),
    'the container runs',
  );
  remote(containers, 'stop <name>', 'stop a container; its data sources stay', stop, io);
  remote<{ yes?: boolean }>(containers, 'delete <name>', 'delete a container permanently', remove, io).option(
    '--yes',
    'confirm the deletion',
  );
  remote(containers, 'preview <name>', 'show the deployment that capstan deploy --container would create', preview, io);
}

async function list({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.containers.list();
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0) return io.err('No containers yet. Create one with: capstan containers create NAME\n');
  io.out(
    renderTable(
      ['NAME', 'STATE', 'OWNER', 'URL', 'ID'],
      found.map((container) => [
        plain(container.name),
        container.state,
        `${container.owner.type}:${plain(container.owner.name)}`,
        container.url ?? '',
        container.id,
      ]),
    ),
  );
}

async function get({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  print(io, flags, await findContainer(client, name));
}

async function create({ client, flags, args: [name], io }: Call<CreateFlags>): Promise<void> {
  const body: NewContainer = {
    name,
    ...(await toContainerSpec(client, flags, io.env)),
    ...defined('owner', await findOwner(client, flags.owner)),
  };
  print(io, flags, await client.containers.create(body));
}

async function edit({ client, flags, args: [name], io }: Call<CreateFlags & { name?: string }>): Promise<void> {
  const body = { ...(await toContainerSpec(client, flags, io.env)), ...defined('name', flags.name) };
  if (Object.keys(body).length === 0)
    throw new UsageError('nothing to change: expected --name or a flag for what it runs (see --help)');
  const { id, rev } = await findContainer(client, name);
  print(io, flags, await client.containers.edit(id, body, rev));
}

/** @throws UsageError for flags that only deployments have. */
async function toContainerSpec(
  client: Call<object>['client'],
  flags: SpecFlags,
  env: NodeJS.ProcessEnv,
): Promise<Omit<NewContainer, 'name' | 'owner'>> {
  const {
    health_path: health,
    start_deadline_s: deadline,
    grace_s: grace,
    note: _note,
    strategy: _strategy,
    ...spec
  } = await toSpec(client, flags, env);
  if ((health ?? deadline ?? grace) !== undefined)
    throw new UsageError('--health-path, --start-deadline and --grace are only for deployments');
  return spec;
}

async function start({ client, flags, args: [name], io }: Call<WaitFlags>): Promise<void> {
  const { id } = await findContainer(client, name);
  const started = await client.containers.command(id, 'start');
  print(io, flags, flags.wait === true ? await waitForContainer(client, id, timeoutOf(flags), io) : started);
}

async function stop({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  print(io, flags, await client.containers.command((await findContainer(client, name)).id, 'stop'));
}

async function remove({ client, flags, args: [name], io }: Call<{ yes?: boolean }>): Promise<void> {
  const container = await findContainer(client, name);
  requireYes(
    flags,
    `delete ${plain(container.name)} (${container.id}, ${container.state})`,
    'this cannot be undone, but its data sources stay',
  );
  await client.containers.remove(container.id, container.name);
  if (flags.json) return printJson(io, container);
  io.out(`deleted ${plain(container.name)} (${container.id})\n`);
}

async function preview({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  const found = await client.containers.preview((await findContainer(client, name)).id);
  if (flags.json) return printJson(io, found);
  io.out(
    renderFields([
      ['name', plain(found.name)],
      ['owner', `${found.owner.type}:${plain(found.owner.name)}`],
      ...describeSpec(found.spec, await client.images.list()),
    ]),
  );
  for (const warning of found.warnings) io.err(`warning: ${plain(warning)}\n`);
}

function print(io: CommandIo, flags: { json?: boolean }, container: Container): void {
  if (flags.json) return printJson(io, container);
  const { compute, runtime } = container;
  io.out(
    renderFields([
      ['name', plain(container.name)],
      ['id', container.id],
      ['state', container.state],
      ['reason', container.reason === null ? undefined : plain(container.reason)],
      ['url', container.url ?? undefined],
      ['owner', `${container.owner.type}:${plain(container.owner.name)}`],
      ['compute', describeCompute(compute)],
      ['runs', runsText(container.start_command, runtime)],
      [
        'data',
        container.bindings.length === 0
          ? undefined
          : container.bindings
              .map(({ mount, source_name: source, mode }) => `${mount}=${plain(source)} (${mode})`)
              .join(', '),
      ],
      ['created', formatTime(container.created_at)],
    ]),
  );
}

const HELP_TAIL = `
Examples:
  capstan containers create lab --model demo
  capstan containers start lab --wait
  capstan deploy chat --container lab --wait

While a container runs, its URL forwards to its port 8080. Only user-level keys of its owner may use it:
  curl "$(capstan containers get lab --json | jq -r .url)/v1/models" -H "Authorization: Bearer $KEY"
`;
