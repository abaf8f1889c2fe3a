#pragma once
// The first form of a rule: a nondeterministic automaton with empty edges, as Thompson builds it; `determinize` turns it into states of the Automaton.
#include <vector>

#include "native/grammar/automaton.h"

namespace capstan::grammar {

struct NfaState {
  std::vector<uint32_t> empty;     // targets reached without a byte
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
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
    if (spent_ > kMaxBuildWork) refuse("grammar: too large to compile (more than " + std::to_string(kMaxBuildWork) + " steps)");
  }

 private:
  size_t spent_ = 0;
};

// Appends the rule's states to `automaton`, the start first, and returns its id. The start does not accept: the empty text is the callers' affair.
// Equal beginnings become one state, calls of one rule included; where that would take too many states, the states stay as they are.
uint32_t determinize(const RuleNfa& nfa, Automaton& automaton, BuildBudget& budget);

}  // namespace capstan::grammar
