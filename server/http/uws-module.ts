import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { requireNative, resolveNative } from '../base/native-require';
import type * as Uws from 'uWebSockets.js';

export type UwsModule = typeof Uws;

/**
 * Returns the native module, or undefined if none loads here (another Node version, musl). It requires the binary
 * directly, because the package's entry falls back to an implementation in JavaScript that corrupts streams.
 */
export function loadUws(): UwsModule | undefined {
  try {
    const folder = dirname(resolveNative('uWebSockets.js/package.json'));
    const file = `uws_${process.platform}_${process.arch}_${process.versions.modules}.node`;
    const path = [join(folder, file), join(folder, 'binaries', file)].find(existsSync);
    if (path === undefined) return undefined;
    const uws = requireNative(path) as UwsModule;
    return typeof uws.SSLApp === 'function' ? uws : undefined;
  } catch {
    return undefined;
  }
}
