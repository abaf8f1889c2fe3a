import { CapstanError } from '../errors';
import type { CodeRange, Grammar, GrammarExpr } from './grammar';

/** Maximum number of Unicode properties in a grammar. Finding the code points of one takes up to 100 ms. */
const MAX_PROPERTIES = 16;

/** The code points of properties, by name. JavaScript has about 1,000 names, so their number is bounded. */
const known = new Map<string, readonly CodeRange[]>();

/**
 * Adds the code points of each `\p{NAME}` and `\P{NAME}` in the regular expressions of a grammar. Names that JavaScript
 * does not know are left out: the addon refuses them and names their position.
 * @throws CapstanError `invalid_argument` for more than 16 properties.
 */
export function withProperties<G extends Grammar>(grammar: G): G {
  const names = new Set(grammar.rules.flatMap(({ expr }) => namesIn(expr)));
  if (names.size === 0) return grammar;
  if (names.size > MAX_PROPERTIES)
    throw CapstanError.mismatch(
      'invalid_argument',
      'grammar',
      `at most ${MAX_PROPERTIES} Unicode properties`,
      names.size,
    );
  const found = [...names].map((name) => [name, codePointsOf(name)] as const);
  return { ...grammar, properties: Object.fromEntries(found.filter(([, ranges]) => ranges !== undefined)) };
}

function namesIn(expr: GrammarExpr): string[] {
  switch (expr.kind) {
    case 'sequence':
    case 'choice':
      return expr.items.flatMap(namesIn);
    case 'repeat':
      return namesIn(expr.item);
    case 'regex':
      return [expr, ...(expr.also ?? [])].flatMap(({ pattern }) =>
        [...pattern.matchAll(/\\[pP]\{([\w=]+)\}/g)].map(([, name]) => name),
      );
    default:
      return [];
  }
}

function codePointsOf(name: string): readonly CodeRange[] | undefined {
  let ranges = known.get(name);
  if (ranges === undefined) {
    const pattern = patternOf(name);
    if (pattern === undefined) return undefined;
    known.set(name, (ranges = matchesOf(pattern)));
  }
  return ranges;
}

function patternOf(name: string): RegExp | undefined {
  try {
    return new RegExp(`\\p{${name}}`, 'u');
  } catch {
    return undefined;
  }
}

/** Returns the code points that a pattern matches. */
function matchesOf(pattern: RegExp): CodeRange[] {
  const ranges: CodeRange[] = [];
  let last: CodeRange | undefined;
  for (let code = 0; code <= 0x10ffff; code++) {
    if (!pattern.test(String.fromCodePoint(code))) last = undefined;
    else if (last === undefined) ranges.push((last = [code, code]));
    else last[1] = code;
  }
  return ranges;
}
