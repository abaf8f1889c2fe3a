#pragma once
// Which tokens an automaton's state takes, whatever its stack. A token that would leave the state's rule is kept apart:
// the bytes behind that point are what the caller checks against the real stack.
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "native/grammar/mask_store.h"
#include "native/grammar/stack_machine.h"

namespace capstan::grammar {

// One grammar's masks: made when they are wanted, for any number of threads. A mask does not depend on those made
// before it.
class MaskCache {
 public:
  static constexpr size_t kMaxSetBytes = size_t{8} << 20;  // of the sets kept between masks
  // What making one mask may cost, in configurations looked at: about a tenth of a second. Tokens not reached by then
  // are left out, which is safe.
  static constexpr size_t kMaxWork = 2'000'000;
  // What making one mask may hold on to, likewise: beyond this no further set is made.
  static constexpr size_t kMaxWorkingBytes = size_t{64} << 20;
  // A mask that differs from one at hand in so many tokens at most is made on the spot.
  static constexpr size_t kMaxQuickTokens = 256;

  MaskCache(const Automaton& automaton, const TokenTable& tokens) : tokens_(tokens), machine_(automaton) {}
  ~MaskCache();

  MaskKey key_of(const Config& config, const Frame& top) const;
  std::shared_ptr<const LocalMask> get(const MaskKey& key, const Frame& top);
  // Null where getting it would take more than `work_left`, which it is taken from, or a wait.
  std::shared_ptr<const LocalMask> get_quickly(const MaskKey& key, const Frame& top, size_t& work_left);
  // Makes masks that are likely to be wanted, until the deadline.
  void warm_up(std::chrono::steady_clock::time_point deadline);
  size_t size_bytes() const { return tokens_.masks().size_bytes(this); }

 private:
  static constexpr int32_t kUnknown = -2, kDead = -1;
  static constexpr size_t kEffortUnit = 16;
  struct SetHash {
    size_t operator()(const ConfigSet& set) const;
  };
  // The mask that another one is like, up to tokens of so many bytes.
  struct Base {
    MaskKey key;
    Frame top;
    size_t num_bytes;
  };
  struct Known {
    ConfigSet set;
    bool is_cut = false;
    std::array<int32_t, 256> next;       // kUnknown where no byte has led yet
    std::array<uint16_t, 256> effort{};  // of finding it, in units of kEffortUnit
    uint32_t used_round = 0;             // the mask that `used` is about
    std::array<uint64_t, 4> used{};      // bit per byte that its making took
  };

  std::optional<Base> base_of(const MaskKey& key, const Frame& top) const;
  std::shared_ptr<const LocalMask> make(const MaskKey& key, const Frame& top, size_t max_work);
  bool walk(const MaskKey& key, const Frame& top, size_t min_bytes, LocalMask& mask);
  int32_t id_of(const ConfigSet& set, bool is_cut);
  int32_t next(int32_t set, uint8_t byte);
  size_t working_bytes() const { return set_bytes_ + machine_.size_bytes(); }
  void keep_sets();
  void forget_sets();

  const TokenTable& tokens_;
  std::mutex make_mutex_;  // of all below, held while a mask is made
  // ---- the automaton's sets met so far, and where each byte leads: a deterministic automaton made on the way ----
  StackMachine machine_;
  std::deque<Known> sets_;  // which grows without a second copy
  std::unordered_map<ConfigSet, int32_t, SetHash> set_ids_;
  size_t set_bytes_ = 0;
  size_t kept_bytes_ = 0;  // what the vocabulary's count has of it
  ConfigSet scratch_;
  // ---- of the mask being made ----
  uint32_t round_ = 0;
  size_t work_ = 0, max_work_ = 0;
  bool is_inexact_ = false;  // too much work, or a set without some of its configurations
};

}  // namespace capstan::grammar
