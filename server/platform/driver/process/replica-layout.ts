import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import type { Isolation, ReplicaAddress, ReplicaSpec } from '../driver';
import { packageRoot } from 'capstan/internal';

export type Level = Isolation['level'];

/** Paths and address of a replica, as its workload sees them. */
export interface ReplicaLayout {
  level: Level;
  /** Folder of the inputs. */
  inputDir: string;
  home: string;
  /** The folder that outlives the replica. */
  cache: string | undefined;
  /** Where the workload must listen. */
  host: string;
  port: number;
}

export const PRODUCTION_PORT = 80;
export const CONTAINER_PORT = 8080;
/**
 * Address inside namespaces. Not a loopback address, so that a workload that listens only on 127.0.0.1 is unreachable,
 * as it should be.
 */
export const INNER_HOST = '10.80.0.1';
/** User id of training containers on the host when the service runs as root. They own their workspace. */
export const WORKSPACE_UID = 1_879_048_080;
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

export function layoutOf(
  level: Level,
  folder: { home: string; inputs: string },
  { isProduction, home }: ReplicaSpec,
  address: ReplicaAddress,
  cache?: string,
): ReplicaLayout {
  const port = isProduction ? PRODUCTION_PORT : CONTAINER_PORT;
  if (level === 'L2' || address.type === 'unix')
    return {
      level,
      inputDir: '/platform/input',
      home: '/platform/home',
      cache: cache && '/platform/cache',
      host: '0.0.0.0',
      port,
    };
  return {
    level,
    inputDir: folder.inputs,
    home: home?.mode === 'rw' ? home.path : folder.home,
    cache,
    host: address.host,
    port: address.port,
  };
}

/** Returns a clean environment: the replica's variables, overridden by those of the platform. */
export function environmentOf(
  { env, isProduction, secret, gpuUuids }: ReplicaSpec,
  { inputDir, home, host, port }: ReplicaLayout,
): string[] {
  const variables: Record<string, string> = {
    PATH,
    LANG: 'C.UTF-8',
    HOME: home,
    TMPDIR: '/tmp',
    ...env,
    PLATFORM_INPUT_DIR: inputDir,
    PLATFORM_HOME: home,
    PLATFORM_SERVING_HOST: host,
    PLATFORM_SERVING_PORT: String(port),
    CAPSTAN_REPLICA_SECRET: secret,
    CUDA_VISIBLE_DEVICES: gpuUuids.join(','),
    NVIDIA_VISIBLE_DEVICES: gpuUuids.length === 0 ? 'void' : gpuUuids.join(','),
  };
  // Start scripts test whether this variable is set, so it must be absent for training containers.
  delete variables.PLATFORM_SERVING_PRODUCTION;
  if (isProduction) variables.PLATFORM_SERVING_PRODUCTION = '1';
  return Object.entries(variables).map(([name, value]) => `${name}=${value}`);
}

/**
 * Returns the start script, or `capstan serve` of this installation. Without namespaces, platform paths are replaced.
 */
export function commandOf(
  { startCommand, runtimeArgs, healthPath, cache: limit }: ReplicaSpec,
  { level, inputDir, home, cache }: ReplicaLayout,
): string[] {
  if (startCommand !== null) return ['/bin/sh', '-c', startCommand];
  const localPath = (arg: string): string =>
    level === 'L2'
      ? arg
      : arg.replace(/^\/platform\/input(?=\/|$)/, () => inputDir).replace(/^\/platform\/home(?=\/|$)/, () => home);
  // Health checks every few seconds would dominate its log.
  return [
    realpathSync(process.execPath),
    runtimeMain(),
    'serve',
    ...runtimeArgs.map(localPath),
    ...(cache === undefined || limit === null
      ? []
      : ['--prefix-cache-dir', cache, '--prefix-cache-disk-size', `${limit.maxMb}M`]),
    '--disable-access-log-for-endpoints',
    healthPath.split('?')[0],
  ];
}

export function runtimeMain(): string {
  return join(packageRoot(), 'dist', 'server', 'main.js');
}

/** Returns the paths that the built-in runtime needs: its own files and Node.js. */
export function runtimeShares(): string[] {
  const root = packageRoot();
  // When installed as a dependency, its own dependencies are in the parent's node_modules.
  const modules = root.indexOf('/node_modules/');
  const own = [
    'package.json',
    'dist',
    'build/Release',
    'build/cuda/capstan_cuda.so',
    'prebuilds',
    'models',
    'node_modules',
  ].map((name) => join(root, name));
  const shares = [
    realpathSync(process.execPath),
    ...own,
    ...(modules < 0 ? [] : [root.slice(0, modules + '/node_modules'.length)]),
  ];
  return shares.filter((path) => existsSync(path));
}
