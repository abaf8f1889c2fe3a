import os from 'node:os';
import path from 'node:path';
import type { LOG_LEVELS } from '../log-levels';

/** What `capstan up` was asked for. */
export interface UpOptions {
  dataDir: string;
  /** Of both ports. */
  host: string;
  /** Console and management interface. */
  port: number;
  /** Deployments; undefined: the port after {@link UpOptions.port}. */
  servingPort: number | undefined;
  /** Each deployment has a name below it: `{slug}.{domain}`. */
  servingDomain: string | undefined;
  /** How clients reach the two ports, where that is not how they are listened on: behind a proxy. */
  publicUrl: string | undefined;
  servingUrl: string | undefined;
  tls: { keyFile?: string; certFile?: string; passphrase?: string };
  transport: 'auto' | 'uws' | 'node';
  adminHost: string | undefined;
  /** undefined: no admin listener. */
  adminPort: number | undefined;
  /** undefined: `capstan.db` in the data directory. */
  databaseUrl: string | undefined;
  /** Whose subfolders may become data sources; empty: `data` in the data directory. */
  dataRoots: string[];
  allowUnisolated: boolean;
  /** Whether webhooks may be sent to addresses that are not on the public internet. */
  allowPrivateWebhooks: boolean;
  bootstrapEmail: string | undefined;
  bootstrapPasswordFile: string | undefined;
  trustedProxies: string[];
  onRevoke: 'cut' | 'finish';
  /** Whether deployments end with the service; else they go on, and the next start finds them. */
  stopsDeployments: boolean;
  shutdownTimeoutMs: number;
  logLevel: (typeof LOG_LEVELS)[number];
  logsRequests: boolean;
}

export function defaultUpOptions(env: NodeJS.ProcessEnv): UpOptions {
  return {
    dataDir: defaultDataDir(env),
    host: '127.0.0.1',
    port: 8090,
    servingPort: undefined,
    servingDomain: undefined,
    publicUrl: undefined,
    servingUrl: undefined,
    tls: {},
    transport: 'auto',
    adminHost: undefined,
    adminPort: undefined,
    databaseUrl: undefined,
    dataRoots: [],
    allowUnisolated: false,
    allowPrivateWebhooks: false,
    bootstrapEmail: undefined,
    bootstrapPasswordFile: undefined,
    trustedProxies: [],
    onRevoke: 'cut',
    stopsDeployments: false,
    shutdownTimeoutMs: 30_000,
    logLevel: 'info',
    logsRequests: true,
  };
}

/** The one that `capstan keys` and `capstan tokens` take too. */
export function defaultDataDir({ XDG_DATA_HOME: dataHome = '', HOME: home = os.homedir() }: NodeJS.ProcessEnv): string {
  return path.join(path.isAbsolute(dataHome) ? dataHome : path.join(home, '.local', 'share'), 'capstan');
}
