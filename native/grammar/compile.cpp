// Compiles rules to automata: resolves names, finds the rules that may be empty, and turns repeats into loops or
// counted calls.
#include <algorithm>
#include <bitset>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "native/base/check.h"
#include "native/grammar/patterns.h"
#include "native/grammar/rule_nfa.h"

namespace capstan::grammar {
namespace {

constexpr int kMaxInlining = 32;      // nested inlined rules; deeper ones are called
constexpr size_t kMaxNameShown = 80;  // bytes of a rule name in an error message

std::string shortened(const std::string& name) {
  return name.size() <= kMaxNameShown ? name : name.substr(0, kMaxNameShown) + "…";
}

void check_num_states(size_t num_states) {
  if (num_states > kMaxStates) refuse("grammar: expected at most " + std::to_string(kMaxStates) + " states");
}

// Finds markers by their text.
class MarkerIndex {
 public:
  explicit MarkerIndex(std::span<const Marker> markers) {
    for (const Marker& marker : markers) {
      first_bytes_.set(static_cast<uint8_t>(marker.text.at(0)));
      by_text_[marker.text].push_back(&marker);
      lengths_.push_back(marker.text.size());
    }
    std::ranges::sort(lengths_);
    lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
  }

  size_t num_lengths() const { return lengths_.size(); }
  bool may_begin(char byte) const { return first_bytes_[static_cast<uint8_t>(byte)]; }
  template <typename Visit>
  void for_each_at(std::string_view text, const Visit& visit) const {
    for (const size_t length : lengths_) {
      if (length > text.size()) return;
      const auto at = by_text_.find(text.substr(0, length));
      if (at == by_text_.end()) continue;
      for (const Marker* marker : at->second)
        visit(*marker);
    }
  }

 private:
  std::bitset<256> first_bytes_;
  std::vector<size_t> lengths_;  // distinct, ascending
  std::unordered_map<std::string_view, std::vector<const Marker*>> by_text_;
};

class Compiler {
 public:
  Compiler(const Grammar& grammar, std::span<const Marker> markers) : grammar_(grammar), markers_(markers) {}

  Automaton run() {
    check_rules();
    find_nullable();
    const size_t root = rule_index(grammar_.root);
    automaton_.is_root_nullable = is_nullable_[root];
    automaton_.root = id_of_rule(root);
    while (!pending_.empty()) {
      const Pending next = pending_.front();
      pending_.pop_front();
      build_rule(next);
    }
    prune_dead_ends(automaton_);
    refuse_left_recursion(automaton_);
    return std::move(automaton_);
  }

 private:
  // An expression that becomes a rule of the automaton, but is not built yet.
  struct Pending {
    const Expr* expr;
    std::string name;
    bool is_plain;
  };

  size_t rule_index(const std::string& name) const {
    const auto at = indexes_.find(name);
    if (at == indexes_.end()) refuse("grammar: rule " + shortened(name) + " is not defined");
    return at->second;
  }

  void check_rules() {
    if (grammar_.rules.size() > kMaxRules)
      refuse("grammar: expected at most " + std::to_string(kMaxRules) + " rules, got " +
             std::to_string(grammar_.rules.size()));
    for (size_t i = 0; i < grammar_.rules.size(); ++i)
      if (!indexes_.emplace(grammar_.rules[i].name, i).second)
        refuse("grammar: rule " + shortened(grammar_.rules[i].name) + " is defined twice");
    num_uses_.assign(grammar_.rules.size(), 0);
    users_.resize(grammar_.rules.size());
    ++num_uses_[rule_index(grammar_.root)];
    for (size_t i = 0; i < grammar_.rules.size(); ++i)
      check_expr(grammar_.rules[i].expr, i, 0);
  }

  void check_expr(const Expr& expr, size_t rule, int depth) {
    // Each nested group of a text also adds suffixes and sequences.
    constexpr int kMaxDepth = 16 * kMaxNesting;
    if (depth > kMaxDepth) refuse("grammar: rule " + shortened(grammar_.rules[rule].name) + " is nested too deeply");
    CAPSTAN_CHECK(expr.kind != ExprKind::kRegex);
    if (++num_exprs_ > kMaxExprs) refuse("grammar: expected at most " + std::to_string(kMaxExprs) + " elements");
    if (expr.kind == ExprKind::kRule) {
      const size_t used = rule_index(expr.text);
      ++num_uses_[used];
      users_[used].push_back(rule);
    }
    if (expr.kind == ExprKind::kRepeat && (expr.items.size() != 1 || expr.max < expr.min))
      refuse("grammar: a repetition's maximum is below its minimum");
    for (const Expr& item : expr.items)
      check_expr(item, rule, depth + 1);
  }

