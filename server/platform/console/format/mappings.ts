import type { IdentityProvider } from '../../api/objects';

type Mapping = IdentityProvider['mappings'][number];

const ROLES: readonly string[] = ['viewer', 'developer', 'admin', 'owner'] satisfies Mapping['role'][];

/** One mapping a line: `GROUP = ORGANIZATION: ROLE`. */
export function mappingsText(mappings: readonly Mapping[]): string {
  return mappings.map(({ group, org, role }) => `${group} = ${org}: ${role}`).join('\n');
}

/** Parses {@link mappingsText}. Returns undefined if a line has another form. */
export function parseMappings(text: string): Mapping[] | undefined {
  const lines = linesOf(text).map((line) => /^(.+?)\s*=\s*([^=:\s]+)\s*:\s*([a-z]+)$/.exec(line));
  if (lines.some((match) => match === null || !ROLES.includes(match[3]))) return undefined;
  return lines.map((match) => ({ group: match![1], org: match![2], role: match![3] as Mapping['role'] }));
}

/** One parameter a line: `NAME=VALUE`. */
export function paramsText(params: Readonly<Record<string, string>>): string {
  return Object.entries(params)
    .map(([name, value]) => `${name}=${value}`)
    .join('\n');
}

/** Parses {@link paramsText}. Returns undefined if a line has another form. */
export function parseParams(text: string): Record<string, string> | undefined {
  const lines = linesOf(text).map((line) => /^([A-Za-z0-9_.-]+)\s*=\s*(.*)$/.exec(line));
  return lines.includes(null) ? undefined : Object.fromEntries(lines.map((match) => [match![1], match![2]]));
}

/** Returns the words of a text: spaces, commas and line breaks separate them. */
export function wordsOf(text: string): string[] {
  return text.split(/[\s,]+/).filter((word) => word !== '');
}

function linesOf(text: string): string[] {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
}
