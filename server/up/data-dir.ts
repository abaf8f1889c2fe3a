import fs from 'node:fs';
import path from 'node:path';
import { UsageError } from '../flag-values';

/** Everything that the service keeps, in one folder that belongs to one running service at a time. Beside these: `capstan.db` unless the database is elsewhere, `secret.key`, which opens the secrets in the database, and `gateway.id`. */
export interface DataDir {
  readonly root: string;
  /** Segments of what deployments and containers print. */
  readonly logs: string;
  /** What replicas run in: sockets, copies of their home folders. */
  readonly replicas: string;
  /** What data sources are taken from, unless `--data-root` names others. */
  readonly data: string;
}

/** Makes what is missing, for its user alone. @throws Error with the folder and the reason in its message. */
export function openDataDir(dir: string): DataDir {
  const root = path.resolve(dir);
  const layout = {
    root,
    logs: path.join(root, 'logs'),
    replicas: path.join(root, 'replicas'),
    data: path.join(root, 'data'),
  };
  try {
    for (const folder of [root, layout.logs, layout.replicas, layout.data])
      fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
    fs.accessSync(root, fs.constants.R_OK | fs.constants.W_OK | fs.constants.X_OK);
  } catch (error) {
    throw Object.assign(new Error(`--data-dir: cannot write in ${root}: ${reasonOf(error)}`, { cause: error }), {
      code: 'data_dir',
    });
  }
  return layout;
}

/** What data sources may be taken from. @throws UsageError for one that is no folder. */
export function openDataRoots(given: readonly string[], { data }: DataDir): string[] {
  if (given.length === 0) return [fs.realpathSync(data)];
  return given.map((folder) => {
    if (fs.statSync(folder, { throwIfNoEntry: false })?.isDirectory() !== true)
      throw new UsageError(`--data-root: expected a folder, got '${folder}'`);
    return fs.realpathSync(folder);
  });
}

const REASONS: Readonly<Record<string, string>> = {
  EACCES: 'not allowed',
  EPERM: 'not allowed',
  EROFS: 'the file system is read-only',
  ENOTDIR: 'a part of the path is no folder',
  EEXIST: 'there is a file of this name',
  ENOSPC: 'the disk is full',
};

function reasonOf(error: unknown): string {
  const { code = '', message } = error as NodeJS.ErrnoException;
  return REASONS[code] ?? (code === '' ? message : code);
}
