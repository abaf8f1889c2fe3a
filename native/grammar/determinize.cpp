#include <algorithm>
#include <bitset>
#include <map>
#include <unordered_map>

#include "native/grammar/rule_nfa.h"

namespace capstan::grammar {
namespace {

using StateSet = std::vector<uint32_t>;  // NFA states, ascending, without states that only have empty edges

struct StateSetHash {
  size_t operator()(const StateSet& set) const {
    uint64_t hash = set.size();
    for (const uint32_t state : set)
      hash = (hash ^ state) * 0x9E3779B97F4A7C15 + (hash >> 29);
    return hash;
  }
};

class Determinizer {
 public:
  Determinizer(const RuleNfa& nfa, Automaton& automaton, BuildBudget& budget)
      : nfa_(nfa),
        automaton_(automaton),
        budget_(budget),
        visited_(nfa.states.size(), 0),
        first_state_(static_cast<uint32_t>(automaton.states.size())) {}

  // Returns false, with the automaton unchanged, when it takes more than `max_states` states. `merges` = the subset
  // construction; otherwise each DFA state is the closure of one NFA state.
  bool run(bool merges, size_t max_states) {
    const size_t num_edges = automaton_.byte_edges.size(), num_calls = automaton_.calls.size(),
                 num_tokens = automaton_.token_edges.size();
    merges_ = merges;
    sets_.assign(1, closure({nfa_.start}));
    ids_.clear();
    // NOTE: the start has no entry in ids_. A loop back to it gets a separate state, which may accept.
    for (size_t i = 0; i < sets_.size() && sets_.size() <= max_states; ++i) {
      add_state(StateSet(sets_[i]), i == 0);
      if (automaton_.states.size() > kMaxStates)
        refuse("grammar: expected at most " + std::to_string(kMaxStates) + " states");
    }
    if (sets_.size() <= max_states) return true;
    automaton_.states.resize(first_state_);
    automaton_.byte_edges.resize(num_edges);
    automaton_.calls.resize(num_calls);
    automaton_.token_edges.resize(num_tokens);
    return false;
  }

 private:
  StateSet closure(const StateSet& from) {
    StateSet pending = from, reached;
    ++stamp_;
    while (!pending.empty()) {
      const uint32_t id = pending.back();
      pending.pop_back();
      if (visited_[id] == stamp_) continue;
      visited_[id] = stamp_;
      const NfaState& state = nfa_.states[id];
      budget_.spend(1 + state.empty.size());
      pending.insert(pending.end(), state.empty.begin(), state.empty.end());
      if (id == nfa_.end || !state.bytes.empty() || !state.calls.empty()) reached.push_back(id);
    }
    std::ranges::sort(reached);
    return reached;
  }

  uint32_t id_of(const StateSet& targets) {
    StateSet set = closure(targets);
    const auto [at, is_new] = ids_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
    if (is_new) sets_.push_back(std::move(set));
    return first_state_ + at->second;
  }

  void add_state(const StateSet& set, bool is_start) {
    State state;
    state.is_accepting = !is_start && std::ranges::binary_search(set, nfa_.end);
    state.edges_begin = static_cast<uint32_t>(automaton_.byte_edges.size());
    add_byte_edges(set);
    state.edges_end = static_cast<uint32_t>(automaton_.byte_edges.size());
    state.calls_begin = static_cast<uint32_t>(automaton_.calls.size());
    add_calls(set);
    state.calls_end = static_cast<uint32_t>(automaton_.calls.size());
    state.tokens_begin = static_cast<uint32_t>(automaton_.token_edges.size());
    add_token_edges(set);
    state.tokens_end = static_cast<uint32_t>(automaton_.token_edges.size());
    automaton_.states.push_back(state);
  }

