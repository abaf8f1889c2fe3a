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
