import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { CapstanError } from './errors';

let root: string | undefined;

/**
 * Returns the folder of our package.json: above `ts/` when run from source, above `dist/ts/` when compiled. Code in a
 * bundle uses the installed package, which has the native files and the embedded model.
 * @throws CapstanError `addon_not_found` if a bundle runs where the package is not installed.
 */
export function packageRoot(): string {
  return (root ??= ownRoot() ?? installedRoot());
}

/** Requires a native file, or a package that has one. Bundlers do not follow this call. */
export function requireNative(id: string): unknown {
  return requireFromRoot()(id);
}

/** As `require.resolve`, for {@link requireNative}. */
export function resolveNative(id: string): string {
  return requireFromRoot().resolve(id);
}

function requireFromRoot(): NodeJS.Require {
  return createRequire(join(packageRoot(), 'package.json'));
}

function ownRoot(): string | undefined {
  for (let folder = __dirname; ; folder = dirname(folder)) {
    if (isOurs(folder)) return folder;
    if (folder === dirname(folder)) return undefined;
  }
}

/** Checks the name, because the parent folders of a bundle have a package.json of another project. */
function isOurs(folder: string): boolean {
  const file = join(folder, 'package.json');
  return existsSync(file) && (JSON.parse(readFileSync(file, 'utf8')) as { name?: unknown }).name === 'capstan';
}

function installedRoot(): string {
  // A bundler copies this version into the bundle.
  // eslint-disable-next-line @typescript-eslint/no-require-imports
  const { version } = require('capstan/package.json') as { version: string };
  let installed: { folder: string; version: string };
  try {
    const file = createRequire(join(__dirname, 'bundle.js')).resolve('capstan/package.json');
    installed = { folder: dirname(file), ...(JSON.parse(readFileSync(file, 'utf8')) as { version: string }) };
  } catch (cause) {
    const [expected, received] = ['the package capstan in node_modules', 'a bundle without it'];
    const message =
      `${__dirname}: expected ${expected}, got ${received}.\n` +
      'Next: install capstan where the bundle runs. It has the native files.';
    throw new CapstanError('addon_not_found', message, { cause, expected, received });
  }
  if (installed.version !== version) {
    const message =
      `${installed.folder}: expected capstan ${version}, which is in the bundle, got ${installed.version}.\n` +
      `Next: npm install capstan@${version}`;
    throw new CapstanError('addon_not_found', message, { expected: version, received: installed.version });
  }
  return installed.folder;
}