  void add_byte_edges(const StateSet& set) {
    std::vector<ByteEdge> edges;
    for (const uint32_t id : set)
      edges.insert(edges.end(), nfa_.states[id].bytes.begin(), nfa_.states[id].bytes.end());
    std::ranges::sort(edges, {}, &ByteEdge::first);
    const size_t begin = automaton_.byte_edges.size();
    if (!merges_) {
      for (const ByteEdge& edge : edges)
        automaton_.byte_edges.push_back({edge.first, edge.last, id_of({edge.target})});
      return;
    }
    // All bytes between two bounds lead to the same states.
    std::bitset<257> bounds;
    for (const ByteEdge& edge : edges) {
      bounds.set(edge.first);
      bounds.set(edge.last + 1u);
    }
    std::vector<ByteEdge> open;  // that consume `low`
    size_t num_opened = 0;
    for (size_t low = 0, high = 0; low < 256; low = high) {
      for (high = low + 1; high < 256 && !bounds[high];)
        ++high;
      std::erase_if(open, [low](const ByteEdge& edge) { return edge.last < low; });
      for (; num_opened < edges.size() && edges[num_opened].first <= low; ++num_opened)
        open.push_back(edges[num_opened]);
      budget_.spend(1 + open.size());
      StateSet targets;
      for (const ByteEdge& edge : open)
        targets.push_back(edge.target);
      if (targets.empty()) continue;
      const ByteEdge merged{static_cast<uint8_t>(low), static_cast<uint8_t>(high - 1), id_of(targets)};
      ByteEdge* last = automaton_.byte_edges.size() > begin ? &automaton_.byte_edges.back() : nullptr;
      if (last != nullptr && last->last + 1 == merged.first && last->target == merged.target)
        last->last = merged.last;
      else
        automaton_.byte_edges.push_back(merged);
    }
  }

  void add_calls(const StateSet& set) {
    std::map<std::array<uint32_t, 3>, StateSet> targets;  // key: rule, min, max
    for (const uint32_t id : set)
      for (const CallEdge& call : nfa_.states[id].calls) {
        budget_.spend(1);
        if (merges_)
          targets[{call.rule, call.min, call.max}].push_back(call.target);
        else
          automaton_.calls.push_back({call.rule, id_of({call.target}), call.min, call.max});
      }
    for (const auto& [key, states] : targets)
      automaton_.calls.push_back({key[0], id_of(states), key[1], key[2]});
  }

  void add_token_edges(const StateSet& set) {
    std::map<int32_t, StateSet> targets;
    for (const uint32_t id : set)
      for (const TokenEdge& edge : nfa_.states[id].tokens) {
        budget_.spend(1);
        if (merges_)
          targets[edge.token_id].push_back(edge.target);
        else
          automaton_.token_edges.push_back({edge.token_id, id_of({edge.target})});
      }
    for (const auto& [token_id, states] : targets)
      automaton_.token_edges.push_back({token_id, id_of(states)});
  }

  const RuleNfa& nfa_;
  Automaton& automaton_;
  BuildBudget& budget_;
  std::vector<uint32_t> visited_;  // (num_nfa_states) stamp of the last closure that reached the state
  uint32_t stamp_ = 0;
  const uint32_t first_state_;
  bool merges_ = true;
  std::vector<StateSet> sets_;  // by DFA state, relative to first_state_
  std::unordered_map<StateSet, uint32_t, StateSetHash> ids_;
};

}  // namespace

uint32_t determinize(const RuleNfa& nfa, Automaton& automaton, BuildBudget& budget) {
  // Merging usually shrinks the automaton, but a pattern such as .*a.{9} has exponentially many merged states.
  constexpr size_t kGrowth = 4, kSmall = 512;
  const auto start = static_cast<uint32_t>(automaton.states.size());
  Determinizer determinizer(nfa, automaton, budget);
  if (!determinizer.run(true, nfa.states.size() * kGrowth + kSmall) && !determinizer.run(false, kMaxStates))
    refuse("grammar: expected at most " + std::to_string(kMaxStates) + " states");
  return start;
}

}  // namespace capstan::grammar
