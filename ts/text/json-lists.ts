/** Comma-separated lists, which arrays and objects share. */
import { type GrammarExpr, inOrder, literal, oneOf, optional, repeat, sequence } from './grammar';
import { BLANK } from './json-rules';
import type { ListMember, SchemaContext } from './schema-context';

export const COMMA = sequence(',', BLANK);

/** Returns a bracketed list of `min` to `max` items. */
export function listOf(
  item: GrammarExpr,
  [open, close]: string,
  [min, max]: [number, number | null],
  context: Pick<SchemaContext, 'shared'>,
): GrammarExpr {
  if (max === 0) return sequence(open, BLANK, close);
  const next = context.shared(item);
  const more = repeat(sequence(COMMA, next), Math.max(0, min - 1), max === null ? null : max - 1);
  const all = sequence(next.kind === 'rule' ? next : item, more, BLANK);
  return sequence(open, BLANK, min === 0 ? optional(all) : all, close);
}

/** Maximum number of optional members that share one automaton. It grows with its square. */
const MAX_FLAT = 100;

/**
 * Returns the members in order, then any number of extras. If no member is required, the list still has at least one
 * element.
 */
export function membersOf(
  members: readonly ListMember[],
  comma: GrammarExpr,
  extra: GrammarExpr | null,
  context: Pick<SchemaContext, 'shared'>,
): GrammarExpr {
  const extras = extra === null ? [] : [repeat(sequence(comma, extra), 0, null)];
  const firstRequired = members.findIndex(({ isRequired }) => isRequired);
  if (firstRequired >= 0 && members.filter(({ isRequired }) => !isRequired).length <= MAX_FLAT) {
    const parts = members.map(({ expr, isRequired }, i) => {
      if (i < firstRequired) return optional(sequence(expr, comma));
      if (i === firstRequired) return expr;
      return isRequired ? sequence(comma, expr) : optional(sequence(comma, expr));
    });
    return inOrder([...parts, ...extras]);
  }
  // From the last member to the first. The tails are rules that alternatives share, so the size stays linear.
  const firsts: GrammarExpr[] = [];
  let rest: GrammarExpr = extra === null ? literal('') : context.shared(extras[0]);
  if (extra !== null) firsts.push(sequence(extra, rest));
  for (let i = members.length - 1; i >= Math.max(0, firstRequired); i--) {
    const member = context.shared(members[i].expr);
    firsts.push(sequence(member, rest));
    const next = sequence(comma, member);
    rest = context.shared(sequence(members[i].isRequired ? next : optional(next), rest));
  }
  if (firstRequired < 0) return oneOf(firsts.reverse());
  let list = firsts[firsts.length - 1];
  for (const { expr } of members.slice(0, firstRequired).reverse())
    list = context.shared(sequence(optional(sequence(expr, comma)), list));
  return list;
}
