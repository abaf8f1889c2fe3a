#pragma once
// The compiled form of a grammar: one finite automaton per rule. An edge consumes a byte or calls another rule, and a
// call returns to its target state. A counted call repeats its rule with a counter on the stack, without copies of the
// rule. Every rule consumes at least one byte, because callers skip a rule that may be empty. So no loop is without
// progress, and a left-recursive rule is a cycle of calls at the starts of rules.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "native/grammar/grammar.h"

namespace capstan::grammar {

struct ByteEdge {
  uint8_t first = 0, last = 0;  // inclusive
  uint32_t target = 0;
};

struct TokenEdge {
  int32_t token_id = -1;  // a marker, consumed as one token
  uint32_t target = 0;
};

struct CallEdge {
  uint32_t rule = 0;
  uint32_t target = 0;
  uint32_t min = 1, max = 1;  // repetitions; 1 and 1 is a plain call; max may be kUnbounded
  bool is_counted() const { return max != 1; }
};

struct State {
  uint32_t edges_begin = 0, edges_end = 0;    // of `byte_edges`, ascending by first byte
  uint32_t calls_begin = 0, calls_end = 0;    // of `calls`
  uint32_t tokens_begin = 0, tokens_end = 0;  // of `token_edges`; byte edges lead to the same states
  bool is_accepting = false;                  // the rule may end here
  bool is_final() const { return is_accepting && edges_begin == edges_end && calls_begin == calls_end; }
};

constexpr uint64_t kUnreachable = UINT64_MAX / 4;

struct Automaton {
  std::vector<State> states;
  std::vector<ByteEdge> byte_edges;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> token_edges;
  std::vector<uint32_t> rule_starts;                 // (num_rules) start states
  std::vector<std::string> rule_names;               // (num_rules)
  std::vector<uint64_t> bytes_to_end;                // (num_states) fewest bytes until the rule may end
  std::vector<std::array<uint64_t, 4>> first_bytes;  // (num_states) one bit per byte that an edge consumes
  uint32_t root = 0;
  bool is_root_nullable = false;

  std::span<const ByteEdge> edges_of(uint32_t state) const {
    return {byte_edges.data() + states[state].edges_begin, byte_edges.data() + states[state].edges_end};
  }
  std::span<const TokenEdge> token_edges_of(uint32_t state) const {
    return {token_edges.data() + states[state].tokens_begin, token_edges.data() + states[state].tokens_end};
  }
  size_t size_bytes() const;
  uint64_t bytes_of_rule(uint32_t rule) const { return bytes_to_end[rule_starts[rule]]; }
};

// Compiles a grammar. Throws kInvalidArgument with the rule's name for an exceeded limit, an unknown or duplicate rule,
// left recursion, and a root that no text matches. The limits of `grammar.h` bound its time and memory.
Automaton compile(Grammar grammar, std::span<const Marker> markers = {});

// ---- the last steps of compile(), in order ----

// Fills bytes_to_end and first_bytes, and removes edges to states from which no rule can end. Throws when the root
// cannot end.
void prune_dead_ends(Automaton& automaton);
// Throws for a left-recursive rule.
void refuse_left_recursion(const Automaton& automaton);

}  // namespace capstan::grammar
