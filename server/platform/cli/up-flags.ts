import { isIP } from 'node:net';
import {
  CidrList,
  type Flag,
  flagNamesOf,
  type FlagValues,
  LOG_LEVELS,
  parseBoolean,
  parseBytes,
  parseChoice,
  parsePort,
  parseSeconds,
  SHARED_FLAGS,
  UsageError,
} from 'capstan/internal/cli';
import { defaultUpOptions, type UpOptions } from '../up/options';

const GROUPS = [
  'Service',
  'Listening',
  'First administrator',
  'Deployments',
  'Responses and batches',
  'Logging',
] as const;
type Definition = Omit<Flag<UpOptions>, 'group' | 'apply'> & {
  apply?: Flag<UpOptions>['apply'];
  set?: (options: UpOptions, on: boolean) => void;
};

const SERVICE: readonly Definition[] = [
  {
    name: 'data-dir',
    value: '<dir>',
    help: "directory of the database, its secret key, and the logs and files of deployments; created if missing (default: capstan in the user's data directory)",
    apply: (o, value) => {
      o.dataDir = value;
    },
  },
  {
    name: 'database-url',
    value: '<url>',
    variables: ['DATABASE_URL'],
    help: 'postgres:// URL of a database to use instead of capstan.db in the data directory; prefer DATABASE_URL',
    apply: (o, value, source) => {
      o.databaseUrl = parseDatabaseUrl(value, source);
    },
  },
  {
    name: 'shutdown-timeout',
    value: '<seconds>',
    help: 'seconds that open requests may continue after Ctrl-C or SIGTERM (default: 30)',
    apply: (o, value, source) => {
      o.shutdownTimeoutMs = parseSeconds(value, source, 0);
    },
  },
  {
    name: 'stop-deployments',
    help: 'stop the deployments when the service ends (default: off; they keep running, and the next start takes them over)',
    set: (o, on) => {
      o.stopsDeployments = on;
    },
  },
];

const LISTENING: readonly Definition[] = [
  {
    name: 'host',
    value: '<address>',
    help: 'address that both ports listen on (default: 127.0.0.1)',
    apply: (o, value) => {
      o.host = value;
    },
  },
  {
    name: 'port',
    value: '<number>',
    help: 'port of the console and the management API (default: 8090)',
    apply: (o, value, source) => {
      o.port = parsePort(value, source);
    },
  },
  {
    name: 'serving-port',
    value: '<number>',
    help: 'port of the gateway, which serves the deployments (default: the port after --port)',
    apply: (o, value, source) => {
      o.servingPort = parsePort(value, source);
    },
  },
  {
    name: 'serving-domain',
    value: '<domain>',
    help: 'also serve each deployment at {slug}.DOMAIN; needs a wildcard DNS record',
    apply: (o, value, source) => {
      o.servingDomain = parseDomain(value, source);
    },
  },
  {
    name: 'console-host',
    value: '<name>',
    help: 'separate host name for the console, for example console.example.com; the console works only under this name, and deployments never do',
    apply: (o, value, source) => {
      o.consoleHost = parseDomain(value, source);
    },
  },
  {
    name: 'public-url',
    value: '<url>',
    help: 'URL of the console behind a reverse proxy, for example https://capstan.example.com',
    apply: (o, value, source) => {
      o.publicUrl = parseOrigin(value, source);
    },
  },
  {
    name: 'serving-url',
    value: '<url>',
    help: 'URL of the serving port behind a reverse proxy, for example https://models.example.com',
    apply: (o, value, source) => {
      o.servingUrl = parseOrigin(value, source);
    },
  },
  {
    name: 'ssl-keyfile',
    value: '<file>',
    help: 'private key for TLS on both ports (PEM)',
    apply: (o, value) => {
      o.tls.keyFile = value;
    },
  },
  {
    name: 'ssl-certfile',
    value: '<file>',
    help: 'certificate for TLS with its chain (PEM)',
    apply: (o, value) => {
      o.tls.certFile = value;
    },
  },
  {
    name: 'ssl-keyfile-password',
    value: '<text>',
    help: 'password of the private key; prefer CAPSTAN_SSL_KEYFILE_PASSWORD',
    apply: (o, value) => {
      o.tls.passphrase = value;
    },
  },
  {
    name: 'trusted-proxy',
    value: '<networks...>',
    separator: ',',
    help: 'networks of reverse proxies, for example 10.0.0.0/8, whose X-Forwarded-For is trusted (default: none)',
    apply: (o, value, source) => {
      o.trustedProxies.push(parseNetwork(value, source));
    },
  },
  {
    name: 'admin-host',
    value: '<address>',
    help: 'address for --admin-port to listen on (default: 127.0.0.1)',
    apply: (o, value) => {
      o.adminHost = value;
    },
  },
  {
    name: 'admin-port',
    value: '<number>',
    help: 'third port, which serves /healthz, /readyz and /metrics without a key (default: none)',
    apply: (o, value, source) => {
      o.adminPort = parsePort(value, source);
    },
  },
  {
    ...SHARED_FLAGS.otlpTracesEndpoint,
    help: 'collector that receives a span of each inference request by OTLP over HTTP, for example http://127.0.0.1:4318 (default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, else none)',
  },
  {
    name: 'http-transport',
    value: '<name>',
    help: 'HTTP implementation: node, uws (uWebSockets.js) or auto: uws if release 20.51 or newer loads (default: auto)',
    apply: (o, value, source) => {
      o.transport = parseChoice(value, source, ['auto', 'uws', 'node']);
    },
  },
  {
    name: 'keep-alive-timeout',
    value: '<seconds>',
    help: 'seconds that an idle connection stays open for a next request; always 10 with uws (default: 75)',
    apply: (o, value, source) => {
      o.keepAliveTimeoutMs = parseSeconds(value, source, 1);
    },
  },
];

