#pragma once
// Regular expressions on their way to a grammar: parse_pattern() reads one, and intersect() combines several with
// bounds on the length and excluded texts. `parse_regex` in `grammar.h` uses both.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/base/error.h"
#include "native/grammar/byte_graph.h"

namespace capstan::grammar {

// Parses one pattern. The result matches the whole text and has no rules, literals or regular expressions.
Expr parse_pattern(std::string_view text, bool is_search, const std::string& label,
                   const UnicodeProperties& properties = {});

// Whether the pattern has a lookahead, or an anchor that is not at an end of a top-level alternative. Only intersect()
// takes such patterns.
bool has_assertion(const Expr& pattern);

struct LengthRange {
  uint64_t min = 0, max = 0;  // in code points; kInfinite = unbounded
};
constexpr uint64_t kInfinite = uint64_t{1} << 60;
LengthRange length_range(const Expr& pattern);
// Multiplies, limited to kInfinite.
uint64_t times(uint64_t a, uint64_t b);

// The texts that all `patterns` match, without those of `except`.
struct PatternSet {
  std::vector<Expr> patterns;
  std::vector<std::string> except = {};
  uint32_t min_length = 0, max_length = kUnbounded;  // in code points
  std::string label;                                 // the name of the patterns in error messages
  bool is_json_string = false;                       // spells the texts as the inside of a JSON string literal
};

struct PatternEdge {
  uint32_t node = 0;  // of the bytes: spells some code points
  uint32_t target = 0;
};

// The rest of a text: `min` to `max` code points of `set`.
struct PatternTail {
  CodePointSet set;
  uint32_t min = 0, max = 0;
};

struct PatternState {
  bool is_accepting = false;
  std::vector<PatternEdge> edges;   // of disjoint sets of code points
  std::optional<PatternTail> tail;  // instead of edges
};

// A deterministic automaton over code points.
struct PatternAutomaton {
  std::vector<PatternState> states;  // the first one is the start
  ByteGraph bytes;
  bool is_json_string = false;  // spells the texts as the inside of a JSON string literal
};

// What the automata of one grammar may still take.
struct PatternBudget {
  size_t states = 200'000;   // over bytes; many edges count as a state
  size_t work = 10'000'000;  // elementary steps, some hundred milliseconds
};

// Returns nothing when the automaton takes too many states or more than the budget. Throws kInvalidArgument for an
// anchor or a lookahead at an unsupported place.
std::optional<PatternAutomaton> intersect(const PatternSet& set, PatternBudget& budget);

// Matches a code point of the set as JSON spells it inside a string literal. Each code point has one spelling.
Expr json_class(const CodePointSet& set);

}  // namespace capstan::grammar
