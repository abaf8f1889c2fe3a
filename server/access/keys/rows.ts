import type { KeyBudget, KeyLimits } from './values';
import type { KeyRow } from '../store/schema';

const ID_CHUNK = 500;

export function limitsOf({ limit_rpm: rpm, limit_tpm: tpm, limit_parallel: parallel }: KeyRow): KeyLimits {
  return { rpm, tpm, parallel };
}

export function budgetOf({ budget_tokens: tokens, budget_period: period }: KeyRow): KeyBudget | null {
  return tokens === null || period === null ? null : { tokens, period };
}

/** Parses `allowed_cidrs`. A damaged value allows no address, so that the key does not work from every address. */
export function parseCidrs(json: string | null): string[] | null {
  if (json === null) return null;
  try {
    const value: unknown = JSON.parse(json);
    return Array.isArray(value) ? value.filter((text) => typeof text === 'string') : [];
  } catch {
    return [];
  }
}

/** Runs a query in chunks, because databases limit the number of parameters of a statement. */
export async function inChunks<T>(
  ids: readonly string[],
  query: (ids: readonly string[]) => Promise<T[]>,
): Promise<T[]> {
  const rows: T[] = [];
  for (let start = 0; start < ids.length; start += ID_CHUNK)
    rows.push(...(await query(ids.slice(start, start + ID_CHUNK))));
  return rows;
}

export function groupBy<T extends { key_id: string }>(rows: readonly T[]): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const row of rows) {
    const group = groups.get(row.key_id);
    if (group === undefined) groups.set(row.key_id, [row]);
    else group.push(row);
  }
  return groups;
}
