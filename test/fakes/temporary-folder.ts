import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// Each call adds one listener, and a worker of Jest runs many files.
process.setMaxListeners(0);

/** Creates a folder that a script removes when it exits. Tests need not call it: Jest removes TMPDIR after each run. */
export function temporaryFolder(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), `capstan-${name}-`));
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
