import type { Command } from 'commander';
import type { Deployment, DeploymentEdit, OwnerReference } from '../api/objects';
import { UsageError } from '../flag-values';
import { renderTable } from '../text-table';
import {
  addScaleFlags,
  addWaitFlags,
  type ScaleFlags,
  timeoutOf,
  toScale,
  toStrategy,
  type WaitFlags,
} from './deploy-flags';
import { findDeployment, findOwner } from './find';
import type { CommandIo } from './io';
import { type Call, printJson, remote } from './remote';
import { defined } from './spec-flags';
import { minute, plain, renderFields } from './text';
import { waitUntilRunning } from './wait';

interface ListFlags {
  owner?: string;
  state?: string;
  search?: string;
}

interface EditFlags extends ScaleFlags {
  name?: string;
  strategy?: string;
}

/** Mounts `capstan deployments …`. */
export function addDeploymentsCommand(program: Command, io?: CommandIo): void {
  const deployments = program
    .command('deployments')
    .description('list and steer deployments; NAME is a name, an id or the slug of a URL')
    .addHelpText('after', HELP_TAIL);
  remote<ListFlags>(deployments, 'list', 'show deployments', list, io)
    .option('--owner <owner>', 'of org:SLUG alone')
    .option('--state <state>', 'in this state alone')
    .option('--search <text>', 'with this in their name');
  remote(deployments, 'get <name>', 'show one, and why it does not serve', get, io);
  for (const [spelling, description, command, done] of COMMANDS) {
    addWaitFlags(
      remote<WaitFlags>(
        deployments,
        `${spelling} <name>`,
        description,
        async ({ client, flags, args: [name], io: callIo }) => {
          const { id } = await findDeployment(client, name);
          const changed = await client.deployments.command(id, command);
          const deployment =
            flags.wait === true && command !== 'stop' && command !== 'scale-to-zero'
              ? await waitUntilRunning(client, id, timeoutOf(flags), callIo)
              : changed;
          tell(callIo, flags, deployment, done);
        },
        io,
      ),
    );
  }
  addScaleFlags(
    remote<EditFlags>(deployments, 'edit <name>', 'change its name, its scale or how new versions take over', edit, io),
  )
    .option('--name <text>', 'a new name')
    .option('--strategy <name>', 'auto, surge or replace');
  remote<{ yes?: boolean }>(deployments, 'delete <name>', 'end a deployment for good', remove, io).option(
    '--yes',
    'yes, for good',
  );
  remote(deployments, 'access <name> <on|off>', 'let in requests with a key alone, or everybody', setAccess, io);
}

const COMMANDS = [
  ['start', 'start what was stopped or failed', 'start', 'starts'],
  ['stop', 'end its replicas; its URL answers 503 until it is started again', 'stop', 'stops'],
  ['restart', 'replace its replicas', 'restart', 'restarts'],
  ['scale-to-zero', 'end its replicas until the next request', 'scale-to-zero', 'scales to zero'],
] as const;

async function list({ client, flags, io }: Call<ListFlags>): Promise<void> {
  const owner: OwnerReference | undefined = await findOwner(client, flags.owner);
  const found = await client.deployments.list({
    ...defined('owner', owner === undefined ? undefined : `${owner.type}:${owner.id}`),
    ...defined('state', flags.state),
    ...defined('q', flags.search),
  });
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0) return io.err('No deployments yet: capstan deploy NAME makes one.\n');
  io.out(
    renderTable(
      ['NAME', 'STATE', 'ACCESS', 'REPLICAS', 'VERSION', 'OWNER', 'URL', 'ID'],
      found.map((deployment) => [
        plain(deployment.name),
        deployment.state,
        accessOf(deployment),
        `${deployment.ready_replicas}/${deployment.min_replicas}`,
        String(deployment.active_version ?? '-'),
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
    ...defined('name', flags.name),
    ...defined('strategy', toStrategy(flags.strategy)),
  };
  if (Object.keys(body).length === 0)
    throw new UsageError(
      'nothing to change: give --name, --replicas, --min-replicas, --max-replicas, --idle-timeout, --cold-start-wait or --strategy; what it runs is changed by capstan versions create',
    );
  const { id, rev } = await findDeployment(client, name);
  tell(io, flags, await client.deployments.edit(id, body, rev), 'changed');
}

async function remove({ client, flags, args: [name], io }: Call<{ yes?: boolean }>): Promise<void> {
  const deployment = await findDeployment(client, name);
  if (flags.yes !== true)
    throw new UsageError(
      `this cannot be undone, and ${deployment.url} is never given again: --yes deletes ${plain(deployment.name)} (${deployment.id}, ${deployment.state})`,
    );
  const removed = await client.deployments.remove(deployment.id, deployment.name);
  if (flags.json) return printJson(io, removed);
  io.out(
    `${plain(deployment.name)} (${deployment.id}) is being deleted: its address is closed, and what runs of it ends\n`,
  );
}

/** Also `capstan access NAME on`. */
export async function setAccess({ client, flags, args: [name, wish], io }: Call<object>): Promise<void> {
  if (wish !== 'on' && wish !== 'off') throw new UsageError(`access: expected on or off, got '${wish}'`);
  const { id, rev } = await findDeployment(client, name);
  const { warnings = [], propagation, ...deployment } = await client.deployments.setAccess(id, wish === 'on', rev);
  if (warnings.includes('no_key'))
    io.err(
      'warning: there is no key yet, so every request is refused: capstan keys create --deployment NAME makes one\n',
    );
  if (flags.json) return printJson(io, { ...deployment, warnings, propagation });
  io.out(
    `access control of ${plain(deployment.name)} is ${wish}${propagation === undefined ? '' : ` (applied ${propagation.applied}/${propagation.total})`}\n`,
  );
}

/** For people. */
export function describeDeployment(deployment: Deployment): string {
  const { reason } = deployment;
  return renderFields([
    ['name', plain(deployment.name)],
    ['id', deployment.id],
    ['state', deployment.state],
    ['reason', reason === null ? undefined : `${reason.code}: ${plain(reason.message)}`],
    ['url', deployment.url],
    ['access', accessOf(deployment)],
    ['owner', `${deployment.owner.type}:${plain(deployment.owner.name)}`],
    [
      'version',
      `${deployment.active_version ?? '-'}${deployment.target_version === null || deployment.target_version === deployment.active_version ? '' : `, becoming ${deployment.target_version}`}`,
    ],
    ['replicas', `${deployment.ready_replicas} ready, ${deployment.min_replicas} to ${deployment.max_replicas} wanted`],
    ['created', minute(deployment.created_at)],
  ]);
}

function tell(io: CommandIo, flags: { json?: boolean }, deployment: Deployment, done: string): void {
  if (flags.json) return printJson(io, deployment);
  io.out(`${plain(deployment.name)} (${deployment.id}) ${done}: ${deployment.state}\n`);
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
