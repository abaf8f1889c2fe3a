import { CidrList } from '../access/cidr';
import { parseBoolean, parseChoice, parsePort, parseSeconds, UsageError } from '../flag-values';
import type { Flag } from '../flags';
import { type Given, namesOf } from '../given';
import { LOG_LEVELS } from '../log-levels';
import { defaultUpOptions, type UpOptions } from './options';

const GROUPS = ['Service', 'Listening', 'First administrator', 'Deployments', 'Logging'] as const;
type Definition = Omit<Flag<UpOptions>, 'group' | 'apply'> & {
  apply?: Flag<UpOptions>['apply'];
  set?: (options: UpOptions, on: boolean) => void;
};

const SERVICE: readonly Definition[] = [
  {
    name: 'data-dir',
    value: '<dir>',
    help: "where everything is kept: the database, the key of its secrets, logs and the folders of deployments; made where missing (default: capstan in the user's data directory)",
    apply: (o, value) => {
      o.dataDir = value;
    },
  },
  {
    name: 'database-url',
    value: '<url>',
    variables: ['DATABASE_URL'],
    help: 'PostgreSQL instead of the file in the data directory; better as DATABASE_URL',
    apply: (o, value, source) => {
      o.databaseUrl = parseDatabaseUrl(value, source);
    },
  },
  {
    name: 'shutdown-timeout',
    value: '<seconds>',
    help: 'how long open requests may go on after Ctrl-C or SIGTERM (default: 30)',
    apply: (o, value, source) => {
      o.shutdownTimeoutMs = parseSeconds(value, source, 0);
    },
  },
  {
    name: 'stop-deployments',
    help: 'end the deployments with the service; otherwise they run on, and the next start finds them',
    set: (o, on) => {
      o.stopsDeployments = on;
    },
  },
];

const LISTENING: readonly Definition[] = [
  {
    name: 'host',
    value: '<address>',
    help: 'address to listen on (default: 127.0.0.1)',
    apply: (o, value) => {
      o.host = value;
    },
  },
  {
    name: 'port',
    value: '<number>',
    help: 'port of the console and of the management interface (default: 8090)',
    apply: (o, value, source) => {
      o.port = parsePort(value, source);
    },
  },
  {
    name: 'serving-port',
    value: '<number>',
    help: 'port of the deployments, an origin of its own (default: the next one)',
    apply: (o, value, source) => {
      o.servingPort = parsePort(value, source);
    },
  },
  {
    name: 'serving-domain',
    value: '<domain>',
    help: 'deployments are also at {slug}.DOMAIN, for which the DNS has a wildcard',
    apply: (o, value, source) => {
      o.servingDomain = parseDomain(value, source);
    },
  },
  {
    name: 'public-url',
    value: '<url>',
    help: 'how browsers reach the console, where a proxy is in front',
    apply: (o, value, source) => {
      o.publicUrl = parseOrigin(value, source);
    },
  },
  {
    name: 'serving-url',
    value: '<url>',
    help: 'how clients reach the serving port, where a proxy is in front',
    apply: (o, value, source) => {
      o.servingUrl = parseOrigin(value, source);
    },
  },
  {
    name: 'ssl-keyfile',
    value: '<file>',
    help: 'serve TLS on both ports with this private key (PEM)',
    apply: (o, value) => {
      o.tls.keyFile = value;
    },
  },
  {
    name: 'ssl-certfile',
    value: '<file>',
    help: 'and this certificate with its chain (PEM)',
    apply: (o, value) => {
      o.tls.certFile = value;
    },
  },
  {
    name: 'ssl-keyfile-password',
    value: '<text>',
    help: 'what the key is encrypted with; better as CAPSTAN_SSL_KEYFILE_PASSWORD',
    apply: (o, value) => {
      o.tls.passphrase = value;
    },
  },
  {
    name: 'trusted-proxy',
    value: '<networks...>',
    separator: ',',
    help: 'networks of proxies, as 10.0.0.0/8, whose X-Forwarded-For names the caller (default: none)',
    apply: (o, value, source) => {
      o.trustedProxies.push(parseNetwork(value, source));
    },
  },
  {
    name: 'admin-host',
    value: '<address>',
    help: 'address of the admin listener (default: 127.0.0.1)',
    apply: (o, value) => {
      o.adminHost = value;
    },
  },
  {
    name: 'admin-port',
    value: '<number>',
    help: 'a port for probes and scrapers: /healthz, /readyz and /metrics (default: none)',
    apply: (o, value, source) => {
      o.adminPort = parsePort(value, source);
    },
  },
  {
    name: 'http-transport',
    value: '<name>',
    help: 'uws, node or auto (default: auto, uws where it loads)',
    apply: (o, value, source) => {
      o.transport = parseChoice(value, source, ['auto', 'uws', 'node']);
    },
  },
];

const BOOTSTRAP: readonly Definition[] = [
  {
    name: 'bootstrap-email',
    value: '<address>',
    help: 'make the first administrator without a browser; nothing once there is one',
    apply: (o, value) => {
      o.bootstrapEmail = value;
    },
  },
  {
    name: 'bootstrap-password-file',
    value: '<file>',
    help: 'the file that holds the password',
    apply: (o, value) => {
      o.bootstrapPasswordFile = value;
    },
  },
];

