import type { Command } from 'commander';
import { addFlags, DISK_FULL, readFlagSources, UsageError } from 'capstan/internal/cli';
import { resolveUpOptions, UP_FIRST_GROUP, UP_FLAG_NAMES } from './up-flags';
import type { UpOptions } from '../up/options';

/** Adds `capstan up`. @param onExit Receives the exit code when the service has ended. */
export function addUpCommand(program: Command, onExit: (exitCode: number) => void): void {
  const command = program
    .command('up')
    .description('run the deployment service: a console, a management API and a gateway')
    .addHelpText('after', HELP_TAIL);
  const commandLine = addFlags(command, UP_FLAG_NAMES, UP_FIRST_GROUP);
  command.action(async () => {
    if (process.platform !== 'linux') {
      throw new UsageError(
        `capstan up: expected Linux, got ${process.platform}. Deployments run in Linux namespaces. ` +
          (process.platform === 'win32' ? 'Use WSL 2' : 'capstan serve does not need Linux'),
      );
    }
    const sources = await readFlagSources(commandLine, UP_FLAG_NAMES);
    const { up } = await import('../up/service.js');
    const configFile = commandLine.configFile ?? process.env.CAPSTAN_CONFIG;
    const options = resolveUpOptions(sources, process.env);
    onExit(await up({ ...options, configFile }).catch((error: Error) => explainFullDisk(options, error)));
  });
}

/** Errors of the database and of the kernel name neither the disk nor what to do. */
function explainFullDisk({ dataDir, databaseUrl }: UpOptions, error: Error): never {
  // The full disk may be that of PostgreSQL, whose message says so.
  if (!DISK_FULL.test(error.message) || databaseUrl !== undefined) throw error;
  const message = `the disk of ${dataDir} is full: free space there, then start the service again`;
  throw Object.assign(new Error(message, { cause: error }), { code: 'disk_full' });
}

const HELP_TAIL = `
--no-NAME turns a switch off. Each flag is also an environment variable
(CAPSTAN_SERVING_PORT=9000 for --serving-port 9000) and a line of the --config
file. The command line overrides the environment, and the environment overrides
the file.

Ctrl-C or SIGTERM finishes the open requests and ends the service. A second one
exits at once. Deployments keep running, but their URLs do not respond until the
service runs again. The same holds after a crash. With --stop-deployments they
end with the service.

Examples:
  capstan up                                        prints a link to create the administrator account
  capstan up --data-dir ./service --port 9000       deployments on port 9001
  capstan up --data-dir DIR --bootstrap-email you@example.com --bootstrap-password-file password.txt
                                                    without a browser; then run capstan tokens create --data-dir DIR
  DATABASE_URL=postgres://capstan@db/capstan capstan up --data-dir DIR
  capstan up --host 0.0.0.0 --ssl-keyfile key.pem --ssl-certfile cert.pem --serving-domain models.example.com
`;
