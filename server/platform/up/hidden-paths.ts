import path from 'node:path';
import { packageRoot } from 'capstan/internal';
import type { UpOptions } from './options';

/** Parameters of a PostgreSQL URL that name files. */
const URL_FILES = ['sslkey', 'sslcert', 'sslrootcert'];

/**
 * Returns the files and folders that the service was configured with, besides its data directory. Deployments must not
 * see them.
 */
export function hiddenPaths(
  {
    tls,
    bootstrapPasswordFile,
    configFile,
    databaseUrl,
  }: Pick<UpOptions, 'tls' | 'bootstrapPasswordFile' | 'configFile' | 'databaseUrl'>,
  dataRoots: readonly string[],
): string[] {
  const ofDatabase = databaseUrl === undefined ? undefined : new URL(databaseUrl).searchParams;
  const files = [
    ...[tls.keyFile, tls.certFile, bootstrapPasswordFile, configFile],
    ...URL_FILES.map((name) => ofDatabase?.get(name) ?? undefined),
  ].filter((file): file is string => file !== undefined && file !== '');
  // A root inside another one stays visible in the data sources that contain it. One with Node.js or Capstan in it
  // cannot be hidden, because no deployment could run.
  const roots = dataRoots.filter(
    (root) =>
      !dataRoots.some((other) => isInside(root, other)) &&
      ![packageRoot(), process.execPath].some((needed) => needed === root || isInside(needed, root)),
  );
  return [...files.map((file) => path.resolve(file)), ...roots];
}

function isInside(inner: string, outer: string): boolean {
  const relative = path.relative(outer, inner);
  return relative !== '' && relative !== '..' && !relative.startsWith(`..${path.sep}`);
}