  // ---- rules that may be empty ----

  void find_nullable() {
    is_nullable_.assign(grammar_.rules.size(), false);
    std::vector<size_t> pending(grammar_.rules.size());
    for (size_t i = 0; i < pending.size(); ++i)
      pending[i] = i;
    while (!pending.empty()) {
      const size_t rule = pending.back();
      pending.pop_back();
      if (is_nullable_[rule] || !is_nullable(grammar_.rules[rule].expr)) continue;
      is_nullable_[rule] = true;
      pending.insert(pending.end(), users_[rule].begin(), users_[rule].end());
    }
  }

  bool is_nullable(const Expr& expr) {
    budget_.spend(1);
    const auto nullable = [this](const Expr& item) { return is_nullable(item); };
    switch (expr.kind) {
      case ExprKind::kLiteral:
      case ExprKind::kUntil:
        return expr.text.empty();
      case ExprKind::kWithout:
        return !expr.text.empty();
      case ExprKind::kBytes:
      case ExprKind::kClass:
        return false;
      case ExprKind::kSequence:
        return std::ranges::all_of(expr.items, nullable);
      case ExprKind::kChoice:
        return std::ranges::any_of(expr.items, nullable);
      case ExprKind::kRepeat:
        return expr.min == 0 || expr.max == 0 || is_nullable(expr.items[0]);
      case ExprKind::kRule:
        return is_nullable_[rule_index(expr.text)];
      case ExprKind::kAutomaton:
        return expr.automaton->states[0].is_accepting;
      default:
        break;
    }
    return false;
  }

  // ---- rules ----

  uint32_t add_rule(const Expr& expr, const std::string& name, bool is_plain) {
    const auto id = static_cast<uint32_t>(automaton_.rule_names.size());
    automaton_.rule_names.push_back(name);
    automaton_.rule_starts.push_back(0);
    pending_.push_back({&expr, name, is_plain});
    return id;
  }

  uint32_t id_of_rule(size_t index) {
    const auto [at, is_new] = rule_ids_.try_emplace(index, 0);
    const Rule& rule = grammar_.rules[index];
    if (is_new) at->second = add_rule(rule.expr, rule.name, rule.is_plain);
    return at->second;
  }

  void build_rule(const Pending& rule) {
    nfa_ = {};
    name_ = rule.name;
    is_plain_ = rule.is_plain;
    nfa_.start = add_state();
    nfa_.end = add_state();
    build(*rule.expr, nfa_.start, nfa_.end, 0);
    automaton_.rule_starts[num_built_++] = determinize(nfa_, automaton_, budget_);
  }

  uint32_t add_state() {
    budget_.spend(1);
    check_num_states(nfa_.states.size() + 1);
    nfa_.states.emplace_back();
    return static_cast<uint32_t>(nfa_.states.size() - 1);
  }
  void connect(uint32_t from, uint32_t to) { nfa_.states[from].empty.push_back(to); }
  void connect(uint32_t from, uint8_t first, uint8_t last, uint32_t to) {
    nfa_.states[from].bytes.push_back({first, last, to});
  }

