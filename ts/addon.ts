import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { NativeAddon } from './addon-types';
import { CapstanError } from './errors';
import { packageRoot, requireNative } from './package-root';
import { glibcVersion, platformFolder, platformPackage, prebuildsOf } from './platform-package';

// The package has no types.
// eslint-disable-next-line @typescript-eslint/no-require-imports
const nodeGypBuild = require('node-gyp-build') as { resolve(folder: string): string };

let loaded: NativeAddon | undefined;

/**
 * Loads the native addon: the file `CAPSTAN_ADDON` if set, else the build folder, else the platform package.
 * @throws CapstanError `addon_not_found` with the platform, the paths that were tried and the next command.
 */
export function loadAddon(): NativeAddon {
  loaded ??= requireAddon(findAddon());
  return loaded;
}

function findAddon(): string {
  const chosen = process.env.CAPSTAN_ADDON;
  if (chosen !== undefined && chosen !== '') return resolve(chosen);
  let cause: unknown;
  for (const folder of [packageRoot(), platformFolder()]) {
    try {
      if (folder !== undefined) return nodeGypBuild.resolve(folder);
    } catch (error) {
      cause = error;
    }
  }
  throw notFound('there is no build for this platform', cause);
}

function requireAddon(path: string): NativeAddon {
  try {
    return requireNative(path) as NativeAddon;
  } catch (cause) {
    const reason = existsSync(path) ? `${path} does not load: ${(cause as Error).message}` : `${path} does not exist`;
    throw notFound(reason, cause);
  }
}

function notFound(reason: string, cause: unknown): CapstanError {
  const root = packageRoot();
  const platform = platformPackage();
  const tried = ['build/Release', 'build/Debug'].map((folder) => join(root, folder));
  const message =
    `The native addon cannot be loaded on ${platformName()}: ${reason}.\n` +
    `Tried: ${[...tried, prebuildsOf(platformFolder() ?? platform)].join(', ')}.\n` +
    `Next: ${nextStep(root, platform)}`;
  return new CapstanError('addon_not_found', message, { cause, expected: 'a loadable addon', received: reason });
}

/** Platforms that have a package. */
const PACKAGES = ['@capstan/linux-x64-gnu', '@capstan/linux-arm64-gnu'];

function nextStep(root: string, platform: string): string {
  if (existsSync(join(root, 'native', 'build.js'))) {
    return `run "npm run build:addon" in ${root} (it needs python3, make and g++).`;
  }
  if (!PACKAGES.includes(platform)) return `build from a clone. There is no package for ${platform}.`;
  if (platformFolder() === undefined) return `install ${platform}, which --omit=optional leaves out.`;
  return 'the package needs glibc 2.28 or newer (2.30 on arm64). On an older system, build from a clone.';
}

function platformName(): string {
  const version = glibcVersion();
  const libc = version === undefined ? 'musl' : `glibc ${version}`;
  const libcPart = process.platform === 'linux' ? `, ${libc}` : '';
  return `${process.platform}-${process.arch}${libcPart}, Node ${process.version}`;
}
