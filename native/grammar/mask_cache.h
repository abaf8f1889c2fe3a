#pragma once
// Computes which tokens a state of an automaton accepts, for any stack. A token that leaves the state's rule is stored
// separately, with the bytes after that point; the caller checks those against the real stack.
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

// The masks of one grammar, computed on demand. Thread-safe. A mask does not depend on the masks computed before it.
class MaskCache {
 public:
  static constexpr size_t kMaxSetBytes = size_t{8} << 20;  // of the sets kept between masks
  // Limit of visited configurations per mask, about a tenth of a second. Tokens that are not reached by then are left
  // out, which only narrows the language.
  static constexpr size_t kMaxWork = 2'000'000;
  // get_quickly computes a mask only when it differs from an existing one in at most this many tokens.
  static constexpr size_t kMaxQuickTokens = 256;

  MaskCache(const Automaton& automaton, const TokenTable& tokens);
  ~MaskCache();

  MaskKey key_of(const Config& config, const Frame& top) const;
  std::shared_ptr<const LocalMask> get(const MaskKey& key, const Frame& top);
  // Returns null when computing the mask would take more than `work_left`, or would have to wait for another thread.
  // Subtracts the work from `work_left`.
  std::shared_ptr<const LocalMask> get_quickly(const MaskKey& key, const Frame& top, size_t& work_left);
  // Computes masks that are likely to be needed, until the deadline.
  void warm_up(std::chrono::steady_clock::time_point deadline);
  size_t size_bytes() const { return tokens_.masks().size_bytes(this); }

 private:
  static constexpr int32_t kUnknown = -2, kDead = -1;
  static constexpr size_t kEffortUnit = 16;
  struct SetHash {
    size_t operator()(const ConfigSet& set) const;
  };
  // The mask that another mask equals for tokens of at most `num_bytes` bytes.
  struct BaseMask {
    MaskKey key;
    Frame top;
    size_t num_bytes;
  };
  // A configuration set as a state of the lazy DFA.
  struct DfaState {
    ConfigSet set;
    bool is_cut = false;                 // the set lacks configurations
    std::array<int32_t, 256> next;       // by byte: DFA state, kDead or kUnknown
    std::array<uint16_t, 256> effort{};  // by byte: effort of computing `next`, in units of kEffortUnit
    uint32_t used_round = 0;             // the round that `used` belongs to
    std::array<uint64_t, 4> used{};      // one bit per byte that the mask of that round followed
  };

  std::optional<BaseMask> base_of(const MaskKey& key, const Frame& top) const;
  std::shared_ptr<const LocalMask> make(const MaskKey& key, const Frame& top, size_t max_work);
  bool walk(const MaskKey& key, const Frame& top, size_t min_bytes, LocalMask& mask);
  int32_t id_of(const ConfigSet& set, bool is_cut);
  int32_t next(int32_t id, uint8_t byte);
  const ConfigSet& set_of(int32_t id) const { return states_[static_cast<size_t>(id)].set; }
  size_t working_bytes() const { return set_bytes_ + machine_.size_bytes(); }
  void bound_kept_sets();
  void forget_sets();

  const TokenTable& tokens_;
  std::mutex make_mutex_;  // protects everything below; held while a mask is computed
  // ---- the lazy DFA: the configuration sets reached so far and their successors ----
  StackMachine machine_;
  std::deque<DfaState> states_;  // a deque, because it grows without moving its elements
  std::unordered_map<ConfigSet, int32_t, SetHash> set_ids_;
  size_t set_bytes_ = 0;
  size_t kept_bytes_ = 0;  // the size that MaskStore counts for the sets of this grammar
  ConfigSet scratch_;
  // ---- the mask being computed ----
  uint32_t round_ = 0;
  size_t work_ = 0, max_work_ = 0;
  bool is_inexact_ = false;  // the work limit was reached, or a set lacks configurations
};

}  // namespace capstan::grammar
