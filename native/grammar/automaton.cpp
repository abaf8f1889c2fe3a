#include "native/grammar/automaton.h"

#include <algorithm>
#include <queue>

namespace capstan::grammar {
namespace {

// Knuth's generalization of Dijkstra's algorithm. States are settled in the order of their distance. The distance over
// a call is known when the start of the called rule and the state it returns to are settled.
class EndDistances {
 public:
  explicit EndDistances(Automaton& automaton) : automaton_(automaton), num_states_(automaton.states.size()) {
    automaton_.bytes_to_end.assign(num_states_, kUnreachable);
    is_settled_.assign(num_states_, false);
    rules_of_start_.resize(num_states_);
    edges_into_.resize(num_states_);
    calls_into_.resize(num_states_);
    calls_of_rule_.resize(automaton_.rule_starts.size());
    for (uint32_t rule = 0; rule < automaton_.rule_starts.size(); ++rule)
      rules_of_start_[automaton_.rule_starts[rule]].push_back(rule);
    owner_of_call_.resize(automaton_.calls.size());
    for (uint32_t state = 0; state < num_states_; ++state) {
      for (const ByteEdge& edge : automaton_.edges_of(state))
        edges_into_[edge.target].push_back(state);
      for (uint32_t call = automaton_.states[state].calls_begin; call < automaton_.states[state].calls_end; ++call) {
        owner_of_call_[call] = state;
        calls_into_[automaton_.calls[call].target].push_back(call);
        calls_of_rule_[automaton_.calls[call].rule].push_back(call);
      }
    }
  }

  void run() {
    for (uint32_t state = 0; state < num_states_; ++state)
      if (automaton_.states[state].is_accepting) reach(state, 0);
    while (!queue_.empty()) {
      const auto [distance, state] = queue_.top();
      queue_.pop();
      if (is_settled_[state]) continue;
      is_settled_[state] = true;
      for (const uint32_t from : edges_into_[state])
        reach(from, distance + 1);
      for (const uint32_t call : calls_into_[state])
        reach_through_call(call);
      for (const uint32_t rule : rules_of_start_[state])
        for (const uint32_t call : calls_of_rule_[rule])
          reach_through_call(call);
    }
  }

 private:
  void reach(uint32_t state, uint64_t distance) {
    distance = std::min(distance, kUnreachable - 1);
    if (distance >= automaton_.bytes_to_end[state]) return;
    automaton_.bytes_to_end[state] = distance;
    queue_.push({distance, state});
  }

  void reach_through_call(uint32_t id) {
    const CallEdge& call = automaton_.calls[id];
    if (!is_settled_[call.target] || !is_settled_[automaton_.rule_starts[call.rule]]) return;
    const uint64_t once = automaton_.bytes_of_rule(call.rule);
    const uint64_t all = once >= kUnreachable / call.min ? kUnreachable : once * call.min;
    reach(owner_of_call_[id], std::min(all, kUnreachable) + automaton_.bytes_to_end[call.target]);
  }

  using Entry = std::pair<uint64_t, uint32_t>;  // distance, state
  Automaton& automaton_;
  const size_t num_states_;
  std::vector<bool> is_settled_;
  std::vector<std::vector<uint32_t>> rules_of_start_, edges_into_, calls_into_, calls_of_rule_;
  std::vector<uint32_t> owner_of_call_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

// Appends the edges [begin, end) of `from` that satisfy `keep` to `kept`; begin and end then delimit them there.
template <class Edge, class Keep>
void keep_edges(const std::vector<Edge>& from, uint32_t& begin, uint32_t& end, std::vector<Edge>& kept,
                const Keep& keep) {
  const auto kept_begin = static_cast<uint32_t>(kept.size());
  for (uint32_t i = begin; i < end; ++i)
    if (keep(from[i])) kept.push_back(from[i]);
  begin = kept_begin;
  end = static_cast<uint32_t>(kept.size());
}

}  // namespace

size_t Automaton::size_bytes() const {
  size_t bytes = sizeof(Automaton) + byte_edges.size() * sizeof(ByteEdge) + calls.size() * sizeof(CallEdge) +
                 token_edges.size() * sizeof(TokenEdge) +
                 states.size() * (sizeof(State) + sizeof(bytes_to_end[0]) + sizeof(first_bytes[0])) +
                 rule_starts.size() * (sizeof(rule_starts[0]) + sizeof(std::string));
  for (const std::string& name : rule_names)
    bytes += name.size();
  return bytes;
}

void prune_dead_ends(Automaton& automaton) {
  EndDistances(automaton).run();
  const auto is_dead = [&](uint32_t state) { return automaton.bytes_to_end[state] == kUnreachable; };
  if (is_dead(automaton.rule_starts[automaton.root]) && !automaton.is_root_nullable)
    refuse("grammar: no text matches rule " + automaton.rule_names[automaton.root]);

  std::vector<ByteEdge> byte_edges;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> token_edges;
  const auto leads_on = [&](const auto& edge) { return !is_dead(edge.target); };
  const auto call_leads_on = [&](const CallEdge& call) {
    return leads_on(call) && !is_dead(automaton.rule_starts[call.rule]);
  };
  for (State& state : automaton.states) {
    keep_edges(automaton.byte_edges, state.edges_begin, state.edges_end, byte_edges, leads_on);
    keep_edges(automaton.calls, state.calls_begin, state.calls_end, calls, call_leads_on);
    keep_edges(automaton.token_edges, state.tokens_begin, state.tokens_end, token_edges, leads_on);
  }
  automaton.byte_edges = std::move(byte_edges);
  automaton.calls = std::move(calls);
  automaton.token_edges = std::move(token_edges);

  automaton.first_bytes.assign(automaton.states.size(), {});
  for (uint32_t state = 0; state < automaton.states.size(); ++state)
    for (const ByteEdge& edge : automaton.edges_of(state))
      for (uint32_t byte = edge.first; byte <= edge.last; ++byte)
        automaton.first_bytes[state][byte / 64] |= uint64_t{1} << (byte % 64);
}

void refuse_left_recursion(const Automaton& automaton) {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(automaton.rule_starts.size(), Mark::kNew);
  struct Visit {
    uint32_t rule, next_call;
  };
  const auto start_of = [&](uint32_t rule) -> const State& { return automaton.states[automaton.rule_starts[rule]]; };
  for (uint32_t first = 0; first < marks.size(); ++first) {
    if (marks[first] != Mark::kNew) continue;
    // A path on the heap instead of recursion, because it can be as long as the number of rules.
    std::vector<Visit> path{{first, start_of(first).calls_begin}};
    marks[first] = Mark::kOpen;
    while (!path.empty()) {
      Visit& top = path.back();
      if (top.next_call == start_of(top.rule).calls_end) {
        marks[top.rule] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const uint32_t called = automaton.calls[top.next_call++].rule;
      if (marks[called] == Mark::kOpen)
        refuse("grammar: rule " + automaton.rule_names[called] +
               " begins with itself; left recursion is not supported, write a repetition instead");
      if (marks[called] == Mark::kDone) continue;
      marks[called] = Mark::kOpen;
      path.push_back({called, start_of(called).calls_begin});
    }
  }
}

}  // namespace capstan::grammar
