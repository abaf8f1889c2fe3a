import type { Command } from 'commander';
import { collect, type CommandIo, UsageError } from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { Canary, CanarySplit, LastCanary } from '../api/objects';
import { findDeployment } from './find';
import { type Call, printJson, remote } from './remote';
import { defined } from './spec-flags';
import { formatTime, plain, renderFields } from './text';

export interface CanaryFlags {
  canary?: string;
  canaryHeader?: string;
  canaryKey?: string[];
}

interface SetFlags {
  percent?: string;
  header?: string;
  key?: string[];
}

/** Adds `capstan canary …`. */
export function addCanaryCommand(program: Command, io?: CommandIo): void {
  const canary = program
    .command('canary')
    .description('compare a new version with the active one, then promote it or roll it back')
    .addHelpText('after', HELP_TAIL);
  remote(canary, 'get <name>', 'show the last canary of a deployment and its comparison', get, io);
  remote<SetFlags>(canary, 'set <name>', 'change which requests go to the running canary', set, io)
    .option('--percent <share>', 'share of the requests, for example 25% (required)')
    .option(
      '--header <header>',
      "requests with this header go to the canary, for example 'X-Canary: yes'; none removes it",
    )
    .option('--key <id>', 'requests with this key go to the canary; repeatable', collect);
  remote(canary, 'promote <name>', 'make the canary the active version', (call) => decide(call, 'promote'), io);
  remote(canary, 'rollback <name>', 'stop the canary', (call) => decide(call, 'rollback'), io);
}

/** The flags of a command that creates a version. */
export function addCanaryFlags(command: Command): void {
  command
    .option('--canary <share>', 'send only this share of the requests to the new version, for example 10%')
    .option('--canary-header <header>', "requests with this header go to it too, for example 'X-Canary: yes'")
    .option('--canary-key <id>', 'requests with this key go to it too; repeatable', collect);
}

/** Returns undefined without a canary. @throws UsageError */
export function toCanary({ canary, canaryHeader, canaryKey }: CanaryFlags): CanarySplit | undefined {
  if (canary === undefined && (canaryHeader !== undefined || canaryKey !== undefined))
    throw new UsageError('--canary: expected a share such as 10%, or 0% for the header and the keys alone');
  return canary === undefined
    ? undefined
    : {
        percent: parsePercent('--canary', canary),
        ...defined('header', canaryHeader),
        ...defined('keys', canaryKey),
      };
}

async function get({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  const found = await read(client, name);
  if (flags.json) return printJson(io, found);
  io.out(describe(found));
}

async function set({ client, flags, args: [name], io }: Call<SetFlags>): Promise<void> {
  if (flags.percent === undefined) throw new UsageError('--percent: expected a share such as 25%');
  const { id } = await findDeployment(client, name);
  const header = flags.header === 'none' ? null : flags.header;
  const body: CanarySplit = {
    percent: parsePercent('--percent', flags.percent),
    ...defined('header', header),
    ...defined('keys', flags.key),
  };
  const changed = await client.request<Canary>('PATCH', `/deployments/${id}/canary`, { body });
  if (flags.json) return printJson(io, changed);
  io.out(describe(changed));
}

async function decide(
  { client, flags, args: [name], io }: Call<object>,
  decision: 'promote' | 'rollback',
): Promise<void> {
  const { id } = await findDeployment(client, name);
  const decided = await client.request<Canary>('POST', `/deployments/${id}/canary/${decision}`);
  if (flags.json) return printJson(io, decided);
  io.out(`version ${decided.version} of ${plain(name)}: ${decided.state.replace('_', ' ')}\n`);
}

async function read(client: Client, name: string): Promise<Canary> {
  const { id } = await findDeployment(client, name);
  const { canary } = await client.request<LastCanary>('GET', `/deployments/${id}/canary`);
  if (canary === null) throw Object.assign(new Error(`${name} has had no canary`), { code: 'not_found' });
  return canary;
}

function parsePercent(flag: string, text: string): number {
  const [, digits] = /^(\d{1,3})%?$/.exec(text) ?? [];
  if (digits === undefined || Number(digits) > 100)
    throw new UsageError(`${flag}: expected a share from 0% to 100%, got '${text}'`);
  return Number(digits);
}

function describe(of: Canary): string {
  return renderFields([
    ['version', String(of.version)],
    ['state', `${of.state.replace('_', ' ')}${of.reason === null ? '' : `: ${plain(of.reason)}`}`],
    ['share', `${of.percent}%`],
    ['header', of.header === null ? undefined : plain(of.header)],
    ['keys', of.keys.length === 0 ? undefined : of.keys.join(' ')],
    ['canary', statsText(of.canary)],
    ['stable', statsText(of.stable)],
    ['started', formatTime(of.started_at)],
    ['decided', of.decided_at === null ? undefined : formatTime(of.decided_at)],
  ]);
}

function statsText({ requests, errors, first_token_ms: ms }: Canary['stable']): string {
  return `${requests} requests, ${errors} errors${ms === null ? '' : `, first token after ${Math.round(ms)} ms`}`;
}

const HELP_TAIL = `
Examples:
  capstan versions create chat --max-model-len 8K --canary 10%
  capstan canary get chat
  capstan canary set chat --percent 50%
  capstan canary promote chat
`;
