import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { CapstanError } from './errors';

/**
 * The folder of our package.json: above `ts/` when run from source, above `dist/ts/` when compiled.
 * @throws CapstanError `addon_not_found` where a bundler took this file elsewhere, as addon and model stayed behind.
 */
export function packageRoot(): string {
  let folder = __dirname;
  while (!isOurs(folder)) {
    if (folder === dirname(folder)) throw bundled();
    folder = dirname(folder);
  }
  return folder;
}

/** Above a bundle lies the package.json of whoever made it. */
function isOurs(folder: string): boolean {
  const file = join(folder, 'package.json');
  return existsSync(file) && (JSON.parse(readFileSync(file, 'utf8')) as { name?: unknown }).name === 'capstan';
}

function bundled(): CapstanError {
  const [expected, received] = ["Capstan's own package above it", 'a copy of its code, as a bundler makes'];
  return new CapstanError(
    'addon_not_found',
    `${__dirname}: expected ${expected}, got ${received}.\n` +
      'Next: leave the package out of the bundle (esbuild --external:capstan, `externals` of webpack).',
    { expected, received },
  );
}
