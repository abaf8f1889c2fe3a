import os from 'node:os';
import path from 'node:path';
import {
  type BatchLimits,
  DEFAULT_BATCH_LIMITS,
  DEFAULT_KEEP_ALIVE_MS,
  DEFAULT_RESPONSE_LIMITS,
  type LOG_LEVELS,
  type StoreLimits,
} from 'capstan/internal/cli';
import type { TracingOptions } from 'capstan/internal';

/** Options of `capstan up`. */
export interface UpOptions {
  dataDir: string;
  /** Address that both ports listen on. */
  host: string;
  /** Port of the console and the management API. */
  port: number;
  /** Port of deployments. undefined: the port after {@link UpOptions.port}. */
  servingPort: number | undefined;
  /** Gives each deployment the host name `{slug}.{domain}`. */
  servingDomain: string | undefined;
  /** The host name that only the console has. */
  consoleHost: string | undefined;
  /** How clients reach the two ports when it differs from the listening addresses, as behind a proxy. */
  publicUrl: string | undefined;
  servingUrl: string | undefined;
  tls: { keyFile?: string; certFile?: string; passphrase?: string };
  transport: 'auto' | 'uws' | 'node';
  keepAliveTimeoutMs: number;
  adminHost: string | undefined;
  /** undefined: the admin listener is off. */
  adminPort: number | undefined;
  /** undefined: `capstan.db` in the data directory. */
  databaseUrl: string | undefined;
  /** Folders whose subfolders may become data sources. Empty: `data` in the data directory. */
  dataRoots: string[];
  allowUnisolated: boolean;
  /** What one replica may add to its home. */
  replicaDiskBytes: number;
  /** Allows webhooks to private addresses. */
  allowPrivateWebhooks: boolean;
  batches: BatchLimits;
  /** 0 bytes: no responses are stored. */
  storedResponses: StoreLimits;
  /** Allows upstreams at private addresses. */
  allowPrivateUpstreams: boolean;
  bootstrapEmail: string | undefined;
  bootstrapPasswordFile: string | undefined;
  /** The file of `--config`. */
  configFile: string | undefined;
  trustedProxies: string[];
  onRevoke: 'cut' | 'finish';
  /** Stops deployments with the service. Otherwise they keep running and the next start adopts them. */
  stopsDeployments: boolean;
  shutdownTimeoutMs: number;
  logLevel: (typeof LOG_LEVELS)[number];
  logsRequests: boolean;
  traces: TracingOptions;
}

export function defaultUpOptions(env: NodeJS.ProcessEnv): UpOptions {
  return {
    dataDir: defaultDataDir(env),
    host: '127.0.0.1',
    port: 8090,
    servingPort: undefined,
    servingDomain: undefined,
    consoleHost: undefined,
    publicUrl: undefined,
    servingUrl: undefined,
    tls: {},
    transport: 'auto',
    keepAliveTimeoutMs: DEFAULT_KEEP_ALIVE_MS,
    adminHost: undefined,
    adminPort: undefined,
    databaseUrl: undefined,
    dataRoots: [],
    allowUnisolated: false,
    replicaDiskBytes: 20 * 2 ** 30,
    allowPrivateWebhooks: false,
    batches: { ...DEFAULT_BATCH_LIMITS },
    storedResponses: { ...DEFAULT_RESPONSE_LIMITS },
    allowPrivateUpstreams: false,
    bootstrapEmail: undefined,
    bootstrapPasswordFile: undefined,
    configFile: undefined,
    trustedProxies: [],
    onRevoke: 'cut',
    stopsDeployments: false,
    shutdownTimeoutMs: 30_000,
    logLevel: 'info',
    logsRequests: true,
    traces: { endpoint: undefined, serviceName: 'capstan-gateway' },
  };
}

/** The default data directory. `capstan keys` and `capstan tokens` use it too. */
export function defaultDataDir({ XDG_DATA_HOME: dataHome = '', HOME: home = os.homedir() }: NodeJS.ProcessEnv): string {
  return path.join(path.isAbsolute(dataHome) ? dataHome : path.join(home, '.local', 'share'), 'capstan');
}
