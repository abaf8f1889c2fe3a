#include "native/grammar/stack_machine.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace capstan::grammar {
namespace {

constexpr size_t kFirstSlots = 64;   // a power of two
constexpr size_t kSeenSlots = 4096;  // a power of two, at least twice kMaxSeen
constexpr size_t kShortList = 24;    // up to this length, a linear search is faster than hashing
constexpr size_t kMaxSeen = 2 * kMaxConfigs;
static_assert(kSeenSlots >= 2 * kMaxSeen);
constexpr size_t kMaxEffort = 64 * kMaxSeen;    // bounds calls that only lead to configurations already seen
constexpr size_t kEdgesPerStep = 16;            // byte edges that cost as much as one call
constexpr size_t kKeptSlots = size_t{1} << 18;  // drop_frames shrinks tables above this size

size_t hash(uint32_t a, uint32_t b, uint32_t c = 0) {
  uint64_t h = (uint64_t{a} << 32 | b) * 0x9E3779B97F4A7C15;
  h = (h ^ (h >> 29) ^ c) * 0xD1B54A32D192ED03;
  return static_cast<size_t>(h ^ (h >> 32));
}

}  // namespace

void StackMachine::clear() {
  frames_ = std::vector<Frame>(1);
  slots_ = std::vector<uint32_t>(kFirstSlots);
  seen_slots_ = {};
  seen_.clear();
}

void StackMachine::rehash(size_t num_slots) {
  slots_.assign(num_slots, 0);
  for (uint32_t id = 1; id < frames_.size(); ++id) {
    size_t slot = hash(frames_[id].call, frames_[id].parent, frames_[id].count) & (num_slots - 1);
    while (slots_[slot] != 0)
      slot = (slot + 1) & (num_slots - 1);
    slots_[slot] = id;
  }
}

StackId StackMachine::push(const Frame& frame) {
  size_t slot = hash(frame.call, frame.parent, frame.count) & (slots_.size() - 1);
  for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1))
    if (frames_[slots_[slot]] == frame) return slots_[slot];
  const auto id = static_cast<StackId>(frames_.size());
  frames_.push_back(frame);
  slots_[slot] = id;
  if (frames_.size() * 2 > slots_.size()) rehash(slots_.size() * 2);
  return id;
}

void StackMachine::begin_set(ConfigSet& out, StackId base) {
  base_ = base;
  out.configs.clear();
  out.is_at_bottom = false;
  is_cut_ = false;
  effort_ = 0;
  pending_.clear();
  if (seen_.size() > kShortList) std::ranges::fill(seen_slots_, 0);
  seen_.clear();
}

bool StackMachine::mark_seen(const Config& config) {
  const auto insert = [&](uint32_t idx) {
    size_t slot = hash(seen_[idx].state, seen_[idx].stack) & (kSeenSlots - 1);
    for (; seen_slots_[slot] != 0; slot = (slot + 1) & (kSeenSlots - 1))
      if (seen_[seen_slots_[slot] - 1] == seen_[idx]) return false;
    seen_slots_[slot] = idx + 1;
    return true;
  };
  if (seen_.size() >= kMaxSeen) {
    is_cut_ = true;
    return false;
  }
  if (seen_.size() < kShortList && std::ranges::find(seen_, config) != seen_.end()) return false;
  seen_.push_back(config);
  const auto last = static_cast<uint32_t>(seen_.size() - 1);
  if (last < kShortList) return true;
  if (seen_slots_.empty()) seen_slots_.resize(kSeenSlots);
  if (last == kShortList)
    for (uint32_t i = 0; i < last; ++i)
      insert(i);
  if (insert(last)) return true;
  // NOTE: begin_set clears the table only when seen_ is longer than the short list. Clear it here otherwise.
  seen_.pop_back();
  if (last == kShortList) std::ranges::fill(seen_slots_, 0);
  return false;
}

