import type { Command } from 'commander';
import { addContainersCommand } from './containers';
import { addDeployCommand } from './deploy';
import { addDeploymentsCommand } from './deployments';
import { addHistoryCommands } from './history';
import type { CommandIo } from './io';
import { addLogsCommand } from './logs';
import { addOrgsCommand } from './orgs';
import { addAdministrationCommands } from './quotas';
import { addResourceCommands } from './resources';
import { addTokensCommand } from './tokens';
import { addVersionsCommand } from './versions';
import { addWebhooksCommand } from './webhooks';

/** Mounts every command that talks to a running service. */
export function addServiceCommands(program: Command, io?: CommandIo): void {
  addDeployCommand(program, io);
  addDeploymentsCommand(program, io);
  addVersionsCommand(program, io);
  addLogsCommand(program, io);
  addContainersCommand(program, io);
  addResourceCommands(program, io);
  addOrgsCommand(program, io);
  addAdministrationCommands(program, io);
  addHistoryCommands(program, io);
  addTokensCommand(program, io);
  addWebhooksCommand(program, io);
}
