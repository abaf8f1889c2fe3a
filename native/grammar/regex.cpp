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

// Calls intersect() with a share of the work that is left.
std::optional<PatternAutomaton> try_intersect(const PatternSet& set, PatternBudget& budget, size_t share) {
  const size_t work = budget.work / share;
  PatternBudget part{budget.states, work};
  auto automaton = intersect(set, part);
  budget = {part.states, budget.work - (work - part.work)};
  return automaton;
}

// A long maximum takes a state per code point, so that a lower one replaces it where the automaton gets too large. Each
// try leaves half of the work to the next ones.
std::optional<PatternAutomaton> intersect_within(PatternSet set, PatternBudget& budget) {
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
    const uint32_t lower = std::max({set.min_length, set.max_length / 4, kMinCounted});
    const bool is_last = set.max_length == kUnbounded || lower >= set.max_length;
    auto automaton = try_intersect(set, budget, is_last ? 1 : 2);
    if (automaton && !(set.max_length < max_length && is_empty(*automaton))) return automaton;
    if (is_last) return std::nullopt;
    set.max_length = lower;
  }
}

// A regular expression that needs an automaton.
struct PendingRegex {
  Expr* expr;
  PatternSet set;
};

// Sets `expr` to a set that needs no automaton. Returns false when it needs one.
bool set_simple(Expr& expr, PatternSet& set) {
  if (set.patterns.size() != 1 || !set.except.empty() || has_assertion(set.patterns[0])) return false;
  if (!keeps_lengths(set) && !apply_lengths(set.patterns[0], set.min_length, set.max_length)) return false;
  expr = std::move(set.patterns[0]);
  if (set.is_json_string) escape_for_json(expr);
  return true;
}

void expand(PendingRegex& regex, PatternBudget& budget) {
  const std::string label = regex.set.label;
  auto automaton = intersect_within(std::move(regex.set), budget);
  if (!automaton) refuse(label + ": too large for the other patterns, the lengths or the names beside it");
  *regex.expr = {};
  regex.expr->kind = ExprKind::kAutomaton;
  regex.expr->automaton = std::make_shared<const PatternAutomaton>(std::move(*automaton));
}

// Replaces regular expressions. Those that need an automaton share the budget: each may use its part of what the ones
// before it left.
class RegexExpander {
 public:
  explicit RegexExpander(const UnicodeProperties& properties) : properties_(properties) {}

  void add(Expr& expr) {
    for (Expr& item : expr.items)
      add(item);
    if (expr.kind == ExprKind::kRegex) add_regex(expr);
  }

  void run() {
    for (size_t i = 0; i < pending_.size(); ++i) {
      const size_t num_left = pending_.size() - i;
      const PatternBudget share{budget_.states / num_left, budget_.work / num_left};
      PatternBudget left = share;
      expand(pending_[i], left);
      budget_ = {budget_.states - (share.states - left.states), budget_.work - (share.work - left.work)};
    }
  }

 private:
  void add_regex(Expr& expr) {
    const std::shared_ptr<const RegexOptions> kept = expr.regex;
    const RegexOptions& options = *kept;
    PendingRegex regex{
        &expr, {{}, options.except, options.min_length, options.max_length, options.label, options.is_json_string}};
    regex.set.patterns.push_back(parse_pattern(expr.text, options.is_search, options.label, properties_));
    for (const RegexPart& part : options.also)
      regex.set.patterns.push_back(parse_pattern(part.pattern, part.is_search, part.label, properties_));
    if (!set_simple(expr, regex.set)) pending_.push_back(std::move(regex));
  }

  const UnicodeProperties& properties_;
  PatternBudget budget_;
  std::vector<PendingRegex> pending_;
};

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

Expr parse_regex(std::string_view pattern, const RegexOptions& options) {
  Expr expr = regex(pattern, options);
  const UnicodeProperties none;
  RegexExpander expander(none);
  expander.add(expr);
  expander.run();
  return expr;
}

void expand_regexes(Grammar& grammar) {
  RegexExpander expander(grammar.properties);
  for (Rule& rule : grammar.rules)
    expander.add(rule.expr);
  expander.run();
}

}  // namespace capstan::grammar
