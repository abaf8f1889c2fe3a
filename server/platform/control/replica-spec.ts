import fs from 'node:fs';
import { ggufModelName } from 'capstan/internal';
import { DriverError, type Isolation, type MonitoredSpec, type ReplicaSpec } from '../driver/driver';
import { sourceFolder } from '../deployments/data-roots';
import { refusedVariable } from '../deployments/environment';
import type { HomeSnapshots } from '../deployments/home-snapshots';
import type { PrefixCaches } from '../deployments/prefix-caches';
import type { Launch } from './launch';

export interface Folders {
  dataRoots: readonly string[];
  snapshots: HomeSnapshots;
  prefixCaches: PrefixCaches;
}

/**
 * Returns what the driver runs. Checks the folders again: they may have been deleted or moved since they were bound.
 * @throws DriverError `data_binding_missing`
 */
export function replicaSpec(
  launch: Launch,
  { dataRoots, snapshots, prefixCaches }: Folders,
  isolation: Isolation,
): ReplicaSpec {
  const inputs: { mount: string; path: string }[] = [];
  let home: ReplicaSpec['home'] = null;
  for (const { mount, mode, path, isIncomplete } of launch.folders) {
    // A version waits for its models. A container does not.
    if (isIncomplete)
      throw new DriverError(
        'data_binding_missing',
        `${mount}: its model is not complete. Wait until the download ends, or pull it again`,
      );
    if (mode === 'copy') {
      home = { path: snapshots.folderOf(launch.ownerId), mode };
      if (!fs.existsSync(home.path))
        throw new DriverError('data_binding_missing', 'home: its copy is missing in the data directory');
      continue;
    }
    const folder = sourceFolder(path, dataRoots);
    if (folder === undefined)
      throw new DriverError(
        'data_binding_missing',
        `${mount}: expected an existing folder below a data root: it was deleted, moved or replaced by a link`,
      );
    if (mode === 'rw') home = { path: folder, mode };
    else inputs.push({ mount, path: folder });
  }
  const {
    replicaId: id,
    ownerId: logId,
    ordinal,
    startCommand,
    modelName,
    isProduction,
    cpuMillis,
    memoryMb,
    gpuUuids,
    env,
    prefixCache,
    healthPath,
    secret,
  } = launch;
  const mapped =
    isolation.level === 'L2' ? launch.runtimeArgs : launch.runtimeArgs.map((argument) => unmapped(argument, inputs));
  // Clients may still use the name of the file or folder.
  const names = modelName === null ? [] : [modelName, ggufModelName(mapped[0])];
  const runtimeArgs = [...mapped, ...names.map((name) => `--served-model-name=${name}`)];
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
    cache: prefixCache && {
      folder: prefixCaches.folderOf(prefixCache.deploymentId),
      maxMb: prefixCache.maxMb,
      sharedMb: prefixCache.sharedMb,
      maxReplicas: prefixCache.maxReplicas,
    },
    healthPath,
    secret,
  };
}

/** Returns what the driver needs to monitor a replica that runs. Its folders may be missing meanwhile. */
export function monitoredSpec(launch: Launch): MonitoredSpec {
  const { replicaId: id, ownerId: logId, ordinal, isProduction, healthPath, secret } = launch;
  return { id, logId, ordinal, isProduction, healthPath, secret };
}

/**
 * Refuses a start script, or a variable that loads code, when the machine no longer isolates replicas and the service
 * does not allow that.
 * @throws DriverError `not_isolated`
 */
export function demandIsolated(
  { startCommand, env }: ReplicaSpec,
  { level, reason }: Isolation,
  allowsUnisolated: boolean,
): void {
  for (const [name, value] of Object.entries(env)) {
    const refused = refusedVariable([name, value], startCommand, level);
    if (refused !== undefined)
      throw new DriverError(
        'not_isolated',
        `The variable ${name} cannot be set: ${refused}. Create a version without it`,
      );
  }
  if (startCommand === null || level === 'L2' || allowsUnisolated) return;
  throw new DriverError(
    'not_isolated',
    `The start script needs isolation level L2, this machine has level ${level}: ${reason} Start the service with --allow-unisolated to run it anyway`,
  );
}

/** Without mounts the built-in runtime reads its model from the original folder. */
function unmapped(argument: string, inputs: readonly { mount: string; path: string }[]): string {
  for (const { mount, path } of inputs) {
    const prefix = `/platform/input/${mount}`;
    if (argument === prefix || argument.startsWith(`${prefix}/`)) return path + argument.slice(prefix.length);
  }
  return argument;
}
