#pragma once
// Runs an Automaton over bytes. A configuration is a state and a stack of calls; stacks are immutable lists that share
// their tails, so that a set of configurations is copied by copying a few numbers. Sets are bounded: beyond kMaxConfigs
// the last ones are dropped, which can only make the language narrower.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "native/grammar/automaton.h"

namespace capstan::grammar {

constexpr size_t kMaxConfigs = 512;  // in a set, and twice that on the way to one

using StackId = uint32_t;
constexpr StackId kBottom = 0;  // nothing to return to

struct Frame {
  uint32_t call = 0;   // edge that is under way
  uint32_t count = 0;  // counted calls: the round under way, from 1; held at `min` once no more rounds matter
  StackId parent = kBottom;
  bool operator==(const Frame&) const = default;
};

struct Config {
  uint32_t state = 0;
  StackId stack = kBottom;
  auto operator<=>(const Config&) const = default;
};

// Where the text read so far may have led. Configurations are those that can take a byte; ascending.
struct ConfigSet {
  std::vector<Config> configs;
  bool is_at_bottom = false;  // the text may end here: the outermost rule is complete
  bool is_dead() const { return configs.empty() && !is_at_bottom; }
  bool operator==(const ConfigSet&) const = default;
};

class StackMachine {
 public:
  explicit StackMachine(const Automaton& automaton) : automaton_(&automaton) { clear(); }

  const Automaton& automaton() const { return *automaton_; }
  const Frame& frame(StackId stack) const { return frames_[stack]; }
  size_t num_frames() const { return frames_.size(); }
  size_t size_bytes() const { return frames_.size() * sizeof(Frame) + slots_.size() * sizeof(uint32_t); }
  void clear();  // forgets all stacks

  StackId push(const Frame& frame);
  // The set before the first byte.
  ConfigSet start();
  // The set after the rules that were called by the tops of `stacks` have ended.
  void expand_returns(std::span<const StackId> stacks, ConfigSet& out);
  // One byte: false, with `out` dead, when no configuration takes it. `out` is not `in`.
  bool step(const ConfigSet& in, uint8_t byte, ConfigSet& out);
  // A marker as a whole, likewise.
  bool step_token(const ConfigSet& in, int32_t token_id, ConfigSet& out);
  // Whether the last set made lacks configurations for their number.
  bool is_cut() const { return is_cut_; }
  // What the last set took to make, in configurations and calls looked at. Many may lead to few.
  size_t effort() const { return effort_; }
  // The bytes that step() takes.
  std::array<uint64_t, 4> first_bytes(const ConfigSet& set) const;
  // Fewest bytes from here to the end of the text.
  uint64_t bytes_to_end(const Config& config) const;

  // Keeps only the stacks that `sets` use, and renumbers them there.
  void compact(std::span<ConfigSet*> sets);
  // Forgets all stacks but the oldest ones.
  void drop_frames(size_t num_kept);

 private:
  void begin_set(ConfigSet& out);
  void add(uint32_t state, StackId stack);
  void return_from(StackId stack, ConfigSet& out);
  void drain(ConfigSet& out);
  void drop_dominated(ConfigSet& set);
  bool mark_seen(const Config& config);
  void rehash(size_t num_slots);

  const Automaton* automaton_;
  std::vector<Frame> frames_;    // by StackId; the first is the bottom
  std::vector<uint32_t> slots_;  // hash table of frames_: id or 0
  // ---- of the set being made ----
  std::vector<Config> pending_;
  bool is_cut_ = false;
  size_t effort_ = 0;
  std::vector<Config> seen_;
  std::vector<uint32_t> seen_slots_;  // hash table of seen_: index + 1 or 0; used once seen_ is long
};

}  // namespace capstan::grammar
