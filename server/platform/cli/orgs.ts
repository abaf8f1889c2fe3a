import type { Command } from 'commander';
import { anyOf, type CommandIo, parseChoice, renderTable, UsageError } from 'capstan/internal/cli';
import type { Invitation, MadeInvitation, Member, Organization } from '../api/objects';
import type { Client } from '../api/client';
import { type Call, printJson, remote, requireYes } from './remote';
import { defined } from './spec-flags';
import { formatMemory, formatTime, plain, renderFields } from './text';

const ROLES = ['viewer', 'developer', 'admin', 'owner'] as const;

/** Adds `capstan orgs …`. */
export function addOrgsCommand(program: Command, io?: CommandIo): void {
  const orgs = program
    .command('orgs')
    .description('manage organizations, their members and invitations')
    .addHelpText('after', HELP_TAIL);
  remote(orgs, 'list', 'list your organizations', list, io);
  remote(orgs, 'get <slug>', 'show an organization', get, io);
  remote<{ name?: string }>(orgs, 'create <slug>', 'create an organization; you become its owner', create, io).option(
    '--name <text>',
    'display name (default: the slug)',
  );
  remote<{ name?: string }>(orgs, 'edit <slug>', 'change the display name of an organization', edit, io).option(
    '--name <text>',
    'new display name',
  );
  remote<{ yes?: boolean }>(
    orgs,
    'delete <slug>',
    'delete an organization and its keys; delete its deployments and containers first',
    remove,
    io,
  ).option('--yes', 'confirm the deletion');
  remote(orgs, 'members <slug>', 'list the members of an organization', members, io);
  remote(orgs, 'set-role <slug> <email> <role>', `change the role of a member to ${anyOf(ROLES)}`, setRole, io);
  remote(orgs, 'remove-member <slug> <email>', 'remove a member from an organization', removeMember, io);
  remote<{ role?: string }>(
    orgs,
    'invite <slug> <email>',
    'invite a user and print the invitation link once',
    invite,
    io,
  ).option('--role <role>', `role of the new member: ${anyOf(ROLES)} (default: developer)`);
  remote(orgs, 'invitations <slug>', 'list the open invitations of an organization', invitations, io);
  remote(orgs, 'withdraw <slug> <email>', 'withdraw an open invitation', withdraw, io);
}

async function findOrg(client: Client, slug: string): Promise<Organization> {
  const found = await client.all<Organization>('/orgs', {});
  const org = found.find((candidate) => candidate.slug === slug || candidate.id === slug);
  if (org === undefined)
    throw Object.assign(new Error(`you are not in an organization called ${slug}`), { code: 'not_found' });
  return org;
}

async function list({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.all<Organization>('/orgs', {});
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0) return io.err('You are not in an organization. Create one with: capstan orgs create SLUG\n');
  io.out(
    renderTable(
      ['SLUG', 'NAME', 'YOUR ROLE', 'ID'],
      found.map(({ slug, name, role, id }) => [slug, plain(name), role, id]),
    ),
  );
}

async function get({ client, flags, args: [slug], io }: Call<object>): Promise<void> {
  const org = await findOrg(client, slug);
  if (flags.json) return printJson(io, org);
  io.out(
    renderFields([
      ['slug', org.slug],
      ['name', plain(org.name)],
      ['id', org.id],
      ['your role', org.role],
      ['deployments', String(org.quota_deployments ?? 'no limit')],
      ['versions', String(org.quota_versions ?? 'no limit')],
      ['GPUs', String(org.quota_gpu ?? 'no limit')],
      ['CPUs', org.quota_cpu_millis === null ? 'no limit' : String(org.quota_cpu_millis / 1000)],
      ['memory', org.quota_memory_mb === null ? 'no limit' : formatMemory(org.quota_memory_mb)],
      ['disk', org.quota_disk_mb === null ? 'no limit' : formatMemory(org.quota_disk_mb)],
    ]),
  );
}

async function create({ client, flags, args: [slug], io }: Call<{ name?: string }>): Promise<void> {
  const org = await client.request<Organization>('POST', '/orgs', { body: { slug, name: flags.name ?? slug } });
  if (flags.json) return printJson(io, org);
  io.out(`created ${org.slug} (${org.id})\n`);
}