void StackMachine::add(uint32_t state, StackId stack) {
  const Config config{state, stack};
  ++effort_;
  if (mark_seen(config)) pending_.push_back(config);
}

void StackMachine::return_from(StackId stack, ConfigSet& out) {
  if (stack == base_) {
    out.is_at_bottom = true;
    return;
  }
  const Frame frame = frames_[stack];
  const CallEdge& call = automaton_->calls[frame.call];
  if (!call.is_counted()) return add(call.target, frame.parent);
  if (frame.count >= call.min) add(call.target, frame.parent);
  if (frame.count >= call.max) return;
  const uint32_t next = call.max == kUnbounded ? std::min(frame.count + 1, call.min) : frame.count + 1;
  add(automaton_->rule_starts[call.rule], push({frame.call, next, frame.parent}));
}

// Breadth first, and keeps the first ones. So a configuration that a set keeps is also kept by the set of the one
// configuration that it came from: step_in_parts relies on that.
void StackMachine::drain(ConfigSet& out) {
  for (size_t i = 0; i < pending_.size(); ++i) {
    const Config config = pending_[i];
    const State& state = automaton_->states[config.state];
    if (state.edges_begin != state.edges_end) out.configs.push_back(config);
    for (uint32_t id = state.calls_begin; id < state.calls_end; ++id) {
      // Stops at the limit before it pushes a frame, because one state may have very many calls.
      if (seen_.size() >= kMaxSeen || effort_ >= kMaxEffort) {
        is_cut_ = true;
        break;
      }
      ++effort_;
      const CallEdge& call = automaton_->calls[id];
      // A tail call needs no frame: it returns directly to the caller of this rule.
      const bool is_tail = !call.is_counted() && automaton_->states[call.target].is_final();
      add(automaton_->rule_starts[call.rule], is_tail ? config.stack : push({id, 1, config.stack}));
    }
    if (state.is_accepting) return_from(config.stack, out);
  }
  if (out.configs.size() > kShortList) drop_dominated(out);
  if (out.configs.size() > kMaxConfigs) {
    is_cut_ = true;
    out.configs.resize(kMaxConfigs);
  }
  std::ranges::sort(out.configs);
}

// Removes a configuration when another one has the same state and stack in an earlier round of a counted call, and that
// round may already be the last: it accepts everything that the later round accepts. Otherwise an ambiguous repetition
// would fill the set with every possible count.
void StackMachine::drop_dominated(ConfigSet& set) {
  const auto order = [this](const Config& config) {
    const Frame& frame = frames_[config.stack];
    return std::tuple(config.state, frame.call, frame.parent, frame.count, config.stack);
  };
  const auto dominates = [this](const Config& a, const Config& b) {
    if (a.state != b.state || a.stack == kBottom || b.stack == kBottom) return false;
    const Frame &first = frames_[a.stack], &second = frames_[b.stack];
    return first.call == second.call && first.parent == second.parent &&
           first.count >= automaton_->calls[first.call].min;
  };
  ordered_ = set.configs;
  std::ranges::sort(ordered_, {}, order);
  dominated_.clear();
  for (size_t i = 1, kept = 0; i < ordered_.size(); ++i)
    if (dominates(ordered_[kept], ordered_[i]))
      dominated_.push_back(ordered_[i]);
    else
      kept = i;
  if (dominated_.empty()) return;
  std::ranges::sort(dominated_);
  std::erase_if(set.configs, [this](const Config& config) { return std::ranges::binary_search(dominated_, config); });
}

ConfigSet StackMachine::start() {
  ConfigSet out;
  begin_set(out);
  add(automaton_->rule_starts[automaton_->root], kBottom);
  drain(out);
  out.is_at_bottom |= automaton_->is_root_nullable;
  return out;
}

void StackMachine::expand_returns(std::span<const StackId> stacks, ConfigSet& out) {
  begin_set(out);
  for (const StackId stack : stacks)
    return_from(stack, out);
  drain(out);
}

