import type { Command } from 'commander';
import { gather, mountFlags } from '../flag-options';
import { resolveUpOptions, UP_FIRST_GROUP, UP_FLAG_NAMES } from './flags';

/** Mounts `capstan up`. @param onExit Hears the exit code once the service has ended. */
export function addUpCommand(program: Command, onExit: (exitCode: number) => void): void {
  const command = program
    .command('up')
    .description('run deployments on this machine: a console, a management interface and a gateway')
    .helpOption('-h, --help', 'print this help')
    .showHelpAfterError('(capstan up --help says more)')
    .addHelpText('after', HELP_TAIL);
  const given = mountFlags(command, UP_FLAG_NAMES, UP_FIRST_GROUP);
  command.action(async () => {
    const sources = await gather(given, UP_FLAG_NAMES);
    const { up } = await import('../up.js');
    onExit(await up(resolveUpOptions(sources, process.env)));
  });
}

const HELP_TAIL = `
A switch is turned off by --no-NAME. Each flag is also a variable, CAPSTAN_SERVING_PORT=9000 for --serving-port 9000, and a line of
--config. The command line goes before the environment, the environment before the file.

Ctrl-C or SIGTERM ends the service once the open requests are answered; a second one ends it at once. Deployments run on without an
address until the next start, which finds them; so they do when the service crashes. With --stop-deployments they end with it.

Examples:
  capstan up                                        http://127.0.0.1:8090, and a link for the first administrator
  capstan up --data-dir ./service --port 9000       deployments on port 9001
  capstan up --data-dir DIR --bootstrap-email you@example.com --bootstrap-password-file password.txt
                                                    without a browser; then capstan tokens create --data-dir DIR …
  DATABASE_URL=postgres://capstan@db/capstan capstan up --data-dir DIR
  capstan up --host 0.0.0.0 --ssl-keyfile key.pem --ssl-certfile cert.pem --serving-domain models.example.com
`;
