/** Returns the candidate with the smallest Levenshtein distance to `text`, or undefined if none is similar. */
export function nearest(text: string, candidates: Iterable<string>): string | undefined {
  let best: string | undefined;
  let least = Infinity;
  for (const candidate of candidates) {
    const distance = editDistance(text, candidate);
    if (distance < least) [best, least] = [candidate, distance];
  }
  return best !== undefined && least <= Math.max(2, Math.floor(Math.max(text.length, best.length) * 0.4))
    ? best
    : undefined;
}

function editDistance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++)
      row[j] = Math.min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    previous = row;
  }
  return previous[b.length];
}