const BOOTSTRAP: readonly Definition[] = [
  {
    name: 'bootstrap-email',
    value: '<address>',
    help: 'create the first administrator with this email address; no effect if an administrator exists',
    apply: (o, value) => {
      o.bootstrapEmail = value;
    },
  },
  {
    name: 'bootstrap-password-file',
    value: '<file>',
    help: "file with the first administrator's password",
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
    help: 'folder whose subfolders administrators can offer as data sources; repeatable (default: data in the data directory)',
    apply: (o, value) => {
      o.dataRoots.push(value);
    },
  },
  {
    name: 'allow-unisolated',
    help: 'let administrators run start scripts on a machine that cannot isolate them, below level L2 (default: off)',
    set: (o, on) => {
      o.allowUnisolated = on;
    },
  },
  {
    name: 'replica-disk',
    value: '<bytes>',
    help: 'maximum that one replica may add to its home, for example 50G; above it the replica stops with the reason disk_quota_exceeded (default: 20G)',
    apply: (o, value, source) => {
      o.replicaDiskBytes = parseBytes(value, source);
    },
  },
  {
    name: 'allow-private-webhooks',
    help: 'send webhooks to private addresses too, such as this machine and its network (default: off)',
    set: (o, on) => {
      o.allowPrivateWebhooks = on;
    },
  },
  {
    name: 'allow-private-upstreams',
    help: 'allow upstreams at private addresses too, such as this machine and its network (default: off)',
    set: (o, on) => {
      o.allowPrivateUpstreams = on;
    },
  },
  {
    name: 'on-revoke',
    value: '<what>',
    help: 'what happens to running requests of a revoked key: cut ends them within a second, finish lets them complete (default: cut)',
    apply: (o, value, source) => {
      o.onRevoke = parseChoice(value, source, ['cut', 'finish']);
    },
  },
];

const STORAGE: readonly Definition[] = [
  {
    ...SHARED_FLAGS.maxStoredResponseBytes,
    help: 'maximum size of all stored responses and chat completions together, in DATA_DIR/responses; above it the owner with the most bytes loses the least recently used; 0 stores none (default: 256M)',
  },
  {
    ...SHARED_FLAGS.storedResponseDays,
    help: 'days that a response stays stored after its last use (default: 30)',
  },
  {
    ...SHARED_FLAGS.maxBatches,
    help: 'maximum number of batches that have not ended; one more is refused; one owner can have a quarter (default: 100)',
  },
  {
    ...SHARED_FLAGS.maxBatchStorage,
    help: 'maximum size of all files of /v1/files together, results included, for example 2G; one owner can use a quarter (default: 10G)',
  },
  {
    ...SHARED_FLAGS.batchConcurrency,
    help: 'maximum number of batch lines that run at the same time in each replica (default: 16)',
  },
];

