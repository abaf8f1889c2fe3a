import { AccessError } from '../access/errors';

const UNITS_MS: Readonly<Record<string, number>> = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const RFC_3339 = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$/i;

/** Parses `90s`, `30m`, `24h`, `30d`, `2w` or `0`. Returns milliseconds. @throws AccessError */
export function parseDuration(param: string, text: string): number {
  const ms = tryDuration(text);
  if (ms === undefined) throw new AccessError('invalid_argument', `${param}: expected a duration such as 24h or 30d`);
  return ms;
}

/**
 * Parses an RFC 3339 time, a duration from now, or `never`.
 * @returns UTC milliseconds, or null for `never`.
 * @throws AccessError
 */
export function parseExpiry(text: string, nowMs: number): number | null {
  if (text === 'never') return null;
  const durationMs = tryDuration(text);
  if (durationMs !== undefined) return nowMs + durationMs;
  const atMs = RFC_3339.test(text) ? Date.parse(text) : NaN;
  if (Number.isNaN(atMs))
    throw new AccessError(
      'invalid_argument',
      '--expires: expected a duration such as 30d, a time such as 2030-01-31T00:00:00Z, or never',
    );
  return atMs;
}

function tryDuration(text: string): number | undefined {
  const [, count, unit] = /^(\d{1,9})([smhdw]?)$/.exec(text) ?? [];
  if (count === undefined || (unit === '' && Number(count) !== 0)) return undefined;
  return Number(count) * (UNITS_MS[unit] ?? 0);
}
