import { execFileSync } from 'node:child_process';
import { closeSync, fsyncSync, mkdirSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';

/** A disk of its own that is soon full. */
export interface SmallDisk {
  /** To the last byte. */
  fill(): void;
  makeRoom(): void;
  remove(): void;
}

/** At a folder, which is made; undefined where this user may mount nothing. */
export function mountSmallDisk(folder: string, megabytes: number): SmallDisk | undefined {
  mkdirSync(folder, { recursive: true });
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m,mode=0755`, 'tmpfs', folder], { stdio: 'ignore' });
  } catch {
    return undefined;
  }
  const ballast = join(folder, 'ballast');
  return {
    fill: () => {
      const file = openSync(ballast, 'a');
      try {
        for (let bytes = 1 << 20; bytes >= 1;) {
          try {
            if (writeSync(file, Buffer.alloc(bytes)) < bytes) bytes >>= 1;
          } catch {
            bytes >>= 1;
          }
        }
        fsyncSync(file);
      } finally {
        closeSync(file);
      }
    },
    makeRoom: () => rmSync(ballast, { force: true }),
    remove: () => {
      execFileSync('umount', ['-l', folder]);
    },
  };
}
