import type { Command } from 'commander';
import { Client } from '../api/client';
import { UsageError } from '../flag-values';
import { type CommandIo, PROCESS_IO } from './io';

/** What every command that talks to a running service takes. */
export interface RemoteFlags {
  url?: string;
  token?: string;
  json?: boolean;
}

/** One call of a command. */
export interface Call<F> {
  client: Client;
  flags: F & RemoteFlags;
  args: readonly string[];
  io: CommandIo;
}

export const DEFAULT_URL = 'http://127.0.0.1:8090';

/** Mounts one command that talks to a running service. */
export function remote<F extends object = object>(
  parent: Command,
  spelling: string,
  description: string,
  run: (call: Call<F>) => Promise<void>,
  io: CommandIo = PROCESS_IO,
): Command {
  const command = addRemoteFlags(parent.command(spelling).description(description));
  command.action(async (...given: unknown[]) => {
    const flags = command.opts<F & RemoteFlags>();
    const args = given.filter((value) => typeof value === 'string' || Array.isArray(value)).flat() as string[];
    await run({ client: connect(flags, io), flags, args, io });
  });
  return command;
}

export function addRemoteFlags(command: Command): Command {
  return command
    .option('--url <url>', `where the service is (default: CAPSTAN_URL, else ${DEFAULT_URL})`)
    .option('--token <token>', 'a management token; better as CAPSTAN_TOKEN')
    .option('--json', 'print JSON');
}

/** The service that the flags or the environment name. @throws UsageError without a token */
export function connect({ url, token }: RemoteFlags, io: CommandIo): Client {
  const { CAPSTAN_URL: urlVariable = '', CAPSTAN_TOKEN: tokenVariable = '' } = io.env;
  const address = url ?? (urlVariable === '' ? DEFAULT_URL : urlVariable);
  if (!/^https?:\/\//.test(address) || !URL.canParse(address))
    throw new UsageError(
      `${url === undefined ? 'CAPSTAN_URL' : '--url'}: expected an address such as ${DEFAULT_URL}, got '${address}'`,
    );
  const credential = token ?? tokenVariable;
  if (credential === '')
    throw new UsageError(
      "expected a management token, as CAPSTAN_TOKEN or --token: capstan tokens create --data-dir DIR --email E --name N makes one on the service's machine, the console's settings elsewhere",
    );
  return new Client({ url: address, token: credential, ...(io.fetch === undefined ? {} : { fetch: io.fetch }) });
}

export function collect(value: string, previous: string[] = []): string[] {
  return [...previous, value];
}

export function printJson(io: CommandIo, value: unknown): void {
  io.out(`${JSON.stringify(value)}\n`);
}
