import type { EngineInfo, EngineOptions } from '../ts';
import type { CorsOptions } from './cors';
import type { LOG_LEVELS } from './log-levels';
import { DEFAULT_SETTINGS, type ServerSettings } from './settings';

/** What `capstan serve` was asked for. */
export interface ServeOptions {
  model: string;
  servedNames: string[];
  host: string;
  port: number;
  /** Instead of host and port. */
  socketPath: string | undefined;
  adminHost: string | undefined;
  /** undefined: no admin listener. */
  adminPort: number | undefined;
  tls: { keyFile?: string; certFile?: string; passphrase?: string };
  transport: 'auto' | 'uws' | 'node';
  rootPath: string;
  /** `given`: the lists that are no longer the default. */
  cors: { -readonly [Name in keyof CorsOptions]: CorsOptions[Name] } & { given: Set<string> };
  /** undefined: as the keys given say. */
  accessControl: boolean | undefined;
  apiKeys: string[];
  deployment: string | undefined;
  owner: string | undefined;
  keysDb: string | undefined;
  dataDir: string | undefined;
  /** Of a replica behind our gateway. */
  replicaSecret: string | undefined;
  openPaths: string[];
  onRevoke: 'cut' | 'finish';
  trustedProxies: string[];
  prefixCacheScope: 'owner' | 'server';
  engine: EngineOptions;
  /** Sampling defaults in place of the model's, and those that go before either. */
  generationConfig: EngineInfo['samplingDefaults'];
  samplingOverrides: EngineInfo['samplingDefaults'];
  settings: ServerSettings;
  shutdownTimeoutMs: number;
  healthStallTimeoutMs: number;
  ssePingIntervalMs: number;
  maxRequestBytes: number;
  bodyTimeoutMs: number;
  hasOpenApi: boolean;
  metricsCompat: 'vllm' | 'none';
  logLevel: (typeof LOG_LEVELS)[number];
  logsRequests: boolean;
  unloggedPaths: string[];
  /** What was given and has no effect here, with who gave it. */
  ignored: string[];
}

/** The port rule: a deployment serves on port 80 of all addresses, anything else on port 8080 of this machine. */
export function defaultServeOptions(env: NodeJS.ProcessEnv): ServeOptions {
  const isProduction = (env.PLATFORM_SERVING_PRODUCTION ?? '') !== '';
  return {
    model: 'demo',
    servedNames: [],
    host: isProduction ? '0.0.0.0' : '127.0.0.1',
    port: isProduction ? 80 : 8080,
    socketPath: undefined,
    adminHost: undefined,
    adminPort: undefined,
    tls: {},
    transport: 'auto',
    rootPath: '',
    cors: { origins: ['*'], methods: ['*'], headers: ['*'], credentials: false, given: new Set() },
    accessControl: undefined,
    apiKeys: [],
    deployment: undefined,
    owner: undefined,
    keysDb: undefined,
    dataDir: undefined,
    replicaSecret: undefined,
    openPaths: [],
    onRevoke: 'cut',
    trustedProxies: [],
    prefixCacheScope: 'owner',
    engine: {},
    generationConfig: {},
    samplingOverrides: {},
    settings: { ...DEFAULT_SETTINGS },
    shutdownTimeoutMs: 30_000,
    healthStallTimeoutMs: 30_000,
    ssePingIntervalMs: 15_000,
    maxRequestBytes: 32 * 2 ** 20,
    bodyTimeoutMs: 60_000,
    hasOpenApi: true,
    metricsCompat: 'none',
    logLevel: 'info',
    logsRequests: true,
    unloggedPaths: [],
    ignored: [],
  };
}
