import type { Command } from 'commander';
import { type CommandIo, PROCESS_IO, UsageError } from 'capstan/internal';
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
    .option('--url <url>', `URL of the service (default: CAPSTAN_URL, else ${DEFAULT_URL})`)
    .option('--token <token>', 'management token; prefer CAPSTAN_TOKEN')
    .option('--json', 'print JSON');
}

/** Returns a client for the service that the flags or the environment name. @throws UsageError without a token */
export function connect({ url, token }: RemoteFlags, io: CommandIo): Client {
  const { CAPSTAN_URL: urlVariable = '', CAPSTAN_TOKEN: tokenVariable = '' } = io.env;
  const address = url ?? (urlVariable === '' ? DEFAULT_URL : urlVariable);
  if (!/^https?:\/\//.test(address) || !URL.canParse(address))
    throw new UsageError(
      `${url === undefined ? 'CAPSTAN_URL' : '--url'}: expected a URL such as ${DEFAULT_URL}, got '${address}'`,
    );
  const credential = token ?? tokenVariable;
  if (credential === '')
    throw new UsageError(
      "expected a management token in CAPSTAN_TOKEN or --token, got none. Create one in the console, or on the service's machine with: capstan tokens create --data-dir DIR --email EMAIL --name NAME",
    );
  return new Client({ url: address, token: credential, ...(io.fetch === undefined ? {} : { fetch: io.fetch }) });
}

/** @throws UsageError unless `--yes` confirms `action`, for example `delete chat`. */
export function requireYes({ yes }: { yes?: boolean }, action: string, consequence = 'this cannot be undone'): void {
  if (yes !== true) throw new UsageError(`expected --yes to ${action}: ${consequence}`);
}

export function printJson(io: CommandIo, value: unknown): void {
  io.out(`${JSON.stringify(value)}\n`);
}
