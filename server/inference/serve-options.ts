import type { EngineInfo, EngineOptions } from '../../ts';
import type { CorsOptions } from '../http/cors';
import type { LOG_LEVELS } from '../base/log-levels';
import type { TracingOptions } from '../base/traces/open-tracing';
import { DEFAULT_KEEP_ALIVE_MS } from '../http/transport';
import { type BatchLimits, DEFAULT_BATCH_LIMITS } from '../storage/batches/limits';
import { DEFAULT_RESPONSE_LIMITS, type StoreLimits } from '../storage/responses/store';
import { DEFAULT_MODEL_LIMITS, type ModelLimits, type ModelOptions } from './models/model-options';
import { DEFAULT_SETTINGS, type ServerSettings } from './settings';

/** The options of `capstan serve`. */
export interface ServeOptions {
  model: string;
  servedNames: string[];
  /** Further names in requests. `target` names the model of several. */
  aliases: { name: string; target: string | undefined }[];
  /** Several models. Empty: `model` is the only one. */
  models: ModelOptions[];
  /** The table that `models` come from: JSON, and where it came from. */
  modelTable: { value: string; source: string } | undefined;
  modelLimits: ModelLimits;
  host: string;
  port: number;
  /** Path of a Unix socket, in place of host and port. */
  socketPath: string | undefined;
  adminHost: string | undefined;
  /** Undefined: no admin listener. */
  adminPort: number | undefined;
  tls: { keyFile?: string; certFile?: string; passphrase?: string };
  transport: 'auto' | 'uws' | 'node';
  rootPath: string;
  /** `overridden` holds the names of the lists that replace their default. */
  cors: { -readonly [Name in keyof CorsOptions]: CorsOptions[Name] } & { overridden: Set<string> };
  /** Undefined: on if keys are configured. */
  accessControl: boolean | undefined;
  apiKeys: string[];
  deployment: string | undefined;
  owner: string | undefined;
  keysDb: string | undefined;
  /** The folder of the key database, and of files and batches. */
  dataDir: string | undefined;
  batches: BatchLimits;
  /** Set for a replica behind a gateway. */
  replicaSecret: string | undefined;
  /** Limits of the responses that later requests can continue or read. */
  storedResponses: StoreLimits;
  openPaths: string[];
  onRevoke: 'cut' | 'finish';
  trustedProxies: string[];
  prefixCacheScope: 'owner' | 'server';
  engine: EngineOptions;
  /** The folder that adapters may be loaded from at run time. */
  loraDir: string | undefined;
  /** Sampling defaults that replace the model's. */
  generationConfig: EngineInfo['samplingDefaults'];
  /** Sampling defaults that override single values of all others. */
  samplingOverrides: EngineInfo['samplingDefaults'];
  settings: ServerSettings;
  shutdownTimeoutMs: number;
  healthStallTimeoutMs: number;
  ssePingIntervalMs: number;
  maxRequestBytes: number;
  bodyTimeoutMs: number;
  keepAliveTimeoutMs: number;
  hasOpenApi: boolean;
  metricsCompat: 'vllm' | 'none';
  traces: TracingOptions;
  logLevel: (typeof LOG_LEVELS)[number];
  logsRequests: boolean;
  unloggedPaths: string[];
  /** Flags without effect here, with their source. */
  ignored: string[];
}

/**
 * Returns the defaults. A deployment listens on port 80 of all addresses, any other server on port 8080 of the loopback
 * address.
 */
export function defaultServeOptions(env: NodeJS.ProcessEnv): ServeOptions {
  const isProduction = (env.PLATFORM_SERVING_PRODUCTION ?? '') !== '';
  return {
    model: 'demo',
    servedNames: [],
    aliases: [],
    models: [],
    modelTable: undefined,
    modelLimits: { ...DEFAULT_MODEL_LIMITS },
    host: isProduction ? '0.0.0.0' : '127.0.0.1',
    port: isProduction ? 80 : 8080,
    socketPath: undefined,
    adminHost: undefined,
    adminPort: undefined,
    tls: {},
    transport: 'auto',
    rootPath: '',
    cors: { origins: ['*'], methods: ['*'], headers: ['*'], credentials: false, overridden: new Set() },
    accessControl: undefined,
    apiKeys: [],
    deployment: undefined,
    owner: undefined,
    keysDb: undefined,
    dataDir: undefined,
    batches: { ...DEFAULT_BATCH_LIMITS },
    replicaSecret: undefined,
    storedResponses: { ...DEFAULT_RESPONSE_LIMITS },
    openPaths: [],
    onRevoke: 'cut',
    trustedProxies: [],
    prefixCacheScope: 'owner',
    engine: {},
    loraDir: undefined,
    generationConfig: {},
    samplingOverrides: {},
    settings: { ...DEFAULT_SETTINGS },
    shutdownTimeoutMs: 30_000,
    healthStallTimeoutMs: 30_000,
    ssePingIntervalMs: 15_000,
    maxRequestBytes: 32 * 2 ** 20,
    bodyTimeoutMs: 60_000,
    keepAliveTimeoutMs: DEFAULT_KEEP_ALIVE_MS,
    hasOpenApi: true,
    metricsCompat: 'none',
    traces: { endpoint: undefined, serviceName: 'capstan' },
    logLevel: 'info',
    logsRequests: true,
    unloggedPaths: [],
    ignored: [],
  };
}
