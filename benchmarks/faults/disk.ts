/** A small file system in memory that can be filled, for the data directory. */
import { execFileSync } from 'node:child_process';
import { closeSync, mkdirSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';

const MIB = 2 ** 20;
const SIZE_MIB = 192;
/** The service also writes while the disk is full, so it is filled again and again. */
const REFILL_MS = 300;

export class SmallDisk {
  readonly folder: string;

  /** Needs root. */
  constructor(folder: string) {
    this.folder = folder;
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${SIZE_MIB}m,mode=700`, 'capstan-faults', folder]);
  }

  /** Fills the disk until the returned function frees it. */
  fill(): () => void {
    const file = join(this.folder, 'filler');
    const fd = openSync(file, 'a', 0o600);
    const fill = (): void => {
      for (const size of [MIB, 4_096]) {
        const bytes = Buffer.alloc(size);
        try {
          while (writeSync(fd, bytes) > 0);
        } catch {
          // Full.
        }
      }
    };
    fill();
    const timer = setInterval(fill, REFILL_MS);
    return () => {
      clearInterval(timer);
      closeSync(fd);
      rmSync(file);
    };
  }

  /** Also while this process has files open there: libsql closes them when it collects its statements. */
  unmount(): void {
    execFileSync('umount', ['--lazy', this.folder]);
  }
}
