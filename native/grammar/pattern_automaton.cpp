// Builds the automaton from derivatives (Brzozowski): its states are formulas, and the edge of a code point leads to
// the formula of what must follow. Intersection and complement are operators like any other.
#include "native/grammar/patterns.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "native/grammar/alphabet.h"

namespace capstan::grammar {
namespace {

constexpr size_t kEdgesPerState = 8;    // byte edges that take as much memory as a state
constexpr uint32_t kMinCounted = 32;    // shorter counters become states, which need no stack
constexpr size_t kFormulaWork = 16;     // of a new formula, which stays in memory
constexpr uint32_t kMaxHeight = 1'000;  // levels of a formula that edges() recurses into

using Id = uint32_t;  // of a formula

enum class Op : uint8_t {
  kNothing,  // no text
  kEmpty,    // the empty text
  kClass,    // one code point of `symbols`
  kThen,     // items[0], then items[1]
  kOr,
  kAnd,
  kNot,
  kRepeat,  // items[0], `min` to `max` times
};

struct Formula {
  Op op = Op::kNothing;
  SymbolSet symbols;
  std::vector<Id> items;
  uint32_t min = 0, max = 0;
  bool operator==(const Formula&) const = default;
};

struct Edge {
  uint32_t first = 0, last = 0;  // symbols, inclusive
  Id target = 0;
};

// All formulas of one automaton. Equal formulas have one id.
class Formulas {
 public:
  Formulas(const std::string& label, uint32_t num_symbols, size_t& work_left)
      : label_(label), num_symbols_(num_symbols), work_left_(work_left) {
    nothing_ = add({Op::kNothing, {}, {}});
    empty_ = add({Op::kEmpty, {}, {}});
    any_code_point_ = code_point({{0, num_symbols - 1}});
    anything_ = repeat(any_code_point_, 0, kUnbounded);
  }

  Id nothing() const { return nothing_; }
  Id empty() const { return empty_; }
  Id any_code_point() const { return any_code_point_; }
  Id anything() const { return anything_; }
  Id code_point(SymbolSet symbols) {
    if (symbols.empty()) return nothing();
    return add({Op::kClass, std::move(symbols), {}});
  }

  Id then(Id first, Id next) {
    std::vector<Id> firsts;
    for (; formula(first).op == Op::kThen; first = formula(first).items[1])
      firsts.push_back(formula(first).items[0]);
    firsts.push_back(first);
    for (; !firsts.empty(); firsts.pop_back())
      next = then_one(firsts.back(), next);
    return next;
  }

  Id any_of(std::vector<Id> items) {
    items = flattened(Op::kOr, std::move(items));
    std::erase(items, nothing());
    if (std::ranges::find(items, anything()) != items.end()) return anything();
    if (items.empty()) return nothing();
    if (items.size() == 1) return items[0];
    return add({Op::kOr, {}, std::move(items)});
  }

  Id all_of(std::vector<Id> items) {
    items = flattened(Op::kAnd, std::move(items));
    if (join_counters(items)) items = flattened(Op::kAnd, std::move(items));
    std::erase(items, anything());
    if (std::ranges::find(items, nothing()) != items.end()) return nothing();
    // A counter that changes nothing would only multiply the states.
    std::erase_if(items, [this, all = items](Id item) {
      if (!is_counter(item)) return false;
      spend(all.size());
      return std::ranges::any_of(all, [&](Id other) { return implies(other, item); });
    });
    if (items.empty()) return anything();
    if (items.size() == 1) return items[0];
    if (std::ranges::find(items, empty()) != items.end())
      return std::ranges::all_of(items, [this](Id item) { return is_nullable(item); }) ? empty() : nothing();
    return add({Op::kAnd, {}, std::move(items)});
  }

  Id none_of(Id item) {
    if (item == nothing()) return anything();
    if (item == anything()) return nothing();
    if (formula(item).op == Op::kNot) return formula(item).items[0];
    return add({Op::kNot, {}, {item}});
  }

