import type { Command } from 'commander';
import { type CommandIo, counted, renderTable, UsageError } from 'capstan/internal/cli';
import type { Deployment, DeploymentEdit } from '../api/objects';
import { DEPLOYMENT_STATES } from '../deployments/deployment-state';
import {
  addRoutingFlags,
  addScaleFlags,
  addStrategyFlag,
  addWaitFlags,
  type RoutingFlags,
  type ScaleFlags,
  timeoutOf,
  toRouting,
  toScale,
  toStrategy,
  type WaitFlags,
} from './deploy-flags';
import { findDeployment, findOwnerOrSelf } from './find';
import { type Call, printJson, remote, requireYes } from './remote';
import { defined } from './spec-flags';
import { formatTime, plain, renderFields } from './text';
import { addUpstreamFlags, describeUpstream, toUpstreamEdit, type UpstreamFlags } from './upstream-flags';
import { waitUntilRunning, waitUntilStopped } from './wait';

interface ListFlags {
  owner?: string;
  state?: string;
  search?: string;
}

interface EditFlags extends ScaleFlags, RoutingFlags, UpstreamFlags {
  name?: string;
  strategy?: string;
}

/** Adds `capstan deployments …`. */
export function addDeploymentsCommand(program: Command, io?: CommandIo): void {
  const deployments = program
    .command('deployments')
    .description('list and manage deployments; NAME is a name, an ID or the slug of a URL')
    .addHelpText('after', HELP_TAIL);
  remote<ListFlags>(deployments, 'list', 'list deployments', list, io)
    .option('--owner <owner>', 'only deployments of org:SLUG, or of yourself: me')
    .option(
      '--state <states>',
      `only deployments in these states, separated by commas: ${DEPLOYMENT_STATES.join(', ')}`,
    )
    .option('--search <text>', 'only deployments with this text in the name');
  remote(deployments, 'get <name>', 'show a deployment, with the reason if it does not serve', get, io);
  for (const { name, description, until, ...words } of COMMANDS) {
    const command = remote<WaitFlags>(
      deployments,
      `${name} <name>`,
      description,
      async ({ client, flags, args: [reference], io: callIo }) => {
        const { id } = await findDeployment(client, reference);
        const changed = await client.deployments.command(id, name);
        if (flags.wait !== true) return print(callIo, flags, changed, `${words.result}. State:`);
        const deployment =
          until === 'running'
            ? await waitUntilRunning(client, id, timeoutOf(flags), callIo)
            : await waitUntilStopped(client, id, until, timeoutOf(flags), callIo);
        print(callIo, flags, deployment, 'is');
      },
      io,
    );
    addWaitFlags(command, words.event);
  }
  const editing = remote<EditFlags>(
    deployments,
    'edit <name>',
    'change the name, the aliases, the fallbacks, the upstream, the scale or the roll-out strategy of a deployment',
    edit,
    io,
  );
  addScaleFlags(editing, { isChange: true }).option('--name <text>', 'new name');
  addRoutingFlags(editing, { isChange: true });
  addUpstreamFlags(editing, { isChange: true });
  addStrategyFlag(editing);
  remote<{ yes?: boolean }>(
    deployments,
    'delete <name>',
    'delete a deployment, its versions and its logs permanently',
    remove,
    io,
  ).option('--yes', 'confirm the deletion');
  remote(
    deployments,
    'access <name> <on|off>',
    'require an access key for a deployment (on), or accept every request (off)',
    setAccess,
    io,
  );
}

const COMMANDS = [
  {
    name: 'start',
    description: 'start a deployment that is paused, failed or scaled to zero',
    result: 'starts',
    event: 'the deployment serves',
    until: 'running',
  },
  {
    name: 'stop',
    description: 'stop a deployment; its URL returns 503 until you start it again',
    result: 'stops',
    event: 'all replicas have ended',
    until: 'paused',
  },
  {
    name: 'restart',
    description: 'stop all replicas of a deployment, then start new ones; its URL returns 503 in between',
    result: 'restarts',
    event: 'the deployment serves',
    until: 'running',
  },
  {
    name: 'scale-to-zero',
    description: 'stop all replicas of a deployment; the next request starts it again',
    result: 'scales to zero',
    event: 'all replicas have ended',
    until: 'scaled_to_zero',
  },
] as const;

async function list({ client, flags, io }: Call<ListFlags>): Promise<void> {
  const owner = flags.owner === undefined ? undefined : await findOwnerOrSelf(client, flags.owner);
  const found = await client.deployments.list({
    ...defined('owner', owner === undefined ? undefined : `${owner.type}:${owner.id}`),
    ...defined('state', flags.state),
    ...defined('q', flags.search),
  });
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0) return io.err('No deployments found. Create one with: capstan deploy NAME\n');
  io.out(
    renderTable(
      ['NAME', 'STATE', 'ACCESS', 'REPLICAS', 'VERSION', 'OWNER', 'URL', 'ID'],
      found.map((deployment) => [
        plain(deployment.name),
        deployment.state,
        accessOf(deployment),
        deployment.upstream === null ? `${deployment.ready_replicas}/${deployment.min_replicas}` : '-',
        String(deployment.upstream?.version ?? deployment.active_version ?? '-'),
        `${deployment.owner.type}:${plain(deployment.owner.name)}`,
        deployment.url,
        deployment.id,
      ]),
    ),
  );
}

