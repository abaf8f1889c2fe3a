/** The event groups of the management API. */
export const EVENT_GROUPS = [
  'deployment',
  'version',
  'rollout',
  'container',
  'key',
  'member',
  'org',
  'owner',
  'account',
  'token',
  'source',
  'image',
  'provider',
  'price',
  'budget',
  'webhook',
] as const;

export interface EventSelection {
  isEverything: boolean;
  groups: readonly string[];
  /** Single event types, one per line. */
  types: string;
}

export function selectionOf(events: readonly string[]): EventSelection {
  return {
    isEverything: events.includes('*'),
    groups: events.filter((name) => name.endsWith('.*')).map((name) => name.slice(0, -2)),
    types: events.filter((name) => !name.endsWith('*')).join('\n'),
  };
}

export function eventsOf({ isEverything, groups, types }: EventSelection): string[] {
  if (isEverything) return ['*'];
  return [...groups.map((group) => `${group}.*`), ...types.split(/[\s,]+/).filter((name) => name !== '')];
}
