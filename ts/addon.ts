import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { NativeAddon } from './addon-types';
import { CapstanError } from './errors';
import { packageRoot } from './package-root';

// Untyped upstream.
// eslint-disable-next-line @typescript-eslint/no-require-imports
const nodeGypBuild = require('node-gyp-build') as { resolve(folder: string): string };

let loaded: NativeAddon | undefined;

/**
 * The native addon: `CAPSTAN_ADDON` (a file) if set, else the build folder, else the prebuild of this platform.
 * @throws CapstanError `addon_not_found` that names what was tried, the platform and the next command.
 */
export function loadAddon(): NativeAddon {
  loaded ??= requireAddon(findAddon());
  return loaded;
}

function findAddon(): string {
  const chosen = process.env.CAPSTAN_ADDON;
  if (chosen !== undefined && chosen !== '') return resolve(chosen);
  const root = packageRoot();
  try {
    return nodeGypBuild.resolve(root);
  } catch (cause) {
    throw notFound('no addon is built for it', cause);
  }
}

function requireAddon(path: string): NativeAddon {
  try {
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    return require(path) as NativeAddon;
  } catch (cause) {
    const reason = existsSync(path) ? `${path} does not load: ${(cause as Error).message}` : `${path} does not exist`;
    throw notFound(reason, cause);
  }
}

function notFound(reason: string, cause: unknown): CapstanError {
  const root = packageRoot();
  const tried = ['build/Release', 'build/Debug', `prebuilds/${process.platform}-${process.arch}`].map((folder) =>
    join(root, folder),
  );
  const message =
    `The native addon cannot be loaded on ${platformName()}: ${reason}.\n` +
    `Tried: ${tried.join(', ')}.\n` +
    `Next: run "npm run build:addon" in ${root} (it needs python3, make and g++).`;
  return new CapstanError('addon_not_found', message, { cause, expected: 'a loadable addon', received: reason });
}

function platformName(): string {
  const { glibcVersionRuntime } = (
    process.report.getReport() as unknown as { header: { glibcVersionRuntime?: string } }
  ).header;
  const libc =
    process.platform !== 'linux' ? '' : glibcVersionRuntime === undefined ? ', musl' : `, glibc ${glibcVersionRuntime}`;
  return `${process.platform}-${process.arch}${libc}, Node ${process.version}`;
}
