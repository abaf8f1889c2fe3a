import type { Projection } from './modules';

/** Returns a number that grows with the version. undefined or another text: 0, as of PEFT before 0.18. */
function versionNumber(version: string | undefined): number {
  const [, major, minor, patch, dev] = /^(\d+)\.(\d+)\.(\d+)(\.dev)?/.exec(version ?? '') ?? [];
  if (major === undefined) return 0;
  // 0.19.1.dev0 is before 0.19.1.
  return Number(major) * 1e6 + Number(minor) * 1e3 + Number(patch) - (dev === undefined ? 0 : 0.5);
}

/**
 * Returns whether a version of PEFT takes the outputs of a parameter of experts for its inputs. PEFT before 0.19.0
 * reads each parameter as (experts, inputs, outputs). PEFT 0.19.0 does so for parameters that are not transposed, and
 * reads the transposed ones as (experts, outputs, inputs).
 */
export function hasSwappedExperts({ numExperts, isTransposed }: Projection, peftVersion: string | undefined): boolean {
  const version = versionNumber(peftVersion);
  if (numExperts === undefined || version >= 19_001) return false;
  return isTransposed !== true || version > 18_999;
}