const LOGGING: readonly Definition[] = [
  {
    name: 'log-level',
    value: '<level>',
    help: 'least severe level to log: debug, info, warn, error or silent (default: info)',
    apply: (o, value, source) => {
      o.logLevel = parseChoice(value, source, LOG_LEVELS);
    },
  },
  {
    name: 'enable-log-requests',
    help: 'log each request of the management API at level info (default: on; off: at level debug)',
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
  'Responses and batches': STORAGE,
  Logging: LOGGING,
};

/** Every flag of `capstan up`, in the order of the help. */
export const UP_FLAGS: readonly Flag<UpOptions>[] = GROUPS.flatMap((group) =>
  DEFINITIONS[group].map(({ set, apply, ...flag }) => ({
    ...flag,
    group,
    apply:
      apply ?? ((options: UpOptions, value: string, source: string) => set?.(options, parseBoolean(value, source))),
  })),
);
export const UP_FLAG_NAMES = flagNamesOf(UP_FLAGS);
export const UP_FIRST_GROUP = GROUPS[0];

/** @param sources Lowest priority first. For each flag, the last source that has it wins. */
export function resolveUpOptions(sources: readonly FlagValues[], env: NodeJS.ProcessEnv): UpOptions {
  const entries = new Map(
    sources.flatMap((source) => [...source.entries()].map(([flag, entry]) => [flag.name, entry] as const)),
  );
  const options = defaultUpOptions(env);
  for (const flag of UP_FLAGS) {
    const { values, source } = entries.get(flag.name) ?? { values: [], source: '' };
    for (const value of values) flag.apply(options, value, source);
  }
  checkCombinations(options);
  return options;
}

function checkCombinations(options: UpOptions): void {
  const { tls, adminHost, adminPort, bootstrapEmail, bootstrapPasswordFile, port, servingPort } = options;
  if ((tls.keyFile === undefined) !== (tls.certFile === undefined))
    throw new UsageError('--ssl-keyfile and --ssl-certfile: expected both, got one');
  if (tls.passphrase !== undefined && tls.keyFile === undefined)
    throw new UsageError('--ssl-keyfile-password: expected --ssl-keyfile and --ssl-certfile too');
  if (adminHost !== undefined && adminPort === undefined)
    throw new UsageError('--admin-host: expected --admin-port too');
  if ((bootstrapEmail === undefined) !== (bootstrapPasswordFile === undefined))
    throw new UsageError('--bootstrap-email and --bootstrap-password-file: expected both, got one');
  checkConsoleHost(options);
  if (servingPort === undefined && port === 65_535)
    throw new UsageError('--port: expected a port up to 65534, or --serving-port too. Deployments need a second port');
  if (servingPort === port && port !== 0)
    throw new UsageError(
      '--serving-port: expected a port other than --port. Deployments must not share the origin of the console',
    );
}

/** @throws UsageError if deployments or other addresses may have the host name of the console */
function checkConsoleHost({ consoleHost, host, publicUrl, servingUrl, servingDomain }: UpOptions): void {
  if (consoleHost === undefined) return;
  if (isIP(consoleHost) !== 0 || consoleHost === 'localhost')
    throw new UsageError(`--console-host: expected a host name such as console.example.com, got '${consoleHost}'`);
  const isOfDeployments =
    host.toLowerCase() === consoleHost ||
    (servingUrl !== undefined && new URL(servingUrl).hostname === consoleHost) ||
    (servingDomain !== undefined && `.${consoleHost}`.endsWith(`.${servingDomain}`));
  if (isOfDeployments)
    throw new UsageError(
      `--console-host: expected a host name that --host, --serving-url and --serving-domain do not use, got '${consoleHost}'`,
    );
  if (publicUrl !== undefined && new URL(publicUrl).hostname !== consoleHost)
    throw new UsageError(`--public-url: expected the host name of --console-host, ${consoleHost}, got '${publicUrl}'`);
}

function parseDatabaseUrl(value: string, source: string): string {
  // NOTE: the message must not show the value. It may contain a password.
  if (!/^postgres(ql)?:\/\//i.test(value) || !URL.canParse(value))
    throw new UsageError(`${source}: expected a postgres:// URL`);
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
      `${source}: expected a URL without a path, such as https://capstan.example.com, got '${value}'`,
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