const DEPLOYMENTS: readonly Definition[] = [
  {
    name: 'data-root',
    value: '<dir>',
    separator: ',',
    help: 'a folder whose contents administrators may offer as data; repeatable (default: data in the data directory)',
    apply: (o, value) => {
      o.dataRoots.push(value);
    },
  },
  {
    name: 'allow-unisolated',
    help: 'let administrators run start scripts of their own where this machine cannot keep them apart (below level L2)',
    set: (o, on) => {
      o.allowUnisolated = on;
    },
  },
  {
    name: 'allow-private-webhooks',
    help: 'send webhooks also to addresses that are not on the public internet, such as those of this machine and its network',
    set: (o, on) => {
      o.allowPrivateWebhooks = on;
    },
  },
  {
    name: 'on-revoke',
    value: '<what>',
    help: 'what becomes of running requests when their key is revoked: cut within a second, or finish (default: cut)',
    apply: (o, value, source) => {
      o.onRevoke = parseChoice(value, source, ['cut', 'finish']);
    },
  },
];

const LOGGING: readonly Definition[] = [
  {
    name: 'log-level',
    value: '<level>',
    help: 'debug, info, warn, error or silent (default: info)',
    apply: (o, value, source) => {
      o.logLevel = parseChoice(value, source, LOG_LEVELS);
    },
  },
  {
    name: 'enable-log-requests',
    help: 'a line for each request of the management interface (default: on; off means at level debug)',
    negations: ['--disable-log-requests'],
    set: (o, on) => {
      o.logsRequests = on;
    },
  },
];

const DEFINITIONS: Readonly<Record<(typeof GROUPS)[number], readonly Definition[]>> = {
  Service: SERVICE,
  Listening: LISTENING,
  'First administrator': BOOTSTRAP,
  Deployments: DEPLOYMENTS,
  Logging: LOGGING,
};

/** Every flag of `capstan up`, in the help's order. */
export const UP_FLAGS: readonly Flag<UpOptions>[] = GROUPS.flatMap((group) =>
  DEFINITIONS[group].map(({ set, apply, ...flag }) => ({
    ...flag,
    group,
    apply:
      apply ?? ((options: UpOptions, value: string, source: string) => set?.(options, parseBoolean(value, source))),
  })),
);
export const UP_FLAG_NAMES = namesOf(UP_FLAGS);
export const UP_FIRST_GROUP = GROUPS[0];

/** @param sources The weakest first; a flag goes by the strongest source that says anything of it. */
export function resolveUpOptions(sources: readonly Given[], env: NodeJS.ProcessEnv): UpOptions {
  const entries = new Map(
    sources.flatMap((given) => [...given.entries()].map(([flag, entry]) => [flag.name, entry] as const)),
  );
  const options = defaultUpOptions(env);
  for (const flag of UP_FLAGS) {
    const { values, source } = entries.get(flag.name) ?? { values: [], source: '' };
    for (const value of values) flag.apply(options, value, source);
  }
  checkTogether(options);
  return options;
}

function checkTogether({
  tls,
  adminHost,
  adminPort,
  bootstrapEmail,
  bootstrapPasswordFile,
  port,
  servingPort,
}: UpOptions): void {
  if ((tls.keyFile === undefined) !== (tls.certFile === undefined))
    throw new UsageError('--ssl-keyfile and --ssl-certfile: expected both, got one');
  if (tls.passphrase !== undefined && tls.keyFile === undefined)
    throw new UsageError('--ssl-keyfile-password: expected --ssl-keyfile and --ssl-certfile with it');
  if (adminHost !== undefined && adminPort === undefined)
    throw new UsageError('--admin-host: expected --admin-port with it');
  if ((bootstrapEmail === undefined) !== (bootstrapPasswordFile === undefined))
    throw new UsageError('--bootstrap-email and --bootstrap-password-file: expected both, got one');
  if (servingPort === undefined && port === 65_535)
    throw new UsageError(
      '--port: expected a port up to 65534, or --serving-port with it: deployments are served on a port of their own',
    );
  if (servingPort === port && port !== 0)
    throw new UsageError(
      "--serving-port: expected another port than --port: what deployments serve must not be of the console's origin",
    );
}

function parseDatabaseUrl(value: string, source: string): string {
  // NOTE: never echoed, as it may hold a password.
  if (!/^postgres(ql)?:\/\//i.test(value) || !URL.canParse(value))
    throw new UsageError(`${source}: expected a postgres:// address`);
  return value;
}

function parseDomain(value: string, source: string): string {
  const domain = value.replace(/^\*?\./, '').toLowerCase();
  if (!/^(?=.{1,180}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/.test(domain))
    throw new UsageError(`${source}: expected a domain such as models.example.com, got '${value}'`);
  return domain;
}

function parseOrigin(value: string, source: string): string {
  const url = URL.canParse(value) ? new URL(value) : undefined;
  const isOrigin =
    url !== undefined &&
    /^https?:$/.test(url.protocol) &&
    url.pathname === '/' &&
    url.search === '' &&
    url.hash === '' &&
    url.username === '';
  if (!isOrigin)
    throw new UsageError(
      `${source}: expected an address without a path, such as https://capstan.example.com, got '${value}'`,
    );
  return url.origin;
}

function parseNetwork(value: string, source: string): string {
  try {
    CidrList.parse(source, [value]);
    return value;
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}
