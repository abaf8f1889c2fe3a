import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

/**
 * Removes a folder and everything in it. Runs the program rm, because a replica may nest folders more deeply than a
 * path can be long.
 */
export async function removeFolder(folder: string): Promise<void> {
  try {
    await run('rm', ['-rf', '--', folder]);
  } catch {
    // The replica of an ordinary user may have closed folders to this user, their owner.
    await run('chmod', ['-R', 'u+rwx', '--', folder]);
    await run('rm', ['-rf', '--', folder]);
  }
}

async function run(program: string, args: string[]): Promise<void> {
  await promisify(execFile)(program, args, { env: { PATH: process.env.PATH ?? '/usr/bin:/bin' } });
}
