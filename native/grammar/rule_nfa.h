#pragma once
// The first form of a rule: a nondeterministic automaton with empty edges (Thompson's construction). `determinize`
// turns it into states of the Automaton.
#include <vector>

#include "native/grammar/automaton.h"

namespace capstan::grammar {

struct NfaState {
  std::vector<uint32_t> empty;  // targets of empty edges
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> tokens;
};

struct RuleNfa {
  std::vector<NfaState> states;
  uint32_t start = 0, end = 0;
};

// Counts build steps and throws above kMaxBuildWork.
class BuildBudget {
 public:
  void spend(size_t amount) {
    spent_ += amount;
    if (spent_ > kMaxBuildWork)
      refuse("grammar: too large to compile, expected at most " + std::to_string(kMaxBuildWork) + " steps");
  }

 private:
  size_t spent_ = 0;
};

// Where a search ends.
enum class SearchEnd : uint8_t {
  kUntil,    // after the first occurrence of the text
  kWithout,  // after any character, as long as the text has not occurred
};

// Adds a search for `text` from state `from` to state `to`: a Knuth-Morris-Pratt automaton that also tracks the
// position within a UTF-8 character, so that it accepts only valid UTF-8. `text` must not be empty. `markers` match
// where they are part of the text.
void add_search(RuleNfa& nfa, std::string_view text, SearchEnd end, uint32_t from, uint32_t to,
                std::span<const Marker* const> markers, BuildBudget& budget);

// Appends the rule's states to `automaton`, the start first, and returns the id of the start. The start never accepts,
// because callers handle the empty text. Merges states by the subset construction, calls included. When that would make
// too many states, it keeps one state per NFA state.
uint32_t determinize(const RuleNfa& nfa, Automaton& automaton, BuildBudget& budget);

}  // namespace capstan::grammar
