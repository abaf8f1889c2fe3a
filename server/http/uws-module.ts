import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type * as Uws from 'uWebSockets.js';

export type UwsModule = typeof Uws;

/**
 * The native module, or undefined where none loads (another Node version, musl). Its binary is required directly: the package's entry
 * would fall back to an implementation in JavaScript that corrupts streams.
 */
export function loadUws(): UwsModule | undefined {
  try {
    const folder = dirname(require.resolve('uWebSockets.js/package.json'));
    const file = `uws_${process.platform}_${process.arch}_${process.versions.modules}.node`;
    const path = [join(folder, file), join(folder, 'binaries', file)].find(existsSync);
    if (path === undefined) return undefined;
    // eslint-disable-next-line @typescript-eslint/no-require-imports
    const uws = require(path) as UwsModule;
    return typeof uws.SSLApp === 'function' ? uws : undefined;
  } catch {
    return undefined;
  }
}