bool StackMachine::step(const ConfigSet& in, uint8_t byte, ConfigSet& out, StackId base) {
  begin_set(out, base);
  for (const Config& config : in.configs) {
    if ((automaton_->first_bytes[config.state][byte / 64] >> (byte % 64) & 1) == 0) continue;
    size_t num_edges = 0;
    for (const ByteEdge& edge : automaton_->edges_of(config.state)) {
      if (edge.first > byte) break;
      ++num_edges;
      if (byte <= edge.last) add(edge.target, config.stack);
    }
    effort_ += num_edges / kEdgesPerStep;
  }
  drain(out);
  return !out.is_dead();
}

bool StackMachine::step_token(const ConfigSet& in, int32_t token_id, ConfigSet& out) {
  begin_set(out);
  for (const Config& config : in.configs)
    for (const TokenEdge& edge : automaton_->token_edges_of(config.state))
      if (edge.token_id == token_id) add(edge.target, config.stack);
  drain(out);
  return !out.is_dead();
}

std::array<uint64_t, 4> StackMachine::first_bytes(const ConfigSet& set) const {
  std::array<uint64_t, 4> bytes{};
  for (const Config& config : set.configs)
    for (size_t i = 0; i < 4; ++i)
      bytes[i] |= automaton_->first_bytes[config.state][i];
  return bytes;
}

uint64_t StackMachine::bytes_to_end(const Config& config) const {
  uint64_t sum = automaton_->bytes_to_end[config.state];
  for (StackId stack = config.stack; stack != kBottom; stack = frames_[stack].parent) {
    const Frame& frame = frames_[stack];
    const CallEdge& call = automaton_->calls[frame.call];
    const uint64_t num_left = frame.count < call.min ? call.min - frame.count : 0;
    const uint64_t once = automaton_->bytes_of_rule(call.rule);
    sum += automaton_->bytes_to_end[call.target] +
           (num_left > 0 && once >= kUnreachable / num_left ? kUnreachable : once * num_left);
    sum = std::min(sum, kUnreachable);
  }
  return sum;
}

void StackMachine::compact(std::span<ConfigSet*> sets) {
  std::vector<StackId> renumbered(frames_.size(), 0);
  for (const ConfigSet* set : sets)
    for (const Config& config : set->configs)
      for (StackId id = config.stack; id != kBottom && renumbered[id] == 0; id = frames_[id].parent)
        renumbered[id] = 1;
  // Parents have lower ids than their children, so ascending order renumbers parents first and keeps the sets sorted.
  std::vector<Frame> kept(1);
  for (StackId id = 1; id < frames_.size(); ++id) {
    if (renumbered[id] == 0) continue;
    renumbered[id] = static_cast<StackId>(kept.size());
    kept.push_back({frames_[id].call, frames_[id].count, renumbered[frames_[id].parent]});
  }
  frames_ = std::move(kept);
  for (ConfigSet* set : sets)
    for (Config& config : set->configs)
      config.stack = renumbered[config.stack];
  size_t num_slots = kFirstSlots;
  while (num_slots < frames_.size() * 4)
    num_slots *= 2;
  rehash(num_slots);
}

void StackMachine::drop_frames(size_t num_kept) {
  // Newest first, so that each removal restores the table to its state before that frame was added.
  for (; frames_.size() > num_kept; frames_.pop_back()) {
    const Frame& frame = frames_.back();
    size_t slot = hash(frame.call, frame.parent, frame.count) & (slots_.size() - 1);
    while (slots_[slot] != frames_.size() - 1)
      slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = 0;
  }
  if (slots_.size() <= kKeptSlots || frames_.size() * 8 > slots_.size()) return;
  frames_.shrink_to_fit();
  slots_ = {};
  rehash(std::max(kFirstSlots, std::bit_ceil(frames_.size() * 4)));
}

}  // namespace capstan::grammar
