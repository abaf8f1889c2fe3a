import type { Command } from 'commander';
import { type CommandIo, deleteProfile, PROCESS_IO, profileFile, UsageError, writeProfile } from 'capstan/internal/cli';
import { Client } from '../api/client';
import type { Me } from '../api/objects';
import { checkServiceUrl } from './remote';
import { plain } from './text';

/** Adds `capstan login` and `capstan logout`. */
export function addLoginCommands(program: Command, io: CommandIo = PROCESS_IO): void {
  program
    .command('login <url>')
    .description('save the address of a service and a management token for later commands')
    .addHelpText('after', HELP_TAIL)
    .action((url: string) => login(url, io));
  program
    .command('logout')
    .description('delete what capstan login saved; the token stays valid until you delete it')
    .action(() => logout(io));
}

async function login(address: string, io: CommandIo): Promise<void> {
  const url = checkServiceUrl(address, 'URL').replace(/\/+$/, '');
  const token = (await readToken(url, io)).trim();
  if (token === '')
    throw new UsageError(
      `expected a management token, got nothing. Create one at ${url}/account/tokens, then enter it or pipe it to capstan login`,
    );
  // The service checks the token before it replaces an earlier one.
  const { email } = await new Client({ url, token, fetch: io.fetch }).request<Me>('GET', '/me');
  const file = writeProfile(io.env, { url, token });
  io.err(`You are logged in at ${url} as ${plain(email)}. The token is in ${file}.\n`);
  warnAboutVariables(io);
}

/** NOTE: a token is not accepted on the command line, because every process of the machine can read it. */
function readToken(url: string, { ask, readInput }: CommandIo): Promise<string> {
  if (ask !== undefined)
    return ask(`Create a management token at ${url}/account/tokens.\nManagement token: `, { isSecret: true });
  return readInput?.() ?? Promise.resolve('');
}

function warnAboutVariables({ env, err }: CommandIo): void {
  const set = ['CAPSTAN_URL', 'CAPSTAN_TOKEN'].filter((name) => (env[name] ?? '') !== '');
  if (set.length > 0) err(`warning: variables take precedence over this login: ${set.join(', ')}\n`);
}

function logout({ env, err }: CommandIo): void {
  const file = deleteProfile(env);
  err(
    file === undefined
      ? `You are not logged in: ${profileFile(env)} does not exist\n`
      : `deleted ${file}. The token stays valid until you delete it in the console\n`,
  );
}

const HELP_TAIL = `
A terminal asks for the token and does not show it. Otherwise the token is read
from standard input. The file is capstan/profile.json in XDG_CONFIG_HOME, else
in ~/.config. Only its owner can read it. Its token is sent only to its URL.

Commands use the first of these: --url and --token, CAPSTAN_URL and
CAPSTAN_TOKEN, the login. After a login, a token in --token or CAPSTAN_TOKEN
needs its URL in --url or CAPSTAN_URL.

Examples:
  capstan login https://capstan.example.com
  capstan login http://127.0.0.1:8090 < token.txt
`;