  Id repeat(Id item, uint32_t min, uint32_t max) {
    if (max == 0 || item == empty() || (item == nothing() && min == 0)) return empty();
    if (item == nothing() || (min == 1 && max == 1)) return item;
    return add({Op::kRepeat, {}, {item}, min, max});
  }

  bool is_nullable(Id id) const { return all_[id]->second.is_nullable; }

  // Returns the repetition of one class that the formula is, when its counter is long.
  struct Counter {
    SymbolSet symbols;
    uint32_t min = 0, max = 0;
  };
  std::optional<Counter> counter_of(Id id) const {
    if (!is_run(id)) return std::nullopt;
    const Formula& repeat = formula(id);
    if ((repeat.max == kUnbounded ? repeat.min : repeat.max) < kMinCounted) return std::nullopt;
    return Counter{formula(repeat.items[0]).symbols, repeat.min, repeat.max};
  }

  // Returns the formula of what follows each symbol. The edges are ascending and disjoint, without those to
  // nothing().
  std::vector<Edge> edges(Id id) {
    spend(1);
    // Few of the parts of a conjunction change from state to state.
    if (formula(id).op == Op::kAnd) return edges_of(id);
    auto at = known_edges_.find(id);
    if (at == known_edges_.end()) at = known_edges_.emplace(id, edges_of(id)).first;
    spend(at->second.size());
    return at->second;
  }

 private:
  std::vector<Edge> edges_of(Id id) {
    const Formula& from = formula(id);
    switch (from.op) {
      case Op::kNothing:
      case Op::kEmpty:
        return {};
      case Op::kClass: {
        std::vector<Edge> out;
        for (const CodePointRange& range : from.symbols)
          out.push_back({range.first, range.last, empty()});
        return out;
      }
      case Op::kThen: {
        std::vector<Edge> first = before(edges(from.items[0]), from.items[1]);
        if (!is_nullable(from.items[0])) return first;
        return combined(Op::kOr, {std::move(first), edges(from.items[1])});
      }
      case Op::kRepeat: {
        const uint32_t max = from.max == kUnbounded ? kUnbounded : from.max - 1;
        return before(edges(from.items[0]), repeat(from.items[0], from.min == 0 ? 0 : from.min - 1, max));
      }
      case Op::kNot:
        return complemented(edges(from.items[0]));
      case Op::kOr:
      case Op::kAnd:
        break;
    }
    std::vector<std::vector<Edge>> lists;
    for (const Id item : from.items)
      lists.push_back(edges(item));
    return combined(from.op, lists);
  }

  struct Hash {
    size_t operator()(const Formula& formula) const {
      uint64_t hash = static_cast<uint64_t>(formula.op);
      const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15 + (hash >> 29); };
      add(uint64_t{formula.min} << 32 | formula.max);
      for (const Id item : formula.items)
        add(item);
      for (const CodePointRange& range : formula.symbols)
        add(uint64_t{range.first} << 32 | range.last);
      return hash;
    }
  };

  struct Facts {
    Id id = 0;
    bool is_nullable = false;
    uint32_t height = 0;  // levels that edges() recurses into
    LengthRange length;   // bounds of the length of the texts
  };

  const Formula& formula(Id id) const { return all_[id]->first; }
  const Facts& facts(Id id) const { return all_[id]->second; }

  Id add(Formula formula) {
    spend(1 + formula.items.size() + formula.symbols.size());
    const auto [at, is_new] = ids_.try_emplace(std::move(formula));
    if (!is_new) return at->second.id;
    spend(kFormulaWork);
    at->second = facts_of(at->first);
    if (at->second.height > kMaxHeight) refuse(label_ + ": nested too deeply");
    at->second.id = static_cast<Id>(all_.size());
    all_.push_back(&*at);
    return at->second.id;
  }

