#pragma once
// What a grammar compiles to: one finite automaton per rule whose edges take a byte or call another rule. Calls return
// to their target; a counted call repeats its rule with the count on the stack instead of copies of the rule. Every
// rule consumes at least one byte: what can be empty is skipped by its callers, so nothing can loop without progress,
// and a rule that begins with itself is known by a cycle of first calls.
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
  int32_t token_id = -1;  // of a marker, taken as a whole
  uint32_t target = 0;
};

struct CallEdge {
  uint32_t rule = 0;
  uint32_t target = 0;
  uint32_t min = 1, max = 1;  // times; 1 and 1 is a plain call; max may be kUnbounded
  bool is_counted() const { return max != 1; }
};

struct State {
  uint32_t edges_begin = 0, edges_end = 0;    // of `byte_edges`, ascending by first byte
  uint32_t calls_begin = 0, calls_end = 0;    // of `calls`
  uint32_t tokens_begin = 0, tokens_end = 0;  // of `token_edges`; where they lead, bytes lead too
  bool is_accepting = false;                  // its rule may end here
  bool is_final() const { return is_accepting && edges_begin == edges_end && calls_begin == calls_end; }
};

constexpr uint64_t kUnreachable = UINT64_MAX / 4;

struct Automaton {
  std::vector<State> states;
  std::vector<ByteEdge> byte_edges;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> token_edges;
  std::vector<uint32_t> rule_starts;                 // (num_rules) state; rules made for counted repeats come last
  std::vector<std::string> rule_names;               // (num_rules)
  std::vector<uint64_t> bytes_to_end;                // (num_states) fewest bytes until the rule may end
  std::vector<std::array<uint64_t, 4>> first_bytes;  // (num_states) bit per byte that an edge takes
  uint32_t root = 0;
  bool is_root_nullable = false;

  std::span<const ByteEdge> edges_of(uint32_t state) const {
    return {byte_edges.data() + states[state].edges_begin, byte_edges.data() + states[state].edges_end};
  }
  std::span<const TokenEdge> token_edges_of(uint32_t state) const {
    return {token_edges.data() + states[state].tokens_begin, token_edges.data() + states[state].tokens_end};
  }
  uint64_t bytes_of_rule(uint32_t rule) const { return bytes_to_end[rule_starts[rule]]; }
};

// Throws invalid_argument: a limit passed, a rule unknown or twice there, one that begins with itself, a root that
// nothing can match. The message names the rule. Bounded in time and memory by the limits of `grammar.h`.
Automaton compile(Grammar grammar, std::span<const Marker> markers = {});

// ---- its parts, in order ----

// Fills bytes_to_end; takes out edges to where no rule can end. Throws when the root has no end.
void prune_dead_ends(Automaton& automaton);
// Throws for a rule that begins with itself.
void refuse_left_recursion(const Automaton& automaton);

}  // namespace capstan::grammar