  // Adds states and edges so that every match of `expr` leads from `from` to `to`.
  void build(const Expr& expr, uint32_t from, uint32_t to, int num_inlined) {
    switch (expr.kind) {
      case ExprKind::kLiteral:
        return build_literal(expr.text, from, to);
      case ExprKind::kBytes:
        for (const CodePointRange& range : expr.ranges)
          if (range.first <= 255)
            connect(from, static_cast<uint8_t>(range.first), static_cast<uint8_t>(std::min(range.last, 255u)), to);
        return;
      case ExprKind::kClass:
        return build_class(expr, from, to);
      case ExprKind::kSequence: {
        for (size_t i = 0; i < expr.items.size(); ++i) {
          const uint32_t next = i + 1 == expr.items.size() ? to : add_state();
          build(expr.items[i], from, next, num_inlined);
          from = next;
        }
        if (expr.items.empty()) connect(from, to);
        return;
      }
      case ExprKind::kChoice:
        for (const Expr& item : expr.items) {
          // Separate states keep the loop of one alternative out of the others.
          const uint32_t begin = add_state(), end = add_state();
          connect(from, begin);
          build(item, begin, end, num_inlined);
          connect(end, to);
        }
        return;
      case ExprKind::kRepeat:
        return build_repeat(expr, from, to, num_inlined);
      case ExprKind::kRule:
        return build_rule_ref(expr, from, to, num_inlined);
      case ExprKind::kUntil:
        return build_search(expr.text, SearchEnd::kUntil, from, to);
      case ExprKind::kWithout:
        return build_search(expr.text, SearchEnd::kWithout, from, to);
      case ExprKind::kAutomaton:
        return build_automaton(*expr.automaton, from, to);
      default:
        return;
    }
  }

  void build_literal(std::string_view text, uint32_t from, uint32_t to) {
    if (text.empty()) return connect(from, to);
    std::vector<uint32_t> states{from};  // by number of bytes read
    for (size_t i = 0; i < text.size(); ++i) {
      states.push_back(i + 1 == text.size() ? to : add_state());
      const auto byte = static_cast<uint8_t>(text[i]);
      connect(states[i], byte, byte, states[i + 1]);
    }
    for_each_marker(text, [&](size_t pos, const Marker& marker) {
      nfa_.states[states[pos]].tokens.push_back({marker.token_id, states[pos + marker.text.size()]});
    });
  }

  void build_search(std::string_view text, SearchEnd end, uint32_t from, uint32_t to) {
    if (text.empty()) return end == SearchEnd::kUntil ? connect(from, to) : void();
    std::vector<const Marker*> spelled;
    for_each_marker(text, [&](size_t, const Marker& marker) { spelled.push_back(&marker); });
    std::ranges::sort(spelled);
    spelled.erase(std::unique(spelled.begin(), spelled.end()), spelled.end());
    add_search(nfa_, text, end, from, to, spelled, budget_);
    check_num_states(nfa_.states.size() + 1);
  }

  // Calls visit(position, marker) for each position of `text` where a marker is spelled out.
  template <typename Visit>
  void for_each_marker(std::string_view text, const Visit& visit) {
    if (is_plain_) return;
    for (size_t pos = 0; pos < text.size(); ++pos) {
      if (!markers_.may_begin(text[pos])) continue;
      budget_.spend(markers_.num_lengths());
      markers_.for_each_at(text.substr(pos), [&](const Marker& marker) { visit(pos, marker); });
    }
  }

  void build_class(const Expr& expr, uint32_t from, uint32_t to) {
    for (const ByteRanges& bytes : utf8_ranges(normalized(expr.ranges))) {
      uint32_t at = from;
      for (int i = 0; i < bytes.length; ++i) {
        const uint32_t next = i + 1 == bytes.length ? to : add_state();
        const auto& range = bytes.ranges[static_cast<size_t>(i)];
        connect(at, range[0], range[1], next);
        at = next;
      }
    }
  }

  void build_automaton(const PatternAutomaton& automaton, uint32_t from, uint32_t to) {
    const auto first = static_cast<uint32_t>(nfa_.states.size());
    for (size_t i = 0; i < automaton.states.size(); ++i)
      add_state();
    connect(from, first);
    ByteStates states;
    for (uint32_t i = 0; i < automaton.states.size(); ++i) {
      const PatternState& state = automaton.states[i];
      if (state.is_accepting) connect(first + i, to);
      for (const PatternEdge& edge : state.edges)
        build_bytes(automaton.bytes, edge.node, first + i, first + edge.target, states);
      if (state.tail) {
        const uint32_t rule = rule_of_class(state.tail->set, automaton.is_json_string);
        nfa_.states[first + i].calls.push_back({rule, to, std::max(state.tail->min, 1u), state.tail->max});
      }
    }
  }

  using ByteStates = std::map<std::pair<uint32_t, uint32_t>, uint32_t>;  // by target and node

