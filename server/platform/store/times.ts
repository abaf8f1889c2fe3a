/** Returns an RFC 3339 time in UTC. */
export function rfc3339(ms: number): string {
  return new Date(ms).toISOString();
}

export function rfc3339OrNull(ms: number | null): string | null {
  return ms === null ? null : rfc3339(ms);
}
