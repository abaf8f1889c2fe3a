import type { LogLine } from '../../api/objects';

/** The number of lines that a page keeps. Older lines can be loaded again. */
export const MAX_LINES = 5_000;

/** Merges lines by sequence number and drops lines over the limit from the end that is not kept. */
export function addLines(
  lines: readonly LogLine[],
  added: readonly LogLine[],
  keep: 'newest' | 'oldest' = 'newest',
): LogLine[] {
  if (added.length === 0) return [...lines];
  const last = lines.at(-1)?.seq ?? -Infinity;
  // New lines usually follow the last one, so that no sort is needed.
  const isNext = added[0].seq > last && added.every((line, i) => i === 0 || line.seq > added[i - 1].seq);
  const all = isNext
    ? [...lines, ...added]
    : [...new Map([...lines, ...added].map((line) => [line.seq, line])).values()].sort((a, b) => a.seq - b.seq);
  return keep === 'newest' ? all.slice(-MAX_LINES) : all.slice(0, MAX_LINES);
}

/** Splits a text at matches, ignoring case. Parts alternate between no match and match. */
export function markMatches(text: string, search: string): string[] {
  if (search === '') return [text];
  const wanted = search.toLowerCase();
  const lower = text.toLowerCase();
  // Some letters change their length in lower case, which would shift the positions.
  if (lower.length !== text.length) return [text];
  const parts: string[] = [];
  let from = 0;
  for (let at = lower.indexOf(wanted); at !== -1; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), text.slice(at, at + wanted.length));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

/** Parses one line or a list of lines. Invalid entries are dropped. */
export function parseLines(data: string): LogLine[] {
  try {
    const value = JSON.parse(data) as LogLine | LogLine[];
    return [value].flat().filter((line) => typeof line.seq === 'number' && typeof line.text === 'string');
  } catch {
    return [];
  }
}

/** The sequence numbers of two lines, in either order. */
export type LineRange = readonly [from: number, to: number];

/** Adds the indexes of the selected lines to the visible ones. */
export function withSelection(
  visible: readonly number[],
  lines: readonly { readonly seq: number }[],
  selected: LineRange | null,
): number[] {
  if (selected === null) return [...visible];
  const [from, to] = [Math.min(...selected), Math.max(...selected)];
  const kept = lines.flatMap(({ seq }, index) => (seq >= from && seq <= to ? [index] : []));
  return [...new Set([...kept, ...visible])].sort((a, b) => a - b);
}