  Facts facts_of(const Formula& formula) const {
    Facts out;
    const auto is_nullable_item = [this](Id item) { return is_nullable(item); };
    for (const Id item : formula.items)
      out.height = std::max(out.height, facts(item).height + 1);
    switch (formula.op) {
      case Op::kNothing:
        break;
      case Op::kEmpty:
        out.is_nullable = true;
        break;
      case Op::kClass:
        out.length = {1, 1};
        break;
      case Op::kThen: {
        const Facts &first = facts(formula.items[0]), &next = facts(formula.items[1]);
        out.is_nullable = first.is_nullable && next.is_nullable;
        if (!first.is_nullable) out.height = first.height + 1;
        out.length = {std::min(kInfinite, first.length.min + next.length.min),
                      std::min(kInfinite, first.length.max + next.length.max)};
        break;
      }
      case Op::kOr:
        out.is_nullable = std::ranges::any_of(formula.items, is_nullable_item);
        out.length = facts(formula.items[0]).length;
        for (const Id item : formula.items)
          out.length = {std::min(out.length.min, facts(item).length.min),
                        std::max(out.length.max, facts(item).length.max)};
        break;
      case Op::kAnd:
        out.is_nullable = std::ranges::all_of(formula.items, is_nullable_item);
        out.length = {0, kInfinite};
        for (const Id item : formula.items)
          out.length = {std::max(out.length.min, facts(item).length.min),
                        std::min(out.length.max, facts(item).length.max)};
        break;
      case Op::kNot:
        out.is_nullable = !is_nullable(formula.items[0]);
        out.length = {0, kInfinite};
        break;
      case Op::kRepeat: {
        const Facts& item = facts(formula.items[0]);
        out.is_nullable = formula.min == 0 || item.is_nullable;
        const uint64_t max = formula.max == kUnbounded ? kInfinite : formula.max;
        out.length = {times(item.length.min, formula.min), times(item.length.max, max)};
        break;
      }
    }
    return out;
  }

  // Whether the formula repeats one class.
  bool is_run(Id id) const { return formula(id).op == Op::kRepeat && formula(formula(id).items[0]).op == Op::kClass; }
  // Whether the formula only bounds the length.
  bool is_counter(Id id) const { return formula(id).op == Op::kRepeat && formula(id).items[0] == any_code_point_; }

  // Replaces the first repetition of a class and all counters by one repetition. Returns false when there is nothing to
  // join.
  bool join_counters(std::vector<Id>& items) {
    auto run = std::ranges::find_if(items, [this](Id item) { return is_run(item) && !is_counter(item); });
    if (run == items.end()) run = std::ranges::find_if(items, [this](Id item) { return is_counter(item); });
    if (run == items.end()) return false;
    const Id first = *run;
    uint32_t min = formula(first).min, max = formula(first).max;
    const size_t num_joined = std::erase_if(items, [&](Id item) {
      if (item == first || !is_counter(item)) return false;
      min = std::max(min, formula(item).min);
      max = std::min(max, formula(item).max);
      return true;
    });
    if (num_joined == 0) return false;
    *std::ranges::find(items, first) = min <= max ? repeat(formula(first).items[0], min, max) : nothing();
    return true;
  }

  // Whether every text of `a` has a length that the counter `b` allows.
  bool implies(Id a, Id b) const {
    const Formula& counter = formula(b);
    if (a == b) return false;
    const LengthRange length = facts(a).length;
    return length.min >= counter.min && (counter.max == kUnbounded || length.max <= counter.max);
  }

  Id then_one(Id first, Id next) {
    if (first == nothing() || next == nothing()) return nothing();
    if (first == empty()) return next;
    if (next == empty()) return first;
    return add({Op::kThen, {}, {first, next}});
  }

  std::vector<Id> flattened(Op op, std::vector<Id> items) {
    std::vector<Id> flat;
    for (const Id item : items)
      if (formula(item).op == op)
        flat.insert(flat.end(), formula(item).items.begin(), formula(item).items.end());
      else
        flat.push_back(item);
    spend(flat.size());
    std::ranges::sort(flat);
    flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
    return flat;
  }

