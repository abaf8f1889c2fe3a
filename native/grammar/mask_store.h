#pragma once
// The memory that all grammars of one vocabulary keep: their automata, the configuration sets between masks, and the
// masks. Evicts the least recently used masks when all together exceed a limit. Two things are not counted: the sets of
// the masks that are being computed, of up to max_working_bytes() each, and the stacks of the matchers.
#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "native/grammar/token_trie.h"

namespace capstan::grammar {

// The key of a mask: a state, and the counted call on top of the stack if the state's rule is repeated. The rounds left
// are limited to what one token can complete, so larger counts share one key.
struct MaskKey {
  static constexpr uint32_t kNoCall = UINT32_MAX;
  uint32_t state = 0;
  uint32_t call = kNoCall;
  uint32_t rounds_left_min = 0, rounds_left_max = 0;  // after the current round
  bool operator==(const MaskKey&) const = default;
};

struct MaskKeyHash {
  size_t operator()(const MaskKey& key) const {
    const uint64_t a = uint64_t{key.state} << 32 | key.call,
                   b = uint64_t{key.rounds_left_min} << 32 | key.rounds_left_max;
    const uint64_t h = a * 0x9E3779B97F4A7C15 ^ (b + 1) * 0xD1B54A32D192ED03;
    return static_cast<size_t>(h ^ h >> 31);
  }
};

// The tokens that a state accepts, for any stack below the key.
struct LocalMask {
  std::vector<uint32_t> words;  // (num_mask_words) one bit per accepted id; empty when `ids` is shorter
  std::vector<int32_t> ids;     // accepted ids, if `words` is empty
  TokenTrie suffixes;           // tokens that leave the rule: their bytes after the end of the rule
  // Near the bounds of a counted call, only long tokens depend on the rounds left. Such a mask equals `base`, except
  // for tokens of more than `base_bytes` bytes. Of those, `ids` and `suffixes` hold all that are accepted, and
  // `removed` holds the ones that only `base` accepts.
  std::shared_ptr<const LocalMask> base;
  MaskKey base_key;
  size_t base_bytes = 0;
  std::vector<int32_t> removed;
  size_t work = 0;           // visited configurations
  size_t working_bytes = 0;  // memory of the walk when the mask was complete

  size_t size_bytes() const {
    return words.size() * 4 + ids.size() * 4 + removed.size() * 4 + suffixes.size_bytes() + sizeof(LocalMask);
  }
};

// Thread-safe.
class MaskStore {
 public:
  using Owner = const void*;  // a grammar

  explicit MaskStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  // The limit of the sets of a mask that is being computed. A small cache must not make the masks inexact.
  size_t max_working_bytes() const { return std::max(max_bytes_ / 4, size_t{8} << 20); }

  // Returns null when there is no such mask.
  std::shared_ptr<const LocalMask> find(Owner owner, const MaskKey& key);
  // Keeps nothing when the mask does not fit beside the automata and the sets.
  void add(Owner owner, const MaskKey& key, std::shared_ptr<const LocalMask> mask);
  // Removes all masks of a grammar.
  void forget(Owner owner);
  size_t size_bytes() const;  // of the masks
  size_t size_bytes(Owner owner) const;
  size_t total_bytes() const;

  // Counts an automaton, and evicts masks until it fits. Throws kInvalidArgument for an automaton above half of the
  // limit, and kQueueFull when all automata together, those of grammars under construction included, exceed the limit.
  void add_automaton(size_t bytes);
  void remove_automaton(size_t bytes);
  // Counts the sets that a grammar keeps: `bytes` now instead of `old_bytes`. Returns false, with nothing changed, when
  // the sets of all grammars would exceed their share.
  bool resize_sets(size_t old_bytes, size_t bytes);

 private:
  struct Entry {
    Owner owner;
    MaskKey key;
    std::shared_ptr<const LocalMask> mask;
  };
  using Entries = std::list<Entry>;
  using Index = std::unordered_map<MaskKey, Entries::iterator, MaskKeyHash>;

  void touch(Index& index, const MaskKey& key);
  void evict();
  void remove(Entries::iterator at);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  Entries entries_;  // most recently used first
  std::unordered_map<Owner, Index> indexes_;
  size_t size_bytes_ = 0, automaton_bytes_ = 0, set_bytes_ = 0;
};

}  // namespace capstan::grammar
