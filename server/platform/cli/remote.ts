import type { Command } from 'commander';
import { type CommandIo, type Profile, PROCESS_IO, readProfile, UsageError } from 'capstan/internal/cli';
import { Client } from '../api/client';

/** The flags of every command that talks to a running service. */
export interface RemoteFlags {
  url?: string;
  token?: string;
  json?: boolean;
}

/** One invocation of a command. */
export interface Call<F> {
  client: Client;
  flags: F & RemoteFlags;
  args: readonly string[];
  io: CommandIo;
}

const DEFAULT_URL = 'http://127.0.0.1:8090';

/**
 * Adds a command that talks to a running service.
 * @param usage The name and the arguments, for example `get <name>`.
 */
export function remote<F extends object = object>(
  parent: Command,
  usage: string,
  description: string,
  run: (call: Call<F>) => Promise<void>,
  io: CommandIo = PROCESS_IO,
): Command {
  const command = addRemoteFlags(parent.command(usage).description(description));
  command.action(async (...values: unknown[]) => {
    const flags = command.opts<F & RemoteFlags>();
    const args = values.filter((value) => typeof value === 'string' || Array.isArray(value)).flat() as string[];
    await run({ client: connect(flags, io), flags, args, io });
  });
  return command;
}

function addRemoteFlags(command: Command): Command {
  return command
    .option('--url <url>', `URL of the service (default: CAPSTAN_URL, else that of capstan login, else ${DEFAULT_URL})`)
    .option('--token <token>', 'management token; prefer CAPSTAN_TOKEN or capstan login')
    .option('--json', 'print JSON');
}

/**
 * Returns a client for the service of the flags, the environment or the login. The token of a login is sent only to the
 * URL of the login. After a login, a token without a URL is refused.
 * @throws UsageError without a token, and for a token that may belong to another service than the login
 */
export function connect({ url, token }: RemoteFlags, io: CommandIo): Client {
  const { CAPSTAN_URL: urlVariable = '', CAPSTAN_TOKEN: tokenVariable = '' } = io.env;
  const named = url ?? (urlVariable === '' ? undefined : urlVariable);
  const given = token ?? tokenVariable;
  // The profile is read only when something needs it, so that a damaged one does no harm elsewhere.
  const profile = named === undefined || given === '' ? readProfile(io.env) : undefined;
  if (named === undefined && given !== '' && profile !== undefined)
    throw new UsageError(
      `${token === undefined ? 'CAPSTAN_TOKEN' : '--token'}: expected the URL of its service in --url or CAPSTAN_URL, got none. You are logged in at ${profile.url}. Without the token, commands use that login`,
    );
  const address = checkServiceUrl(named ?? profile?.url ?? DEFAULT_URL, url === undefined ? 'CAPSTAN_URL' : '--url');
  const credential = given === '' ? tokenFor(address, profile) : given;
  if (credential === undefined)
    throw new UsageError(
      `expected a management token for ${address} in CAPSTAN_TOKEN or --token, got none. Create one in the console and run capstan login URL, or create one on the service's machine with: capstan tokens create --data-dir DIR --email EMAIL --name NAME`,
    );
  return new Client({ url: address, token: credential, ...(io.fetch === undefined ? {} : { fetch: io.fetch }) });
}

/** The token of a login is never sent to another service. */
function tokenFor(address: string, profile: Profile | undefined): string | undefined {
  return profile !== undefined && new URL(address).href === new URL(profile.url).href ? profile.token : undefined;
}

/** @param source The flag, variable or argument, for messages. */
export function checkServiceUrl(address: string, source: string): string {
  if (!/^https?:\/\//.test(address) || !URL.canParse(address))
    throw new UsageError(`${source}: expected a URL such as ${DEFAULT_URL}, got '${address}'`);
  const { username, password } = new URL(address);
  if (username !== '' || password !== '')
    throw new UsageError(`${source}: expected a URL without a user name and password. Use a management token`);
  return address;
}

/** @throws UsageError unless `--yes` confirms `action`, for example `delete chat`. */
export function requireYes({ yes }: { yes?: boolean }, action: string, consequence = 'this cannot be undone'): void {
  if (yes !== true) throw new UsageError(`expected --yes to ${action}: ${consequence}`);
}

export function printJson(io: CommandIo, value: unknown): void {
  io.out(`${JSON.stringify(value)}\n`);
}
