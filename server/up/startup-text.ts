import type { Isolation } from '../driver/driver';
import type { Targets } from '../gateway/targets';
import { DEPLOYMENT_STATES } from '../service/deployment-state';
import { packageVersion } from '../version';
import type { Addresses } from './addresses';
import type { FirstRun } from './bootstrap';

export interface Start {
  addresses: Addresses;
  servingDomain: string | undefined;
  transport: string;
  admin: string | undefined;
  dataDir: string;
  /** As `describeLocation` says it. */
  database: string;
  driver: string;
  isolation: Isolation;
  targets: Targets;
  firstRun: FirstRun;
}

/** What a start prints: where everything is, what keeps deployments apart, and what to do next. */
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
    `Capstan ${packageVersion()} runs deployments: console and management interface ${addresses.console}, deployments ${addresses.serving}${servingDomain === undefined ? '' : ` and *.${servingDomain}`} (${transport})`,
    `Data: ${dataDir}, database ${database}`,
    `Isolation: ${driver} ${isolation.level}: ${isolation.reason}`,
    ...deploymentLines(targets),
    ...(admin === undefined ? [] : [`Health and metrics without a token: ${admin}`]),
    ...firstRunLines(firstRun, addresses),
    ...tryLines(firstRun, dataDir, addresses),
    '',
  ].join('\n');
}

/** As they were found: an earlier service left them so. */
function deploymentLines(targets: Targets): string[] {
  const states = targets.deployments().map(({ state }) => state);
  const counts = DEPLOYMENT_STATES.map(
    (state) => [state, states.filter((candidate) => candidate === state).length] as const,
  ).filter(([, count]) => count > 0);
  return counts.length === 0 ? [] : [`Deployments: ${counts.map(([state, count]) => `${count} ${state}`).join(', ')}`];
}

function firstRunLines(firstRun: FirstRun, addresses: Addresses): string[] {
  if (firstRun.type === 'made') return [`The administrator ${firstRun.email} was made.`];
  if (firstRun.type === 'done') return [];
  return [
    '',
    'There is no administrator yet. Whoever opens this link becomes it; it works once, for a day:',
    '',
    `  ${bootstrapLink(addresses, firstRun.token)}`,
    '',
  ];
}

/** Where the console makes the first account. The token comes after `#`: no server, log or `Referer` ever sees it. */
export function bootstrapLink(addresses: Addresses, token: string): string {
  return `${addresses.console}/setup#${token}`;
}

function tryLines(firstRun: FirstRun, dataDir: string, { console: url }: Addresses): string[] {
  if (firstRun.type !== 'made')
    return firstRun.type === 'link' ? [] : [`Open ${url}, or try: capstan deployments list --help`];
  return [
    'Try:',
    `  export CAPSTAN_URL=${url} CAPSTAN_TOKEN=$(capstan tokens create --data-dir ${quoted(dataDir)} --email ${quoted(firstRun.email)} --name cli)`,
    '  capstan deploy chat --wait',
  ];
}

/** For a shell, where it needs to be. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
