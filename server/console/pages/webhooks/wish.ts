/** What events are told of, as the interface groups them. */
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
  'webhook',
] as const;

export interface EventWish {
  isEverything: boolean;
  groups: readonly string[];
  /** Single types, one per line. */
  types: string;
}

export function wishOf(events: readonly string[]): EventWish {
  return {
    isEverything: events.includes('*'),
    groups: events.filter((name) => name.endsWith('.*')).map((name) => name.slice(0, -2)),
    types: events.filter((name) => !name.endsWith('*')).join('\n'),
  };
}

export function eventsOf({ isEverything, groups, types }: EventWish): string[] {
  if (isEverything) return ['*'];
  return [...groups.map((group) => `${group}.*`), ...types.split(/[\s,]+/).filter((name) => name !== '')];
}
