import { UsageError } from 'capstan/internal';

/**
 * Yarn without node_modules (Plug'n'Play) keeps packages in archives, which only its own loader reads. A replica starts
 * without that loader and sees only Capstan's own files.
 * @throws UsageError if this process runs so.
 */
export function refusePlugAndPlay(versions: NodeJS.ProcessVersions): void {
  if (versions.pnp === undefined) return;
  throw new UsageError(
    "capstan up: expected packages in node_modules, got Yarn's Plug'n'Play: " +
      'set "nodeLinker: node-modules" in .yarnrc.yml and run "yarn install"',
  );
}