  std::vector<Edge> before(std::vector<Edge> edges, Id next) {
    spend(edges.size());
    for (Edge& edge : edges)
      edge.target = then(edge.target, next);
    return without_nothing(std::move(edges));
  }

  std::vector<Edge> complemented(const std::vector<Edge>& edges) {
    std::vector<Edge> out;
    uint32_t begin = 0;
    for (const Edge& edge : edges) {
      if (edge.first > begin) out.push_back({begin, edge.first - 1, anything()});
      out.push_back({edge.first, edge.last, none_of(edge.target)});
      begin = edge.last + 1;
    }
    if (begin < num_symbols_) out.push_back({begin, num_symbols_ - 1, anything()});
    return without_nothing(std::move(out));
  }

  std::vector<Edge> without_nothing(std::vector<Edge> edges) {
    std::erase_if(edges, [none = nothing()](const Edge& edge) { return edge.target == none; });
    return edges;
  }

  // Joins lists of edges: `op` applies to the targets of all lists that have an edge for a symbol. kAnd needs an
  // edge in every list.
  std::vector<Edge> combined(Op op, const std::vector<std::vector<Edge>>& lists) {
    struct Bound {
      uint32_t at;
      bool begins;
      Id target;
    };
    std::vector<Bound> bounds;
    for (const std::vector<Edge>& list : lists)
      for (const Edge& edge : list) {
        bounds.push_back({edge.first, true, edge.target});
        bounds.push_back({edge.last + 1, false, edge.target});
      }
    spend(bounds.size());
    std::ranges::sort(bounds, {}, &Bound::at);
    std::vector<Edge> out;
    std::map<Id, size_t> open;  // number of lists by target
    size_t num_open = 0;        // lists that have an edge
    for (size_t i = 0; i < bounds.size();) {
      const uint32_t at = bounds[i].at;
      for (; i < bounds.size() && bounds[i].at == at; ++i)
        if (bounds[i].begins) {
          ++open[bounds[i].target];
          ++num_open;
        } else {
          if (--open[bounds[i].target] == 0) open.erase(bounds[i].target);
          --num_open;
        }
      spend(1 + open.size());
      if (open.empty() || (op == Op::kAnd && num_open < lists.size())) continue;
      std::vector<Id> targets;
      for (const auto& [target, num_lists] : open)
        targets.push_back(target);
      out.push_back({at, bounds[i].at - 1, op == Op::kAnd ? all_of(std::move(targets)) : any_of(std::move(targets))});
    }
    return without_nothing(std::move(out));
  }

  void spend(size_t amount) { grammar::spend(work_left_, amount); }

  const std::string& label_;
  const uint32_t num_symbols_;
  size_t& work_left_;
  std::unordered_map<Formula, Facts, Hash> ids_;
  std::vector<const std::pair<const Formula, Facts>*> all_;  // by id
  std::unordered_map<Id, std::vector<Edge>> known_edges_;
  Id nothing_ = 0, empty_ = 0, any_code_point_ = 0, anything_ = 0;
};

// Whether a place in a pattern is the start of the text.
enum class AtStart : uint8_t { kYes, kNo, kMaybe };

// Turns a parsed pattern into a formula.
class Reader {
 public:
  Reader(Formulas& formulas, const Alphabet& alphabet, const std::string& label)
      : formulas_(formulas), alphabet_(alphabet), label_(label) {}

