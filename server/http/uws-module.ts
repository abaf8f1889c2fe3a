import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { requireNative, resolveNative } from '../base/native-require';
import type * as Uws from 'uWebSockets.js';

export type UwsModule = typeof Uws;

/** The oldest release that `auto` uses: its major and minor version. */
const OLDEST_CURRENT = [20, 51] as const;

/**
 * Returns the native module, or undefined if none loads here (another Node version, musl) or if `isForced` is false and
 * the installed release is not current. It requires the binary directly, because the package's entry falls back to an
 * implementation in JavaScript that corrupts streams.
 */
export function loadUws({ isForced }: { isForced: boolean }): UwsModule | undefined {
  try {
    const folder = packageFolder(resolveNative('uWebSockets.js'));
    const { version } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { version: string };
    if (!isForced && !isCurrentUws(version)) return undefined;
    const file = `uws_${process.platform}_${process.arch}_${process.versions.modules}.node`;
    const path = [join(folder, file), join(folder, 'binaries', file)].find(existsSync);
    if (path === undefined) return undefined;
    const uws = requireNative(path) as UwsModule;
    return typeof uws.SSLApp === 'function' ? uws : undefined;
  } catch {
    return undefined;
  }
}

/** The folder of package.json, which current releases do not export. */
function packageFolder(entry: string): string {
  const folder = dirname(entry);
  return existsSync(join(folder, 'package.json')) || folder === entry ? folder : packageFolder(folder);
}

/**
 * Whether a release answers every request (HTTP/1.0 with 505). Release 20.30, `@trufflesuite/uws-js-unofficial` on npm,
 * gives no answer to HTTP/1.0, to header names with `_`, and to more than 48 headers.
 */
export function isCurrentUws(version: string): boolean {
  const [major, minor] = version.split('.').map(Number);
  return major > OLDEST_CURRENT[0] || (major === OLDEST_CURRENT[0] && minor >= OLDEST_CURRENT[1]);
}
