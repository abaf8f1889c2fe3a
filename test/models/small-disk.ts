import { execFileSync } from 'node:child_process';
import { closeSync, fsyncSync, mkdirSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';

/** A small disk for tests of a full disk. */
export interface SmallDisk {
  /** Fills the disk to the last byte. */
  fill(): void;
  /** Frees the space again. */
  empty(): void;
  remove(): void;
}

/** Mounts a tmpfs at `folder`. Returns undefined when this user may not mount. */
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
    empty: () => rmSync(ballast, { force: true }),
    remove: () => {
      execFileSync('umount', ['-l', folder]);
    },
  };
}