  // Returns the formula of the pattern followed by `next`.
  Id read(const Expr& expr, Id next, AtStart at_start) {
    switch (expr.kind) {
      case ExprKind::kClass:
        return formulas_.then(formulas_.code_point(alphabet_.symbols_of(expr.ranges)), next);
      case ExprKind::kSequence:
        return read_sequence(expr.items, next, at_start);
      case ExprKind::kChoice: {
        std::vector<Id> items;
        for (const Expr& item : expr.items)
          items.push_back(read(item, next, at_start));
        return formulas_.any_of(std::move(items));
      }
      case ExprKind::kRepeat:
        return read_repeat(expr, next, at_start);
      case ExprKind::kLookahead:
      case ExprKind::kNegativeLookahead: {
        const Id ahead = read(expr.items[0], formulas_.anything(), at_start);
        return formulas_.all_of({expr.kind == ExprKind::kLookahead ? ahead : formulas_.none_of(ahead), next});
      }
      case ExprKind::kTextEnd:
        return formulas_.all_of({formulas_.empty(), next});
      case ExprKind::kTextStart:
        if (at_start == AtStart::kMaybe) refuse(label_ + ": ^ is not supported after a part that can be empty");
        return at_start == AtStart::kYes ? next : formulas_.nothing();
      default:
        break;
    }
    return formulas_.nothing();
  }

 private:
  Id read_sequence(const std::vector<Expr>& items, Id next, AtStart at_start) {
    std::vector<AtStart> places;  // of the items
    for (const Expr& item : items) {
      places.push_back(at_start);
      const LengthRange length = length_range(item);
      if (length.min > 0) at_start = AtStart::kNo;
      if (length.max > 0 && at_start == AtStart::kYes) at_start = AtStart::kMaybe;
    }
    for (size_t i = items.size(); i-- > 0;)
      next = read(items[i], next, places[i]);
    return next;
  }

  Id read_repeat(const Expr& expr, Id next, AtStart at_start) {
    const Expr& item = expr.items[0];
    if (expr.max == 0) return next;
    if (expr.max == 1) {
      const Id once = read(item, next, at_start);
      return expr.min == 1 ? once : formulas_.any_of({once, next});
    }
    if (has_assertion(item)) refuse(label_ + ": lookahead and anchors are not supported in a repetition");
    const Id one = read(item, formulas_.empty(), AtStart::kNo);
    return formulas_.then(formulas_.repeat(one, expr.min, expr.max), next);
  }

  Formulas& formulas_;
  const Alphabet& alphabet_;
  const std::string& label_;
};

std::vector<uint32_t> code_points_of(const std::string& text, const std::string& label) {
  std::vector<uint32_t> out;
  for (size_t pos = 0; pos < text.size();)
    out.push_back(read_utf8(text, pos, label));
  return out;
}

// Returns the formula of one of `texts`, which must be ascending: a trie, from the leaves to the root.
Id one_of(Formulas& formulas, const Alphabet& alphabet, const std::vector<std::vector<uint32_t>>& texts) {
  struct Node {
    uint32_t code_point;  // that leads to this node
    std::vector<Id> branches;
  };
  std::vector<Node> path{{0, {}}};  // from the root to the last text
  const auto close = [&] {
    const Node node = std::move(path.back());
    path.pop_back();
    const Id first = formulas.code_point(alphabet.symbol_of(node.code_point));
    path.back().branches.push_back(formulas.then(first, formulas.any_of(node.branches)));
  };
  for (const std::vector<uint32_t>& text : texts) {
    size_t common = 0;
    while (common < text.size() && common + 1 < path.size() && path[common + 1].code_point == text[common])
      ++common;
    while (path.size() > common + 1)
      close();
    for (size_t i = common; i < text.size(); ++i)
      path.push_back({text[i], {}});
    path.back().branches.push_back(formulas.empty());
  }
  while (path.size() > 1)
    close();
  return formulas.any_of(path[0].branches);
}

Id formula_of(Formulas& formulas, const Alphabet& alphabet, const PatternSet& set,
              const std::vector<std::vector<uint32_t>>& except) {
  std::vector<Id> all;
  for (const Expr& pattern : set.patterns)
    all.push_back(Reader(formulas, alphabet, set.label).read(pattern, formulas.empty(), AtStart::kYes));
  if (!except.empty()) all.push_back(formulas.none_of(one_of(formulas, alphabet, except)));
  if (set.min_length > 0 || set.max_length != kUnbounded)
    all.push_back(formulas.repeat(formulas.any_code_point(), set.min_length, set.max_length));
  return formulas.all_of(std::move(all));
}

// Turns the formulas that follow each other into states.
class Builder {
 public:
  Builder(const PatternSet& set, PatternBudget& budget, std::vector<std::vector<uint32_t>> except)
      : set_(set),
        budget_(budget),
        alphabet_(set.patterns, except, budget.work),
        formulas_(set.label, alphabet_.num_symbols(), budget.work) {
    automaton_.is_json_string = set.is_json_string;
    id_of(formula_of(formulas_, alphabet_, set, except));
  }

