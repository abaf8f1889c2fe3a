// Regular expressions with the options that JSON Schema needs: further patterns, bounds on the length, excluded texts
// and JSON string escapes.
#include <algorithm>

#include "native/grammar/patterns.h"

namespace capstan::grammar {
namespace {

// Moves the items of nested sequences into `items`.
void flatten(Expr& expr, std::vector<Expr>& items) {
  if (expr.kind != ExprKind::kSequence) return items.push_back(std::move(expr));
  for (Expr& item : expr.items)
    flatten(item, items);
}

// Applies length bounds to a pattern in which only one repetition of a class varies in length, such as `^.*$` or
// `^foo.*`: the bounds become those of the repetition. Returns false for any other pattern.
bool apply_lengths(Expr& expr, uint32_t min, uint32_t max) {
  std::vector<Expr> items;
  flatten(expr, items);
  expr = {};
  expr.items = std::move(items);
  Expr* varying = nullptr;
  uint64_t fixed = 0;
  for (Expr& item : expr.items) {
    const LengthRange length = length_range(item);
    if (length.min == length.max) {
      fixed += length.min;
      continue;
    }
    if (varying != nullptr || item.kind != ExprKind::kRepeat || item.items[0].kind != ExprKind::kClass) return false;
    varying = &item;
  }
  if (varying == nullptr || fixed > std::min(max, kMaxRepeat)) return false;
  const auto fixed_length = static_cast<uint32_t>(fixed);
  varying->min = std::max(varying->min, min - std::min(min, fixed_length));
  if (max != kUnbounded) varying->max = std::min(varying->max, max - fixed_length);
  return varying->min <= varying->max;
}

// ---- JSON strings ----

void escape_for_json(Expr& expr) {
  for (Expr& item : expr.items)
    escape_for_json(item);
  if (expr.kind == ExprKind::kClass) expr = json_class(expr.ranges);
}

bool keeps_lengths(const PatternSet& set) {
  const auto any = [&](auto&& holds) { return std::ranges::any_of(set.patterns, holds, length_range); };
  return (set.min_length == 0 || any([&](LengthRange length) { return length.min >= set.min_length; })) &&
         (set.max_length == kUnbounded || any([&](LengthRange length) { return length.max <= set.max_length; }));
}

// A long maximum takes a state per code point, so that a lower one replaces it where the automaton gets too large.
Expr intersection_of(PatternSet set, PatternBudget& budget) {
  constexpr uint32_t kMaxCounted = 4096, kMinCounted = 64;
  const uint32_t max_length = set.max_length;
  if (keeps_lengths(set))
    set.min_length = 0, set.max_length = kUnbounded;
  else if (set.max_length != kUnbounded)
    set.max_length = std::min(set.max_length, std::max(set.min_length, kMaxCounted));
  // A text longer than the lower maximum may be the only one.
  const auto is_empty = [](const PatternAutomaton& automaton) {
    return std::ranges::none_of(automaton.states, [](const auto& state) { return state.is_accepting || state.tail; });
  };
  for (;;) {
    auto automaton = intersect(set, budget);
    if (automaton && !(set.max_length < max_length && is_empty(*automaton))) {
      Expr expr;
      expr.kind = ExprKind::kAutomaton;
      expr.automaton = std::make_shared<const PatternAutomaton>(std::move(*automaton));
      return expr;
    }
    const uint32_t lower = std::max({set.min_length, set.max_length / 4, kMinCounted});
    if (set.max_length == kUnbounded || lower >= set.max_length)
      refuse(set.label + ": too large for the other patterns, the lengths or the names beside it");
    set.max_length = lower;
  }
}

}  // namespace

uint64_t times(uint64_t a, uint64_t b) {
  if (a == 0 || b == 0) return 0;
  return a >= kInfinite / b ? kInfinite : a * b;
}

LengthRange length_range(const Expr& pattern) {
  switch (pattern.kind) {
    case ExprKind::kClass:
      return {1, 1};
    case ExprKind::kSequence: {
      LengthRange sum;
      for (const Expr& item : pattern.items) {
        const LengthRange part = length_range(item);
        sum = {std::min(kInfinite, sum.min + part.min), std::min(kInfinite, sum.max + part.max)};
      }
      return sum;
    }
    case ExprKind::kChoice: {
      LengthRange range{kInfinite, 0};
      for (const Expr& item : pattern.items) {
        const LengthRange part = length_range(item);
        range = {std::min(range.min, part.min), std::max(range.max, part.max)};
      }
      return range;
    }
    case ExprKind::kRepeat: {
      const LengthRange item = length_range(pattern.items[0]);
      return {times(item.min, pattern.min),
              pattern.max == kUnbounded ? times(item.max, kInfinite) : times(item.max, pattern.max)};
    }
    case ExprKind::kLookahead:
    case ExprKind::kNegativeLookahead:
    case ExprKind::kTextStart:
    case ExprKind::kTextEnd:
      return {0, 0};
    default:
      return {0, kInfinite};
  }
}

Expr json_class(const CodePointSet& set) {
  std::vector<Expr> items;
  for (const CodePointRange& range : intersection(set, json_escaped()))
    for (uint32_t c = range.first; c <= range.last; ++c)
      items.push_back(literal(json_escape(c)));
  if (items.empty()) return code_point_class(set);
  items.push_back(code_point_class(intersection(set, complement(json_escaped()))));
  return choice(std::move(items));
}

// Adds the pattern unless it yields. intersect() also refuses some patterns, so that they are tried alone.
static void add_pattern(PatternSet& set, const RegexPart& part, PatternBudget& budget) try {
  Expr pattern = parse_pattern(part.pattern, part.is_search, part.label);
  if (part.may_yield && has_assertion(pattern)) intersect({{pattern}, {}, 0, kUnbounded, part.label}, budget);
  set.patterns.push_back(std::move(pattern));
} catch (const UnsupportedPattern&) {
  if (!part.may_yield) throw;
}

static Expr parse_within(std::string_view pattern, const RegexOptions& options, PatternBudget& budget) {
  PatternSet set{{}, options.except, options.min_length, options.max_length, options.label,
                 options.is_json_string};
  add_pattern(set, {std::string(pattern), options.is_search, options.label}, budget);
  for (const RegexPart& part : options.also)
    add_pattern(set, part, budget);
  const bool is_one = set.patterns.size() == 1 && set.except.empty() && !has_assertion(set.patterns[0]);
  Expr& first = set.patterns[0];
  Expr expr = is_one && (keeps_lengths(set) || apply_lengths(first, set.min_length, set.max_length))
                  ? std::move(first)
                  : intersection_of(std::move(set), budget);
  if (options.is_json_string) escape_for_json(expr);
  return expr;
}

Expr parse_regex(std::string_view pattern, const RegexOptions& options) {
  PatternBudget budget;
  return parse_within(pattern, options, budget);
}

static void expand_regexes_of(Expr& expr, PatternBudget& budget) {
  if (expr.kind == ExprKind::kRegex) {
    expr = parse_within(expr.text, *std::shared_ptr(expr.regex), budget);
    return;
  }
  for (Expr& item : expr.items)
    expand_regexes_of(item, budget);
}

void expand_regexes(Grammar& grammar) {
  PatternBudget budget;
  for (Rule& rule : grammar.rules)
    expand_regexes_of(rule.expr, budget);
}

}  // namespace capstan::grammar
