import fs from 'node:fs';
import path from 'node:path';
import { makeFolder, UsageError } from 'capstan/internal';

/**
 * The service's data folder. One running service owns it at a time. It also holds `capstan.db` (unless the database is
 * elsewhere), `secret.key`, which decrypts the secrets in the database, and `gateway.id`.
 */
export interface DataDir {
  readonly root: string;
  /** Log segments of deployments and containers. */
  readonly logs: string;
  /** Working folders of replicas: sockets, copies of their home folders. */
  readonly replicas: string;
  /** The allowed root of data sources, unless `--data-root` names others. */
  readonly data: string;
}

/** Creates missing folders, accessible to the service's user only. Throws Error with the folder and the reason. */
export function openDataDir(dir: string): DataDir {
  const root = path.resolve(dir);
  const layout = {
    root,
    logs: path.join(root, 'logs'),
    replicas: path.join(root, 'replicas'),
    data: path.join(root, 'data'),
  };
  try {
    for (const folder of [root, layout.logs, layout.replicas, layout.data]) makeFolder(folder, 0o700);
    fs.accessSync(root, fs.constants.R_OK | fs.constants.W_OK | fs.constants.X_OK);
  } catch (error) {
    throw Object.assign(new Error(`--data-dir: cannot write in ${root}: ${reasonOf(error)}`, { cause: error }), {
      code: 'data_dir',
    });
  }
  return layout;
}

/** Returns the folders that may contain data sources. Throws UsageError for a path that is not a folder. */
export function openDataRoots(roots: readonly string[], { data }: DataDir): string[] {
  if (roots.length === 0) return [fs.realpathSync(data)];
  return roots.map((folder) => {
    if (fs.statSync(folder, { throwIfNoEntry: false })?.isDirectory() !== true)
      throw new UsageError(`--data-root: expected a folder, got '${folder}'`);
    return fs.realpathSync(folder);
  });
}

const REASONS: Readonly<Record<string, string>> = {
  EACCES: 'permission denied',
  EPERM: 'operation not permitted',
  EROFS: 'the file system is read-only',
  ENOTDIR: 'a part of the path is not a folder',
  EEXIST: 'a file of this name exists',
  ENOENT: 'the file system takes no folder there',
  ENOSPC: 'the disk is full',
};

function reasonOf(error: unknown): string {
  const { code = '', message } = error as NodeJS.ErrnoException;
  return REASONS[code] ?? (code === '' ? message : code);
}
