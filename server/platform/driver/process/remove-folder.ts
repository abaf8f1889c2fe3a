import { execFile } from 'node:child_process';

/**
 * Removes a folder with all that is in it. By the program rm, because a replica may nest folders more deeply than a path
 * can be long.
 */
export async function removeFolder(folder: string): Promise<void> {
  try {
    await run('/bin/rm', ['-rf', '--', folder]);
  } catch {
    // The replica of an ordinary user may have closed folders to this user, their owner.
    await run('/bin/chmod', ['-R', 'u+rwx', '--', folder]);
    await run('/bin/rm', ['-rf', '--', folder]);
  }
}

function run(program: string, args: string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    execFile(program, args, { env: {} }, (error) => (error === null ? resolve() : reject(error)));
  });
}
