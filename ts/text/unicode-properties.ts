import { CapstanError } from '../errors';
import type { CodeRange, Grammar, GrammarExpr } from './grammar';

/** Maximum number of Unicode properties in a grammar. Finding the code points of one takes up to 30 ms. */
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
  let texts: CodePointText[] | undefined;
  const found = [...names].map((name) => [name, codePointsOf(name, () => (texts ??= allCodePoints()))] as const);
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

function codePointsOf(name: string, texts: () => readonly CodePointText[]): readonly CodeRange[] | undefined {
  let ranges = known.get(name);
  if (ranges === undefined) {
    const runs = runsOf(name);
    if (runs === undefined) return undefined;
    known.set(name, (ranges = matchesOf(runs, texts())));
  }
  return ranges;
}

/** Returns a pattern that splits a text into runs of code points with a property, and runs of others. */
function runsOf(name: string): RegExp | undefined {
  try {
    return new RegExp(`(\\p{${name}}+)|\\P{${name}}+`, 'gu');
  } catch {
    return undefined;
  }
}

/** Consecutive code points. */
interface CodePointText {
  readonly first: number;
  readonly text: string;
  /** UTF-16 units of each code point. */
  readonly units: 1 | 2;
}

const [FIRST_SURROGATE, AFTER_SURROGATES, FIRST_OF_TWO_UNITS, LIMIT] = [0xd800, 0xe000, 0x10000, 0x110000];
const BLOCK = 0x800;

/** Returns all code points except surrogates, which no text has. */
function allCodePoints(): CodePointText[] {
  const texts: CodePointText[] = [];
  for (let first = 0; first < LIMIT; first += BLOCK) {
    if (first >= FIRST_SURROGATE && first < AFTER_SURROGATES) continue;
    const text = String.fromCodePoint(...Array.from({ length: BLOCK }, (_, i) => first + i));
    texts.push({ first, text, units: first < FIRST_OF_TWO_UNITS ? 1 : 2 });
  }
  return texts;
}

/** Returns the code points with a property. Matches runs: to test each code point takes several times as long. */
function matchesOf(runs: RegExp, texts: readonly CodePointText[]): CodeRange[] {
  const ranges: CodeRange[] = [];
  for (const { first: start, text, units } of texts) {
    for (const { 1: run, index } of text.matchAll(runs)) {
      if (run === undefined) continue;
      const first = start + index / units;
      const last = first + run.length / units - 1;
      const previous = ranges.at(-1);
      if (previous?.[1] === first - 1) previous[1] = last;
      else ranges.push([first, last]);
    }
  }
  return ranges;
}
