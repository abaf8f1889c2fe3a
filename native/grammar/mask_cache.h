#pragma once
// Which tokens an automaton's state takes, whatever its stack. A token that would leave the state's rule is kept apart: the bytes behind that point
// are what the caller checks against the real stack.
#include <chrono>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "native/grammar/stack_machine.h"
#include "native/grammar/token_trie.h"

namespace capstan::grammar {

// A state, and the counted call around it if its rule is repeated: as far as a token can tell, so counts that no token can use up are one.
struct MaskKey {
  static constexpr uint32_t kNoCall = UINT32_MAX;
  uint32_t state = 0;
  uint32_t call = kNoCall;
  uint32_t rounds_left_min = 0, rounds_left_max = 0;  // after the round under way
  bool operator==(const MaskKey&) const = default;
};

struct MaskKeyHash {
  size_t operator()(const MaskKey& key) const {
    const uint64_t a = uint64_t{key.state} << 32 | key.call, b = uint64_t{key.rounds_left_min} << 32 | key.rounds_left_max;
    const uint64_t h = a * 0x9E3779B97F4A7C15 ^ (b + 1) * 0xD1B54A32D192ED03;
    return static_cast<size_t>(h ^ h >> 31);
  }
};

struct LocalMask {
  std::vector<uint32_t> words;  // (num_mask_words) bit per id that is taken; empty when `ids` says it shorter
  std::vector<int32_t> ids;
  TokenTrie suffixes;           // what is left, behind the end of the rule, of tokens that are not among those
  size_t size_bytes() const { return words.size() * 4 + ids.size() * 4 + suffixes.size_bytes() + sizeof(LocalMask); }
};

// Lazily filled, bounded, for any number of threads.
class MaskCache {
 public:
  static constexpr size_t kMaxBytes = size_t{96} << 20;
  static constexpr size_t kMaxSets = 8192;            // kept between masks
  // What making one mask may cost, in configurations: about a tenth of a second. Tokens not reached by then are left out, which is safe.
  static constexpr size_t kMaxWork = 2'000'000;

  MaskCache(const Automaton& automaton, const TokenTable& tokens) : tokens_(tokens), machine_(automaton) {}

  MaskKey key_of(const Config& config, const Frame& top) const;
  std::shared_ptr<const LocalMask> get(const MaskKey& key, const Frame& top);
  // Makes masks that are likely to be wanted, until the deadline.
  void warm_up(std::chrono::steady_clock::time_point deadline);
  size_t size_bytes() const;

 private:
  static constexpr int32_t kUnknown = -2, kDead = -1;
  struct SetHash {
    size_t operator()(const ConfigSet& set) const;
  };

  std::shared_ptr<const LocalMask> make(const MaskKey& key, const Frame& top);
  int32_t id_of(const ConfigSet& set);
  int32_t next(int32_t set, uint8_t byte);
  void forget_sets();

  const TokenTable& tokens_;
  mutable std::mutex mutex_;
  std::unordered_map<MaskKey, std::shared_ptr<const LocalMask>, MaskKeyHash> masks_;
  size_t size_bytes_ = 0;
  // ---- the automaton's sets met so far, and where each byte leads: a deterministic automaton made on the way ----
  StackMachine machine_;
  std::vector<ConfigSet> sets_;
  std::vector<std::array<int32_t, 256>> transitions_;  // (num sets)
  std::unordered_map<ConfigSet, int32_t, SetHash> set_ids_;
  ConfigSet scratch_;
  size_t work_ = 0;  // of the mask being made
};

}  // namespace capstan::grammar
