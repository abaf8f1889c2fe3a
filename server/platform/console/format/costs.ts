import type { SpendEntry } from '../../api/objects';
import type { PlotSeries } from './plot-data';

export const GROUPS = ['model', 'key', 'owner'] as const;
export type Group = (typeof GROUPS)[number];

/** The costs of one model, key or owner. */
export interface GroupCosts {
  name: string;
  requests: number;
  tokens: number;
  /** Rounded for display. The server adds exactly. */
  cost: number;
}

const MAX_SERIES = 5;
const DAY_MS = 86_400_000;

/** Returns the groups, the most expensive first. @param noKey The name of requests without a key. */
export function groupCosts(entries: readonly SpendEntry[], group: Group, noKey: string): GroupCosts[] {
  const groups = new Map<string, GroupCosts>();
  for (const entry of entries) {
    const name = nameOf(entry, group, noKey);
    const costs = groups.get(name) ?? { name, requests: 0, tokens: 0, cost: 0 };
    costs.requests += entry.requests;
    costs.tokens += entry.prompt_tokens + entry.completion_tokens;
    costs.cost += Number(entry.cost);
    groups.set(name, costs);
  }
  return [...groups.values()].sort((a, b) => b.cost - a.cost);
}

/** Returns the costs of each day for the most expensive groups. @param rest The name of all others together. */
export function costSeries(
  entries: readonly SpendEntry[],
  { from, to, group, noKey, rest }: { from: string; to: string; group: Group; noKey: string; rest: string },
): PlotSeries[] {
  const days = daysBetween(from, to);
  const shown = groupCosts(entries, group, noKey).map(({ name }) => name);
  const single = shown.slice(0, shown.length > MAX_SERIES ? MAX_SERIES - 1 : MAX_SERIES);
  const names = shown.length > single.length ? [...single, rest] : single;
  const sums = new Map(names.map((name) => [name, new Map(days.map((day) => [day, 0]))]));
  for (const entry of entries) {
    const name = nameOf(entry, group, noKey);
    const ofDay = sums.get(single.includes(name) ? name : rest);
    ofDay?.set(entry.day, (ofDay.get(entry.day) ?? 0) + Number(entry.cost));
  }
  return names.map((name) => ({
    name,
    points: days.map((day): [string, number] => [`${day}T00:00:00Z`, sums.get(name)?.get(day) ?? 0]),
  }));
}

/** The first day of a report that ends with `to`. */
export function dayBefore(to: string, numDays: number): string {
  return new Date(Date.parse(`${to}T00:00:00Z`) - (numDays - 1) * DAY_MS).toISOString().slice(0, 10);
}

function daysBetween(from: string, to: string): string[] {
  const [first, last] = [Date.parse(`${from}T00:00:00Z`), Date.parse(`${to}T00:00:00Z`)];
  return Array.from({ length: Math.floor((last - first) / DAY_MS) + 1 }, (_, i) =>
    new Date(first + i * DAY_MS).toISOString().slice(0, 10),
  );
}

function nameOf({ model, key, owner }: SpendEntry, group: Group, noKey: string): string {
  if (group === 'model') return model;
  if (group === 'owner') return owner.name;
  return key === null ? noKey : (key.name ?? key.id);
}
