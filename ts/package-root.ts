import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { CapstanError } from './errors';

/**
 * Returns the folder of our package.json: above `ts/` when run from source, above `dist/ts/` when compiled.
 * @throws CapstanError `addon_not_found` if a bundler has copied this file elsewhere, without the addon and the model.
 */
export function packageRoot(): string {
  let folder = __dirname;
  while (!isOurs(folder)) {
    if (folder === dirname(folder)) throw bundled();
    folder = dirname(folder);
  }
  return folder;
}

/** Checks the name, because the parent folders of a bundle have a package.json of another project. */
function isOurs(folder: string): boolean {
  const file = join(folder, 'package.json');
  return existsSync(file) && (JSON.parse(readFileSync(file, 'utf8')) as { name?: unknown }).name === 'capstan';
}

function bundled(): CapstanError {
  const [expected, received] = ["Capstan's own package above it", 'a copy of its code, as a bundler makes'];
  return new CapstanError(
    'addon_not_found',
    `${__dirname}: expected ${expected}, got ${received}.\n` +
      'Next: exclude the package from the bundle (esbuild: --external:capstan, webpack: `externals`).',
    { expected, received },
  );
}
