import type { Command } from 'commander';
import type { AuditEvent, DeploymentEvent } from '../api/objects';
import { UsageError } from '../flag-values';
import { renderTable } from '../text-table';
import { setAccess } from './deployments';
import { findDeployment, findOwner } from './find';
import type { CommandIo } from './io';
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

/** Mounts `capstan access`, `capstan events` and `capstan audit`. */
export function addHistoryCommands(program: Command, io?: CommandIo): void {
  remote(
    program,
    'access <name> <on|off>',
    'let in requests to a deployment with a key alone, or everybody',
    setAccess,
    io,
  );
  remote<{ follow?: boolean }>(program, 'events <name>', 'what happened to a deployment', events, io).option(
    '-f, --follow',
    'and what happens from now on, until Ctrl-C',
  );
  remote<AuditFlags>(
    program,
    'audit',
    "who changed what, newest first: all of it for administrators, an organization's for its admins",
    audit,
    io,
  )
    .option('--org <slug>', 'of this organization')
    .option('--actor <id>', 'by this one alone')
    .option('--action <name>', 'this alone, as key.created')
    .option('--target <id>', 'of this object alone')
    .option('--from <time>', 'since then')
    .option('-n, --lines <number>', 'so many (default: 50)');
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
    throw new UsageError(`--lines: expected a number of 1 or more, got '${limit}'`);
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

/** What is deleted has its id alone. */
function withId({ id, name }: AuditEvent['target']): string {
  return name === null ? id : `${plain(name)} (${id})`;
}
