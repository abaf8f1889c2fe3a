import {
  charClass,
  choice,
  classWithout,
  type GrammarExpr,
  literal,
  optional,
  repeat,
  sequence,
  without,
} from '../grammar';

const MAX_CODE_POINT = 0x10ffff;

/**
 * Returns the grammar of texts that do not contain `marker` and whose first non-blank character is not `first`.
 * NOTE: the first character of `marker` must not occur in the rest of it.
 */
export function textNotStartingWith(marker: string, first: string): GrammarExpr {
  const blanks = repeat(charClass(' ', '\n', '\t', '\r'), 0, null);
  const others = sequence(except(marker[0], first, ' ', '\n', '\t', '\r'), without(marker));
  return sequence(blanks, optional(choice(others, repeat(segmentWithout(marker), 1, null))));
}

/** Matches from one occurrence of the marker's first character up to the next. */
function segmentWithout(marker: string): GrammarExpr {
  const [first, ...chars] = marker;
  const rest = repeat(except(first), 0, null);
  let after: GrammarExpr | undefined;
  for (const char of chars.reverse()) {
    const other = sequence(except(first, char), rest);
    after = optional(after === undefined ? other : choice(other, sequence(char, after)));
  }
  return sequence(literal(first), after ?? literal(''));
}

function except(...chars: readonly string[]): GrammarExpr {
  const codes = chars.map((char) => char.codePointAt(0) ?? 0);
  return classWithout([[0, MAX_CODE_POINT]], codes);
}