async function get({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  const deployment = await findDeployment(client, name);
  if (flags.json) return printJson(io, deployment);
  io.out(describeDeployment(deployment));
}

async function edit({ client, flags, args: [name], io }: Call<EditFlags>): Promise<void> {
  const body: DeploymentEdit = {
    ...toScale(flags),
    ...toRouting(flags),
    ...toUpstreamEdit(flags, io.env),
    ...defined('name', flags.name),
    ...defined('strategy', toStrategy(flags.strategy)),
  };
  if (Object.keys(body).length === 0)
    throw new UsageError(
      'nothing to change: expected --name, --alias, --remove-aliases, --fallback, --fallback-after, --remove-fallbacks, a flag of the upstream, --replicas, --min-replicas, --max-replicas, --idle-timeout, --cold-start-wait or --strategy. To change what it runs, use capstan versions create',
    );
  const { id, rev } = await findDeployment(client, name);
  print(io, flags, await client.deployments.edit(id, body, rev), 'changed. State:');
}

async function remove({ client, flags, args: [name], io }: Call<{ yes?: boolean }>): Promise<void> {
  const deployment = await findDeployment(client, name);
  requireYes(
    flags,
    `delete ${plain(deployment.name)} (${deployment.id}, ${deployment.state})`,
    `this cannot be undone, and ${deployment.url} is never used again`,
  );
  const removed = await client.deployments.remove(deployment.id, deployment.name);
  if (flags.json) return printJson(io, removed);
  io.out(`${plain(deployment.name)} (${deployment.id}) is being deleted: its URL is closed, and its replicas stop\n`);
}

/** Runs `capstan deployments access` and `capstan access`. */
export async function setAccess({ client, flags, args: [name, setting], io }: Call<object>): Promise<void> {
  if (setting !== 'on' && setting !== 'off') throw new UsageError(`access: expected on or off, got '${setting}'`);
  const { id, rev } = await findDeployment(client, name);
  const { warnings = [], propagation, ...deployment } = await client.deployments.setAccess(id, setting === 'on', rev);
  if (warnings.includes('no_key'))
    io.err(
      `warning: no access key exists for this deployment, so every request is refused. Create one with: capstan keys create --deployment ${plain(name)}\n`,
    );
  if (flags.json) return printJson(io, { ...deployment, warnings, propagation });
  io.out(
    `access control of ${plain(deployment.name)} is ${setting}${propagation === undefined ? '' : ` (applied by ${propagation.applied} of ${counted(propagation.total, 'gateway')})`}\n`,
  );
}

/** Returns the fields of a deployment as text, one per line. */
export function describeDeployment(deployment: Deployment): string {
  const { reason } = deployment;
  return renderFields([
    ['name', plain(deployment.name)],
    ['id', deployment.id],
    ['state', deployment.state],
    ['reason', reason === null ? undefined : `${reason.code}: ${plain(reason.message)}`],
    ['aliases', deployment.aliases.length === 0 ? undefined : deployment.aliases.map(plain).join(', ')],
    ['upstream', describeUpstream(deployment)],
    ['fallbacks', fallbacksOf(deployment)],
    ['url', deployment.url],
    ['access', accessOf(deployment)],
    ['owner', `${deployment.owner.type}:${plain(deployment.owner.name)}`],
    [
      'version',
      deployment.upstream !== null
        ? undefined
        : `${deployment.active_version ?? '-'}${deployment.target_version === null || deployment.target_version === deployment.active_version ? '' : `, rolling out ${deployment.target_version}`}`,
    ],
    [
      'replicas',
      deployment.upstream !== null
        ? undefined
        : `${deployment.ready_replicas} ready, ${wantedReplicas(deployment)} wanted`,
    ],
    ['created', formatTime(deployment.created_at)],
  ]);
}

function fallbacksOf({ fallbacks, fallback_after_s: seconds }: Deployment): string | undefined {
  if (fallbacks.length === 0) return undefined;
  return `${fallbacks.map(plain).join(', ')}${seconds === null ? '' : `, after ${seconds} s without a first byte`}`;
}

function wantedReplicas({ min_replicas: min, max_replicas: max }: Deployment): string {
  return min === max ? String(min) : `${min} to ${max}`;
}

function print(io: CommandIo, flags: { json?: boolean }, deployment: Deployment, result: string): void {
  if (flags.json) return printJson(io, deployment);
  io.out(`${plain(deployment.name)} (${deployment.id}) ${result} ${deployment.state}\n`);
}

function accessOf({ access_control: isRestricted }: Deployment): string {
  return isRestricted ? 'with a key' : 'public';
}

const HELP_TAIL = `
Examples:
  capstan deployments list --state running
  capstan deployments restart chat --wait
  capstan deployments edit chat --min-replicas 0 --max-replicas 2 --idle-timeout 15m
  capstan deployments access chat on
  URL=$(capstan deployments get chat --json | jq -r .url)
`;
