import type { Command } from 'commander';
import { type CommandIo, renderTable, UsageError } from 'capstan/internal/cli';
import type { AuditEvent, DeploymentEvent } from '../api/objects';
import { setAccess } from './deployments';
import { findDeployment, findOwner } from './find';
import { type Call, printJson, remote } from './remote';
import { defined } from './spec-flags';
import { plain } from './text';

interface AuditFlags {
  org?: string;
  actor?: string;
  action?: string;
  target?: string;
  from?: string;
  lines?: string;
}

/** Adds `capstan access`, `capstan events` and `capstan audit`. */
export function addHistoryCommands(program: Command, io?: CommandIo): void {
  remote(
    program,
    'access <name> <on|off>',
    'require an access key for a deployment (on), or accept every request (off)',
    setAccess,
    io,
  );
  remote<{ follow?: boolean }>(program, 'events <name>', 'show the events of a deployment', events, io).option(
    '-f, --follow',
    'keep printing new events until Ctrl-C',
  );
  remote<AuditFlags>(
    program,
    'audit',
    'show the audit log, newest first (administrators; with --org also admins of the organization)',
    audit,
    io,
  )
    .option('--org <slug>', 'only entries of this organization')
    .option('--actor <id>', 'only entries of this actor: the ID of a user, or cli:NAME for a command')
    .option('--action <name>', 'only entries with this action, for example key.created')
    .option('--target <id>', 'only entries about the object with this ID')
    .option('--from <time>', 'only entries since this time, for example 2030-01-31T12:00:00Z')
    .option('-n, --lines <number>', 'maximum number of entries (default: 50)')
    .addHelpText('after', AUDIT_TAIL);
}

async function events({ client, flags, args: [name], io }: Call<{ follow?: boolean }>): Promise<void> {
  const { id } = await findDeployment(client, name);
  const found = await client.deployments.events(id);
  const inOrder = [...found].sort((a, b) => a.seq - b.seq);
  if (flags.json && flags.follow !== true) return printJson(io, { data: inOrder, next: null });
  const print = (event: DeploymentEvent) =>
    io.out(
      flags.json
        ? `${JSON.stringify(event)}\n`
        : `${event.at}  ${plain(event.type)}  ${plain(JSON.stringify(event.data))}\n`,
    );
  inOrder.forEach(print);
  if (flags.follow !== true) return;
  const seen = inOrder.at(-1)?.seq ?? 0;
  for await (const { data } of client.deployments.followEvents(id, io.signal)) {
    const event = JSON.parse(data) as DeploymentEvent;
    if (event.seq > seen) print(event);
  }
}

async function audit({ client, flags, io }: Call<AuditFlags>): Promise<void> {
  const limit = flags.lines ?? '50';
  if (!/^\d{1,5}$/.test(limit) || Number(limit) < 1)
    throw new UsageError(`--lines: expected a whole number of 1 or more, got '${limit}'`);
  const owner = flags.org === undefined ? undefined : await findOwner(client, `org:${flags.org}`);
  const found: AuditEvent[] = [];
  let after: string | undefined;
  do {
    const page: { data: AuditEvent[]; next: string | null } = await client.request('GET', '/audit', {
      query: {
        limit: Math.min(100, Number(limit) - found.length),
        ...defined('org', owner?.id),
        ...defined('actor', flags.actor),
        ...defined('action', flags.action),
        ...defined('target', flags.target),
        ...defined('from', flags.from),
        ...defined('after', after),
      },
    });
    found.push(...page.data);
    after = page.next ?? undefined;
  } while (after !== undefined && found.length < Number(limit));
  if (flags.json) return printJson(io, { data: found, next: after ?? null });
  io.out(
    renderTable(
      ['AT', 'ACTION', 'RESULT', 'BY', 'TARGET', 'FROM'],
      found.map((event) => [
        event.at,
        event.action,
        event.result,
        `${event.actor.type}:${plain(event.actor.name ?? event.actor.id)}`,
        withId(event.target),
        plain(event.ip ?? ''),
      ]),
    ),
  );
}

/** Returns the name and the ID. Deleted objects have only an ID. */
function withId({ id, name }: AuditEvent['target']): string {
  return name === null ? id : `${plain(name)} (${id})`;
}

const AUDIT_TAIL = `
Examples:
  capstan audit --action key.created --lines 10
  capstan audit --org lab --from 2030-01-31T12:00:00Z
`;