async function edit({ client, flags, args: [slug], io }: Call<{ name?: string }>): Promise<void> {
  if (flags.name === undefined) throw new UsageError('nothing to change: expected --name');
  const { id } = await findOrg(client, slug);
  const org = await client.request<Organization>('PATCH', `/orgs/${id}`, { body: { name: flags.name } });
  if (flags.json) return printJson(io, org);
  io.out(`${org.slug} is now called ${plain(org.name)}\n`);
}

async function remove({ client, flags, args: [slug], io }: Call<{ yes?: boolean }>): Promise<void> {
  const org = await findOrg(client, slug);
  requireYes(flags, `delete ${org.slug} (${org.id}) and its keys`);
  await client.request('DELETE', `/orgs/${org.id}`, { query: { confirm: org.slug } });
  if (!flags.json) io.out(`deleted ${org.slug}\n`);
}

async function members({ client, flags, args: [slug], io }: Call<object>): Promise<void> {
  const found = await client.all<Member>(`/orgs/${(await findOrg(client, slug)).id}/members`, {});
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['EMAIL', 'NAME', 'ROLE', 'ID'],
      found.map((member) => [plain(member.email), plain(member.name), member.role, member.user_id]),
    ),
  );
}

async function findMember(client: Client, orgId: string, email: string): Promise<Member> {
  const found = (await client.all<Member>(`/orgs/${orgId}/members`, {})).find(
    (member) => member.email === email.toLowerCase() || member.user_id === email,
  );
  if (found === undefined)
    throw Object.assign(new Error(`the organization has no member ${email}`), { code: 'not_found' });
  return found;
}

async function setRole({ client, flags, args: [slug, email, role], io }: Call<object>): Promise<void> {
  const { id } = await findOrg(client, slug);
  const { user_id: userId } = await findMember(client, id, email);
  const member = await client.request<Member>('PATCH', `/orgs/${id}/members/${userId}`, {
    body: { role: parseChoice(role, 'role', ROLES) },
  });
  if (flags.json) return printJson(io, member);
  io.out(`changed the role of ${plain(email)} to ${role}\n`);
}

async function removeMember({ client, flags, args: [slug, email], io }: Call<object>): Promise<void> {
  const { id } = await findOrg(client, slug);
  await client.request('DELETE', `/orgs/${id}/members/${(await findMember(client, id, email)).user_id}`);
  if (!flags.json) io.out(`removed ${plain(email)}\n`);
}

/** Prints only the link to standard output. */
async function invite({ client, flags, args: [slug, email], io }: Call<{ role?: string }>): Promise<void> {
  const { id } = await findOrg(client, slug);
  const created = await client.request<MadeInvitation>('POST', `/orgs/${id}/invitations`, {
    body: { email, ...defined('role', parseChoice(flags.role ?? 'developer', '--role', ROLES)) },
  });
  if (flags.json) return printJson(io, created);
  io.err(
    `invited ${plain(email)} as ${created.role}. Send them this link. It expires at ${formatTime(created.expires_at)} and is not shown again:\n`,
  );
  io.out(`${client.url}/invitation#${created.token ?? ''}\n`);
}

async function invitations({ client, flags, args: [slug], io }: Call<object>): Promise<void> {
  const found = await client.all<Invitation>(`/orgs/${(await findOrg(client, slug)).id}/invitations`, {});
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['EMAIL', 'ROLE', 'UNTIL', 'ID'],
      found.map((invitation) => [
        plain(invitation.email),
        invitation.role,
        formatTime(invitation.expires_at),
        invitation.id,
      ]),
    ),
  );
}

async function withdraw({ client, flags, args: [slug, email], io }: Call<object>): Promise<void> {
  const { id } = await findOrg(client, slug);
  const found = (await client.all<Invitation>(`/orgs/${id}/invitations`, {})).find(
    (invitation) => invitation.email === email.toLowerCase() || invitation.id === email,
  );
  if (found === undefined)
    throw Object.assign(new Error(`the organization has no open invitation for ${email}`), { code: 'not_found' });
  await client.request('DELETE', `/orgs/${id}/invitations/${found.id}`);
  if (!flags.json) io.out(`withdrew the invitation for ${plain(found.email)}\n`);
}

const HELP_TAIL = `
Examples:
  capstan orgs create lab --name 'The laboratory'
  capstan orgs invite lab ada@example.com --role admin
  capstan deploy chat --owner org:lab
`;
