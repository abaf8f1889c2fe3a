import { dirname, join } from 'node:path';
import { requireNative, resolveNative } from './package-root';

/** The library `tokenizers` in a platform package. */
export const TOKENIZERS_FILE = 'tokenizers.node';

let header: { glibcVersionRuntime?: string } | undefined;

/** Returns the version of glibc, or undefined with another C library. */
export function glibcVersion(): string | undefined {
  header ??= reportHeader();
  return header.glibcVersionRuntime;
}

/** Takes about 8 ms. */
function reportHeader(): { glibcVersionRuntime?: string } {
  const report = process.report as NodeJS.ProcessReport & { excludeNetwork?: boolean };
  const { excludeNetwork } = report;
  // Otherwise the report looks up the names of all open connections. The setting belongs to the host program.
  report.excludeNetwork = true;
  const { header: current } = report.getReport() as unknown as { header: { glibcVersionRuntime?: string } };
  report.excludeNetwork = excludeNetwork;
  return current;
}

/** Returns the name of the package with the native files for this platform, for example `@capstan/linux-x64-gnu`. */
export function platformPackage(): string {
  const platform = `${process.platform}-${process.arch}`;
  if (process.platform !== 'linux') return `@capstan/${platform}`;
  return `@capstan/${platform}-${glibcVersion() === undefined ? 'musl' : 'gnu'}`;
}

/** Returns the folder of the platform package, or undefined if it is not installed. A source tree has none. */
export function platformFolder(): string | undefined {
  try {
    return dirname(resolveNative(`${platformPackage()}/package.json`));
  } catch {
    return undefined;
  }
}

/**
 * Returns the binary of libsql. Used by the published copy of libsql; a source tree has the npm package.
 * @public
 */
export function requireLibsql(): unknown {
  const folder = platformFolder();
  if (folder === undefined) {
    throw new Error(`expected the package ${platformPackage()}, which holds the database library, found none`);
  }
  return requireNative(join(folder, 'libsql.node'));
}

/** Returns the folder of a platform package where prebuildify puts native files. */
export function prebuildsOf(folder: string): string {
  return join(folder, 'prebuilds', `${process.platform}-${process.arch}`);
}
