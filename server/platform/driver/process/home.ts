import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { chmod, cp, lchown, lstat, mkdir, readdir, rm, stat, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { DriverError, type ReplicaSpec } from '../driver';
import type { ReplicaFolder } from './replica-folder';
import { removeFolder } from './remove-folder';
import type { Level } from './replica-layout';

/** Path that exists only inside namespaces. */
const PLATFORM_PATH = /\/platform\/(input|home)\b/;

/** Throws DriverError `data_binding_missing` when an input or the home folder is missing or unreadable. */
export async function checkBindings(
  { inputs, home, startCommand }: ReplicaSpec,
  level: Level,
  readsAsOther: boolean,
): Promise<void> {
  for (const { mount, path } of inputs) await checkSource(mount, path, readsAsOther);
  if (home !== null) await checkSource('home', home.path, false);
  if (level !== 'L2' && startCommand !== null && PLATFORM_PATH.test(startCommand)) {
    const found = PLATFORM_PATH.exec(startCommand)![0];
    throw new DriverError(
      'data_binding_missing',
      `The start script uses ${found}, which exists only with namespaces (this machine has level ${level}): use PLATFORM_INPUT_DIR and PLATFORM_HOME instead`,
    );
  }
}

async function checkSource(mount: string, path: string, readsAsOther: boolean): Promise<void> {
  const found = await stat(path).catch(() => undefined);
  if (found === undefined) throw new DriverError('data_binding_missing', `${mount}: the data no longer exists`);
  const needed = found.isDirectory() ? 0o5 : 0o4;
  if (readsAsOther && (found.mode & needed) !== needed)
    throw new DriverError(
      'data_binding_missing',
      `${mount}: the data must be readable by all users of this machine, because deployments run as another user`,
    );
}

/**
 * Prepares the home folder of a new start. Copies it, so that each start is clean. @param owner User id of the copy.
 * Returns its path.
 */
export async function prepareHome(
  { home }: Pick<ReplicaSpec, 'home'>,
  folder: ReplicaFolder,
  owner: number | undefined,
): Promise<string> {
  if (home?.mode === 'rw') {
    if (owner !== undefined && !(await mayWrite(home.path, owner)))
      throw new DriverError(
        'data_binding_missing',
        `home: containers run as user ${owner}, which may not write to this folder. The machine's administrator can allow it: chown -R ${owner} FOLDER`,
      );
    return home.path;
  }
  await removeFolder(folder.home);
  if (home === null) await mkdir(folder.home, { mode: 0o755 });
  else await copy(home.path, folder.home);
  if (owner !== undefined) await give(folder.home, owner);
  return folder.home;
}

/** Asks the kernel, because access lists count, too. */
function mayWrite(folder: string, user: number): Promise<boolean> {
  return new Promise((resolve) => {
    // The folder is the current one, because the user may not reach it by its path.
    const asUser = { cwd: folder, uid: user, gid: user, env: {} };
    execFile('/bin/sh', ['-c', 'test -w .'], asUser, (error) => resolve(error === null));
  });
}

/** Keeps symbolic links, skips pipes and sockets, and shares blocks if the file system can. */
async function copy(from: string, to: string): Promise<void> {
  await cp(from, to, {
    recursive: true,
    verbatimSymlinks: true,
    preserveTimestamps: true,
    mode: constants.COPYFILE_FICLONE,
    filter: async (path) => {
      const found = await lstat(path);
      return found.isFile() || found.isDirectory() || found.isSymbolicLink();
    },
  });
  await chmod(to, 0o755);
}

/** Gives a folder that the service has just made, and everything below it, to a user. */
async function give(path: string, owner: number): Promise<void> {
  await lchown(path, owner, owner);
  if (!(await lstat(path)).isDirectory()) return;
  for (const name of await readdir(path)) await give(join(path, name), owner);
}

/** Without namespaces: links the inputs as `input0` and so on. */
export async function linkInputs({ inputs }: Pick<ReplicaSpec, 'inputs'>, folder: ReplicaFolder): Promise<void> {
  await rm(folder.inputs, { recursive: true, force: true });
  await mkdir(folder.inputs);
  for (const { mount, path } of inputs) await symlink(path, join(folder.inputs, mount));
}