  // Connects `from` to `to` by the bytes of `node`. All states that lead to `to` share the states in between.
  void build_bytes(const ByteGraph& bytes, uint32_t node, uint32_t from, uint32_t to, ByteStates& states) {
    for (const ByteEdge& edge : bytes.edges_of(node)) {
      budget_.spend(1);
      if (edge.target == ByteGraph::kEnd) {
        connect(from, edge.first, edge.last, to);
        continue;
      }
      const auto [at, is_new] = states.try_emplace({to, edge.target}, 0);
      if (is_new) {
        at->second = add_state();
        build_bytes(bytes, edge.target, at->second, to, states);
      }
      connect(from, edge.first, edge.last, at->second);
    }
  }

  // Returns the rule of one code point of `set`.
  uint32_t rule_of_class(const CodePointSet& set, bool is_json_string) {
    const auto [at, is_new] = class_rules_.try_emplace({set, is_json_string}, 0);
    if (!is_new) return at->second;
    const Expr& one = classes_.emplace_back(is_json_string ? json_class(set) : code_point_class(set));
    return at->second = add_rule(one, name_, true);
  }

  void build_repeat(const Expr& expr, uint32_t from, uint32_t to, int num_inlined) {
    const Expr& item = expr.items[0];
    if (expr.max == 0) return connect(from, to);
    const bool is_item_nullable = is_nullable(item);
    if (expr.min == 0 || is_item_nullable) connect(from, to);
    if (expr.min <= 1 && (expr.max == 1 || expr.max == kUnbounded)) {
      const uint32_t begin = add_state(), end = add_state();
      connect(from, begin);
      build(item, begin, end, num_inlined);
      connect(end, to);
      if (expr.max == kUnbounded) connect(end, begin);
      return;
    }
    if (item.kind == ExprKind::kSequence && item.items.empty()) return;
    // A counted call. Empty repetitions do not count, so a nullable item needs at least one non-empty one.
    const uint32_t rule =
        item.kind == ExprKind::kRule ? id_of_rule(rule_index(item.text)) : add_rule(item, name_, is_plain_);
    const uint32_t min = is_item_nullable ? 1 : std::max(expr.min, 1u);
    nfa_.states[from].calls.push_back({rule, to, min, expr.max});
  }

  void build_rule_ref(const Expr& expr, uint32_t from, uint32_t to, int num_inlined) {
    const size_t index = rule_index(expr.text);
    // A rule that is used once is inlined, which needs no stack.
    if (num_uses_[index] == 1 && num_inlined < kMaxInlining) {
      const uint32_t begin = add_state(), end = add_state();
      connect(from, begin);
      const bool is_plain = std::exchange(is_plain_, grammar_.rules[index].is_plain);
      build(grammar_.rules[index].expr, begin, end, num_inlined + 1);
      is_plain_ = is_plain;
      return connect(end, to);
    }
    if (is_nullable_[index]) connect(from, to);
    nfa_.states[from].calls.push_back({id_of_rule(index), to, 1, 1});
  }

  const Grammar& grammar_;
  const MarkerIndex markers_;
  std::unordered_map<std::string, size_t> indexes_;
  std::vector<int> num_uses_;               // (num_rules) references; the root has one more
  std::vector<std::vector<size_t>> users_;  // (num_rules) indexes of the rules that refer to it
  std::vector<bool> is_nullable_;           // (num_rules)
  size_t num_exprs_ = 0;
  BuildBudget budget_;
  std::map<std::pair<CodePointSet, bool>, uint32_t> class_rules_;  // by set and whether it is a JSON string
  std::deque<Expr> classes_;                                       // of class_rules_
  std::map<size_t, uint32_t> rule_ids_;                            // automaton rule by grammar index, for called rules
  std::deque<Pending> pending_;                                    // in the order of their rule ids
  size_t num_built_ = 0;
  RuleNfa nfa_;            // of the rule being built
  std::string name_;       // of the rule being built
  bool is_plain_ = false;  // whether markers are ignored in the expression being built
  Automaton automaton_;
};

}  // namespace

Automaton compile(Grammar grammar, std::span<const Marker> markers) {
  expand_regexes(grammar);
  return Compiler(grammar, markers).run();
}

}  // namespace capstan::grammar
