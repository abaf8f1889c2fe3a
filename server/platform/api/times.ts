/** Formats a time for the wire. */
export function timeOf(ms: number): string;
export function timeOf(ms: number | null): string | null;
export function timeOf(ms: number | null): string | null {
  return ms === null ? null : new Date(ms).toISOString();
}

/** Parses a `date-time` to UTC milliseconds. Keeps undefined and null. */
export function msOf(time: string): number;
export function msOf(time: string | undefined): number | undefined;
export function msOf(time: string | null | undefined): number | null | undefined;
export function msOf(time: string | null | undefined): number | null | undefined {
  return typeof time === 'string' ? Date.parse(time) : time;
}
