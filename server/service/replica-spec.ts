import fs from 'node:fs';
import { DriverError, type Isolation, type ReplicaSpec } from '../driver/driver';
import { resolveInside } from './data-roots';
import type { HomeSnapshots } from './home-snapshots';
import type { Launch } from './launch';

export interface Folders {
  dataRoots: readonly string[];
  snapshots: HomeSnapshots;
}

/** What the driver is told to run. Folders are looked at now: they may be gone, or lead elsewhere, since they were bound. @throws DriverError */
export function replicaSpec(launch: Launch, { dataRoots, snapshots }: Folders, isolation: Isolation): ReplicaSpec {
  const inputs: { mount: string; path: string }[] = [];
  let home: ReplicaSpec['home'] = null;
  for (const { mount, mode, path } of launch.folders) {
    if (mode === 'copy') {
      home = { path: snapshots.folderOf(launch.ownerId), mode };
      if (!fs.existsSync(home.path))
        throw new DriverError('data_binding_missing', 'the copy of its home is gone from the data directory');
      continue;
    }
    const folder = resolveInside(path, dataRoots);
    if (folder === undefined)
      throw new DriverError(
        'data_binding_missing',
        `${mount}: the folder that is bound to it is gone, or lies no longer below a data root`,
      );
    if (mode === 'rw') home = { path: folder, mode };
    else inputs.push({ mount, path: folder });
  }
  const {
    replicaId: id,
    ownerId: logId,
    ordinal,
    startCommand,
    isProduction,
    cpuMillis,
    memoryMb,
    gpuUuids,
    env,
    healthPath,
    secret,
  } = launch;
  const runtimeArgs =
    isolation.level === 'L2' ? launch.runtimeArgs : launch.runtimeArgs.map((argument) => unmapped(argument, inputs));
  return {
    id,
    logId,
    ordinal,
    startCommand,
    runtimeArgs,
    isProduction,
    cpuMillis,
    memoryMb,
    gpuUuids,
    env,
    inputs,
    home,
    healthPath,
    secret,
  };
}

/** A script that was made where replicas are isolated is not started where they are not any more, unless the service was started to allow it. @throws DriverError */
export function demandIsolated(
  { startCommand }: ReplicaSpec,
  { level, reason }: Isolation,
  allowsUnisolated: boolean,
): void {
  if (startCommand === null || level === 'L2' || allowsUnisolated) return;
  throw new DriverError(
    'not_isolated',
    `Its start script needs namespaces, or a service that was started with --allow-unisolated; this one found level ${level} alone: ${reason}`,
  );
}

/** Where nothing is mounted the built-in runtime reads its model where it lies. */
function unmapped(argument: string, inputs: readonly { mount: string; path: string }[]): string {
  for (const { mount, path } of inputs) {
    const prefix = `/platform/input/${mount}`;
    if (argument === prefix || argument.startsWith(`${prefix}/`)) return path + argument.slice(prefix.length);
  }
  return argument;
}
