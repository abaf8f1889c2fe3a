import type { Command } from 'commander';
import type { CommandIo } from 'capstan/internal/cli';
import { addCanaryCommand } from './canary';
import { addContainersCommand } from './containers';
import { addDeployCommand } from './deploy';
import { addDeploymentsCommand } from './deployments';
import { addHistoryCommands } from './history';
import { addIdentityProvidersCommand } from './identity-providers';
import { addLoginCommands } from './login';
import { addLogsCommand } from './logs';
import { addMoneyCommands } from './money';
import { addOrgsCommand } from './orgs';
import { addAdministrationCommands } from './quotas';
import { addResourceCommands } from './resources';
import { addTokensCommand } from './tokens';
import { addUpCommand } from './up';
import { addVersionsCommand } from './versions';
import { addWebhooksCommand } from './webhooks';

/**
 * Adds `capstan up`, and every command that talks to a running service.
 * @param onExit Receives the exit code when the service of `capstan up` has ended.
 */
export function addServiceCommands(program: Command, onExit: (exitCode: number) => void, io?: CommandIo): void {
  addUpCommand(program, onExit);
  addLoginCommands(program, io);
  addDeployCommand(program, io);
  addDeploymentsCommand(program, io);
  addVersionsCommand(program, io);
  addCanaryCommand(program, io);
  addLogsCommand(program, io);
  addContainersCommand(program, io);
  addResourceCommands(program, io);
  addOrgsCommand(program, io);
  addAdministrationCommands(program, io);
  addIdentityProvidersCommand(program, io);
  addHistoryCommands(program, io);
  addTokensCommand(program, io);
  addWebhooksCommand(program, io);
  addMoneyCommands(program, io);
}
