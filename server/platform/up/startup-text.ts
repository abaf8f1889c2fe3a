import { packageVersion } from 'capstan/internal';
import type { Isolation } from '../driver/driver';
import type { Targets } from '../gateway/targets';
import { DEPLOYMENT_STATES } from '../deployments/deployment-state';
import type { Addresses } from './addresses';
import type { FirstRun } from './bootstrap';

export interface Start {
  addresses: Addresses;
  servingDomain: string | undefined;
  transport: string;
  admin: string | undefined;
  dataDir: string;
  /** As formatted by `describeLocation`. */
  database: string;
  driver: string;
  isolation: Isolation;
  targets: Targets;
  firstRun: FirstRun;
}

/** Returns the text that a start prints: addresses, data, isolation and the next step. */
export function startupText({
  addresses,
  servingDomain,
  transport,
  admin,
  dataDir,
  database,
  driver,
  isolation,
  targets,
  firstRun,
}: Start): string {
  return [
    `Capstan ${packageVersion()}: console and management API ${addresses.console}, deployments ${addresses.serving}${servingDomain === undefined ? '' : ` and *.${servingDomain}`} (${transport})`,
    `Data: ${dataDir}, database ${database}`,
    `Isolation: ${driver} ${isolation.level}: ${isolation.reason}`,
    ...deploymentLines(targets),
    ...(admin === undefined ? [] : [`Health and metrics without authentication: ${admin}`]),
    ...firstRunLines(firstRun, addresses),
    ...tryLines(firstRun, dataDir, addresses),
    '',
  ].join('\n');
}

/** Counts the deployments that the service has found, by state. */
function deploymentLines(targets: Targets): string[] {
  const states = targets.deployments().map(({ state }) => state);
  const counts = DEPLOYMENT_STATES.map(
    (state) => [state, states.filter((candidate) => candidate === state).length] as const,
  ).filter(([, count]) => count > 0);
  return counts.length === 0 ? [] : [`Deployments: ${counts.map(([state, count]) => `${count} ${state}`).join(', ')}`];
}

function firstRunLines(firstRun: FirstRun, addresses: Addresses): string[] {
  if (firstRun.type === 'made') return [`Created the administrator ${firstRun.email}.`];
  if (firstRun.type === 'done') return [];
  return [
    '',
    'Open this link to create the administrator account. It works once and expires in 24 hours.',
    '',
    `  ${bootstrapLink(addresses, firstRun.token)}`,
    '',
  ];
}

/**
 * The console page that creates the first account. The token follows `#`, so no server, log or `Referer` receives it.
 */
function bootstrapLink(addresses: Addresses, token: string): string {
  return `${addresses.console}/setup#${token}`;
}

function tryLines(firstRun: FirstRun, dataDir: string, { console: url }: Addresses): string[] {
  if (firstRun.type !== 'made') return firstRun.type === 'link' ? [] : [`Open ${url}, or try: capstan login ${url}`];
  return [
    'Try:',
    `  export CAPSTAN_URL=${url} CAPSTAN_TOKEN=$(capstan tokens create --data-dir ${quoted(dataDir)} --email ${quoted(firstRun.email)} --name cli)`,
    '  capstan deploy chat --wait',
  ];
}

/** Quotes for a shell if needed. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
