#pragma once
// The first form of a rule: a nondeterministic automaton with empty edges, as Thompson builds it; `determinize` turns
// it into states of the Automaton.
#include <vector>

#include "native/grammar/automaton.h"

namespace capstan::grammar {

struct NfaState {
  std::vector<uint32_t> empty;  // targets reached without a byte
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> tokens;
};

struct RuleNfa {
  std::vector<NfaState> states;
  uint32_t start = 0, end = 0;
};

// What building may still cost; throws where it is used up.
class BuildBudget {
 public:
  void spend(size_t amount) {
    spent_ += amount;
    if (spent_ > kMaxBuildWork)
      refuse("grammar: too large to compile (more than " + std::to_string(kMaxBuildWork) + " steps)");
  }

 private:
  size_t spent_ = 0;
};

// Takes bytes of UTF-8 while they do not hold `text`, which must not be empty: a Knuth-Morris-Pratt automaton that also
// knows where in a character it is. Where `text` ends it leads to `to` (until), or it leads to `to` from wherever a
// character ends (without). `markers` are taken where `text` spells them.
enum class SearchEnd : uint8_t { kUntil, kWithout };
void add_search(RuleNfa& nfa, std::string_view text, SearchEnd end, uint32_t from, uint32_t to,
                std::span<const Marker* const> markers, BuildBudget& budget);

// Appends the rule's states to `automaton`, the start first, and returns its id. The start does not accept: the empty
// text is the callers' affair. Equal beginnings become one state, calls of one rule included; where that would take too
// many states, the states stay as they are.
uint32_t determinize(const RuleNfa& nfa, Automaton& automaton, BuildBudget& budget);

}  // namespace capstan::grammar
