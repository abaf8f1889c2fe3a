import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** The folder of our package.json: above `ts/` when run from source, above `dist/ts/` when compiled. */
export const packageRoot = findPackageRoot(__dirname);

function findPackageRoot(folder: string): string {
  return existsSync(join(folder, 'package.json')) ? folder : findPackageRoot(dirname(folder));
}
