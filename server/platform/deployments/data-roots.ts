import fs from 'node:fs';
import path from 'node:path';

/**
 * Returns the real path of `folder` with links resolved. Returns undefined unless it is a folder below one of `roots`.
 */
export function resolveInside(folder: string, roots: readonly string[]): string | undefined {
  try {
    const real = fs.realpathSync(folder);
    if (!fs.statSync(real).isDirectory()) return undefined;
    return roots.some((root) => isBelow(real, root)) ? real : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Returns the folder of a data source, whose real path was stored, if it is still there. Returns undefined if it was
 * deleted or moved, or if a part of its path is a link now: a program that may write to a folder above it could
 * otherwise replace it by a link to a folder of someone else.
 */
export function sourceFolder(folder: string, roots: readonly string[]): string | undefined {
  return resolveInside(folder, roots) === folder ? folder : undefined;
}

function isBelow(real: string, root: string): boolean {
  try {
    const relative = path.relative(fs.realpathSync(root), real);
    return (
      relative === '' || (relative !== '..' && !relative.startsWith(`..${path.sep}`) && !path.isAbsolute(relative))
    );
  } catch {
    return false;
  }
}
