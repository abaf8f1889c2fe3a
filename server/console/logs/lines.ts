import type { LogLine } from '../../api/objects';

/** Lines that a page holds at once; older ones are loaded again when somebody asks. */
export const MAX_LINES = 5_000;

/** Adds what came, in order and each once; the oldest go where there are too many. */
export function addLines(
  lines: readonly LogLine[],
  added: readonly LogLine[],
  keep: 'newest' | 'oldest' = 'newest',
): LogLine[] {
  if (added.length === 0) return [...lines];
  const last = lines.at(-1)?.seq ?? -Infinity;
  // Most lines simply follow.
  const isNext = added[0].seq > last && added.every((line, i) => i === 0 || line.seq > added[i - 1].seq);
  const all = isNext
    ? [...lines, ...added]
    : [...new Map([...lines, ...added].map((line) => [line.seq, line])).values()].sort((a, b) => a.seq - b.seq);
  return keep === 'newest' ? all.slice(-MAX_LINES) : all.slice(0, MAX_LINES);
}

/** A text in parts, in turn outside and inside of what was looked for; letters count alike in both cases. */
export function markMatches(text: string, search: string): string[] {
  if (search === '') return [text];
  const wanted = search.toLowerCase();
  const lower = text.toLowerCase();
  // Letters whose small form has another length would shift the places.
  if (lower.length !== text.length) return [text];
  const parts: string[] = [];
  let from = 0;
  for (let at = lower.indexOf(wanted); at !== -1; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), text.slice(at, at + wanted.length));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

/** The lines of one event: one, or a list of them. */
export function parseLines(data: string): LogLine[] {
  try {
    const value = JSON.parse(data) as LogLine | LogLine[];
    return [value].flat().filter((line) => typeof line.seq === 'number' && typeof line.text === 'string');
  } catch {
    return [];
  }
}
