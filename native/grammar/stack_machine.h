#pragma once
// Runs an Automaton over bytes. A configuration is a state and a stack of calls. Stacks are immutable lists that share
// their tails, so a copy of a configuration copies two numbers. A set keeps at most kMaxConfigs configurations and
// drops the rest, which only narrows the language.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "native/grammar/automaton.h"

namespace capstan::grammar {

constexpr size_t kMaxConfigs = 512;  // per set; computing a set may visit twice as many

using StackId = uint32_t;
constexpr StackId kBottom = 0;  // the empty stack

struct Frame {
  uint32_t call = 0;   // the call edge
  uint32_t count = 0;  // counted calls: the current round, from 1; unbounded calls stop counting at `min`
  StackId parent = kBottom;
  bool operator==(const Frame&) const = default;
};

struct Config {
  uint32_t state = 0;
  StackId stack = kBottom;
  auto operator<=>(const Config&) const = default;
};

// The configurations that the text so far can lead to.
struct ConfigSet {
  std::vector<Config> configs;  // those that can consume a byte, ascending
  bool is_at_bottom = false;    // the root rule may be complete, so the text may end here
  bool is_dead() const { return configs.empty() && !is_at_bottom; }
  bool operator==(const ConfigSet&) const = default;
};

class StackMachine {
 public:
  explicit StackMachine(const Automaton& automaton) : automaton_(&automaton) { clear(); }

  const Automaton& automaton() const { return *automaton_; }
  const Frame& frame(StackId stack) const { return frames_[stack]; }
  size_t num_frames() const { return frames_.size(); }
  size_t size_bytes() const {
    return frames_.size() * sizeof(Frame) + (slots_.size() + seen_slots_.size()) * sizeof(uint32_t);
  }
  void clear();  // drops all stacks

  StackId push(const Frame& frame);
  // Returns the set before the first byte.
  ConfigSet start();
  // Sets `out` to the set after the rules called by the top frames of `stacks` have ended.
  void expand_returns(std::span<const StackId> stacks, ConfigSet& out);
  // Consumes one byte. Returns false, with `out` dead, when no configuration accepts it. `out` must not be `in`. A rule
  // that `base` called and that may end only sets is_at_bottom, as if `base` were the empty stack.
  bool step(const ConfigSet& in, uint8_t byte, ConfigSet& out, StackId base = kBottom);
  // Consumes a marker as one token, like step().
  bool step_token(const ConfigSet& in, int32_t token_id, ConfigSet& out);
  // Returns whether the last computed set lacks configurations because of a limit.
  bool is_cut() const { return is_cut_; }
  // Returns the configurations and calls visited for the last set, which can be many more than its size.
  size_t effort() const { return effort_; }
  // Returns one bit per byte that step() accepts.
  std::array<uint64_t, 4> first_bytes(const ConfigSet& set) const;
  // Returns the fewest bytes from here to the end of the text.
  uint64_t bytes_to_end(const Config& config) const;

  // Keeps only the stacks that `sets` use, and renumbers them in the sets.
  void compact(std::span<ConfigSet*> sets);
  // Drops all frames except the oldest `num_kept`.
  void drop_frames(size_t num_kept);

 private:
  void begin_set(ConfigSet& out, StackId base = kBottom);
  void add(uint32_t state, StackId stack);
  void return_from(StackId stack, ConfigSet& out);
  void drain(ConfigSet& out);
  void drop_dominated(ConfigSet& set);
  bool mark_seen(const Config& config);
  void rehash(size_t num_slots);

  const Automaton* automaton_;
  std::vector<Frame> frames_;    // by StackId; index 0 is the bottom
  std::vector<uint32_t> slots_;  // hash table of frames_: id or 0
  // ---- the set being computed ----
  StackId base_ = kBottom;
  std::vector<Config> pending_;              // in the order in which they were found
  std::vector<Config> ordered_, dominated_;  // scratch of drop_dominated
  bool is_cut_ = false;
  size_t effort_ = 0;
  std::vector<Config> seen_;
  std::vector<uint32_t> seen_slots_;  // hash table of seen_: index + 1, or 0; empty until seen_ is long
};

}  // namespace capstan::grammar