  PatternAutomaton run() {
    for (uint32_t i = 0; i < found_.size(); ++i) {
      PatternState& state = automaton_.states.emplace_back();
      state.is_accepting = formulas_.is_nullable(found_[i]);
      add_states(1);
      if (const auto counter = formulas_.counter_of(found_[i]))
        state.tail = {alphabet_.code_points_of(counter->symbols), counter->min, counter->max};
      else
        add_edges(i);
    }
    budget_.states -= num_states_;
    return std::move(automaton_);
  }

 private:
  uint32_t id_of(Id formula) {
    const auto [at, is_new] = states_.try_emplace(formula, static_cast<uint32_t>(found_.size()));
    if (is_new) found_.push_back(formula);
    return at->second;
  }

  void add_edges(uint32_t from) {
    std::map<uint32_t, SymbolSet> edges;  // by target
    for (const Edge& edge : formulas_.edges(found_[from])) {
      SymbolSet& symbols = edges[id_of(edge.target)];
      if (symbols.empty() || symbols.back().last + 1 != edge.first) symbols.push_back({edge.first, edge.last});
      symbols.back().last = edge.last;
    }
    for (const auto& [target, symbols] : edges) {
      const uint32_t node = node_of(symbols);
      automaton_.states[from].edges.push_back({node, target});
      count_bytes(node, target, true);
    }
  }

  uint32_t node_of(const SymbolSet& symbols) {
    const auto [at, is_new] = nodes_.try_emplace(symbols, 0);
    if (!is_new) return at->second;
    size_t work = 0;
    at->second = automaton_.bytes.add(alphabet_.code_points_of(symbols), set_.is_json_string, work);
    spend(budget_.work, work);
    return at->second;
  }

  // Counts the states that the bytes from `node` to `target` take, as the compiler builds them.
  void count_bytes(uint32_t node, uint32_t target, bool is_first) {
    if (node == ByteGraph::kEnd) return;
    spend(budget_.work, 1);
    if (!is_first && !counted_.insert(uint64_t{node} << 32 | target).second) return;
    const std::vector<ByteEdge>& edges = automaton_.bytes.edges_of(node);
    add_states((is_first ? 0 : 1) + edges.size() / kEdgesPerState);
    for (const ByteEdge& edge : edges)
      count_bytes(edge.target, target, false);
  }

  void add_states(size_t num_states) {
    num_states_ += num_states;
    if (num_states_ > budget_.states) throw TooLarge();
  }

  const PatternSet& set_;
  PatternBudget& budget_;
  const Alphabet alphabet_;
  Formulas formulas_;
  PatternAutomaton automaton_;
  std::vector<Id> found_;  // by state
  std::unordered_map<Id, uint32_t> states_;
  std::map<SymbolSet, uint32_t> nodes_;   // of automaton_.bytes
  std::unordered_set<uint64_t> counted_;  // nodes and targets
  size_t num_states_ = 0;
};

}  // namespace

std::optional<PatternAutomaton> intersect(const PatternSet& set, PatternBudget& budget) try {
  std::vector<std::vector<uint32_t>> except;
  for (const std::string& text : set.except)
    except.push_back(code_points_of(text, set.label));
  std::ranges::sort(except);
  return Builder(set, budget, std::move(except)).run();
} catch (const TooLarge&) {
  return std::nullopt;
}

}  // namespace capstan::grammar
