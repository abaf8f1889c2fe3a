import { charClass, choice, type GrammarExpr, literal, optional, repeat, sequence, without } from '../grammar';

const MAX_CODE_POINT = 0x10ffff;

/** Any text in which `marker` does not occur and whose first character that is no blank is not `first`; the marker's first character occurs nowhere else in it. */
export function textWithoutBeginning(marker: string, first: string): GrammarExpr {
  const blanks = repeat(charClass(' ', '\n', '\t', '\r'), 0, null);
  const others = sequence(except(marker[0], first, ' ', '\n', '\t', '\r'), without(marker));
  return sequence(blanks, optional(choice(others, repeat(segmentWithout(marker), 1, null))));
}

/** From one occurrence of the marker's first character to before the next. */
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
  const codes = [...new Set(chars)].map((char) => char.codePointAt(0) ?? 0).sort((a, b) => a - b);
  const ranges: [number, number][] = [];
  let from = 0;
  for (const code of codes) {
    if (code > from) ranges.push([from, code - 1]);
    from = code + 1;
  }
  return { kind: 'class', ranges: [...ranges, [from, MAX_CODE_POINT]] };
}
