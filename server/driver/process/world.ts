import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import type { Isolation, ReplicaAddress, ReplicaSpec } from '../driver';
import { packageRoot } from './sandbox';

export type Level = Isolation['level'];

/** How a replica sees the machine. */
export interface World {
  level: Level;
  /** Where it finds its inputs and its home. */
  inputDir: string;
  home: string;
  /** Where it has to listen. */
  host: string;
  port: number;
}

export const PRODUCTION_PORT = 80;
export const CONTAINER_PORT = 8080;
/** In namespaces: none of loopback's, so that what listens on 127.0.0.1 alone does not answer, as it would not behind any other driver. */
export const INNER_HOST = '10.80.0.1';
/** Whom a replica is to the host, where the service is root. Nobody else's. */
export const WORKLOAD_UID = 1_879_048_080;
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

export function worldOf(
  level: Level,
  folder: { home: string; inputs: string },
  { isProduction, home }: ReplicaSpec,
  address: ReplicaAddress,
): World {
  const port = isProduction ? PRODUCTION_PORT : CONTAINER_PORT;
  if (level === 'L2' || address.type === 'unix')
    return { level, inputDir: '/platform/input', home: '/platform/home', host: '0.0.0.0', port };
  return {
    level,
    inputDir: folder.inputs,
    home: home?.mode === 'rw' ? home.path : folder.home,
    host: address.host,
    port: address.port,
  };
}

/** A clean environment: what the replica was given, and what the platform says, which goes before it. */
export function environmentOf(
  { env, isProduction, secret, gpuUuids }: ReplicaSpec,
  { inputDir, home, host, port }: World,
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
  // The same script chooses its port by this: set to something, or not set at all.
  delete variables.PLATFORM_SERVING_PRODUCTION;
  if (isProduction) variables.PLATFORM_SERVING_PRODUCTION = '1';
  return Object.entries(variables).map(([name, value]) => `${name}=${value}`);
}

/** The start script, or `capstan serve` of this installation. Without namespaces the folders of the platform are where {@link World} says. */
export function commandOf(
  { startCommand, runtimeArgs, healthPath }: ReplicaSpec,
  { level, inputDir, home }: World,
): string[] {
  if (startCommand !== null) return ['/bin/sh', '-c', startCommand];
  const place = (arg: string): string =>
    level === 'L2'
      ? arg
      : arg.replace(/^\/platform\/input(?=\/|$)/, () => inputDir).replace(/^\/platform\/home(?=\/|$)/, () => home);
  // What is asked every few seconds would be most of its log.
  return [
    realpathSync(process.execPath),
    runtimeMain(),
    'serve',
    ...runtimeArgs.map(place),
    '--disable-access-log-for-endpoints',
    healthPath.split('?')[0],
  ];
}

export function runtimeMain(): string {
  return join(packageRoot(), 'dist', 'server', 'main.js');
}

/** What the built-in runtime needs of this machine: itself, what it is built from, and Node.js. */
export function runtimeShares(): string[] {
  const root = packageRoot();
  // As a dependency of something else its own dependencies lie beside it.
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
