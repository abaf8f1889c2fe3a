import type { Command } from 'commander';
import type * as Service from '#service';
import { UsageError } from '../base/usage-error';
import { packageVersion } from '../base/version';

const INSTALL = `npm install @capstan/service@${packageVersion()}`;

/** The commands of `@capstan/service`. */
export const SERVICE_COMMANDS: readonly string[] = [
  ...['up', 'deploy', 'deployments', 'versions', 'logs', 'containers', 'images', 'data', 'compute', 'orgs', 'quotas'],
  ...['accounts', 'canary', 'identity-providers', 'access', 'events', 'audit', 'tokens', 'webhooks', 'login', 'logout'],
  ...['prices', 'budgets', 'spend'],
];

/** Loads `@capstan/service`. Returns undefined if it is not installed. */
export async function loadService(): Promise<typeof Service | undefined> {
  try {
    return await import('#service');
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

/** @throws UsageError with the command that installs `@capstan/service`. */
export function requireService(use: string): never {
  throw new UsageError(
    `${use} needs the package @capstan/service, which is not installed. Install it with: ${INSTALL}`,
  );
}

/** Adds the commands of `@capstan/service` where it is not installed. Each of them says how to install it. */
export function addMissingServiceCommands(program: Command): void {
  for (const name of SERVICE_COMMANDS) {
    program
      .command(name, { hidden: true })
      .argument('[arguments...]')
      .allowUnknownOption()
      .helpOption(false)
      .action(() => requireService(`capstan ${name}`));
  }
  program.addHelpText(
    'after',
    `\nThe deployment service is not installed. Its commands (${SERVICE_COMMANDS.slice(0, 5).join(', ')} and others) come with:\n  ${INSTALL}`,
  );
}

function isMissing(error: unknown): boolean {
  const { code, message } = error as NodeJS.ErrnoException;
  return (code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND') && message.includes('@capstan/service');
}
