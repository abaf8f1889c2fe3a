#pragma once
// The masks of all grammars of one vocabulary. Bounded: the least recently used ones go.
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "native/grammar/token_trie.h"

namespace capstan::grammar {

// A state, and the counted call around it if its rule is repeated: as far as a token can tell, so counts that no token
// can use up are one.
struct MaskKey {
  static constexpr uint32_t kNoCall = UINT32_MAX;
  uint32_t state = 0;
  uint32_t call = kNoCall;
  uint32_t rounds_left_min = 0, rounds_left_max = 0;  // after the round under way
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

struct LocalMask {
  std::vector<uint32_t> words;  // (num_mask_words) bit per id that is taken; empty when `ids` says it shorter
  std::vector<int32_t> ids;
  TokenTrie suffixes;  // what is left, behind the end of the rule, of tokens that are not among those
  // Near the bounds of a counted call only long tokens can tell the rounds that are left. Such a mask is `base`, but
  // for tokens of more than `base_bytes` bytes: of those, `ids` and `suffixes` say all, and `removed` are the ones that
  // only `base` takes.
  std::shared_ptr<const LocalMask> base;
  MaskKey base_key;
  size_t base_bytes = 0;
  std::vector<int32_t> removed;
  size_t work = 0;           // that it took, in configurations
  size_t working_bytes = 0;  // that were held when it was made

  size_t size_bytes() const {
    return words.size() * 4 + ids.size() * 4 + removed.size() * 4 + suffixes.size_bytes() + sizeof(LocalMask);
  }
};

// For any number of threads.
class MaskStore {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 20;
  static constexpr size_t kMaxSetBytes = size_t{128} << 20;
  using Owner = const void*;  // a grammar

  explicit MaskStore(size_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  // Null where there is none.
  std::shared_ptr<const LocalMask> find(Owner owner, const MaskKey& key);
  void add(Owner owner, const MaskKey& key, std::shared_ptr<const LocalMask> mask);
  void forget(Owner owner);
  size_t size_bytes() const;
  size_t size_bytes(Owner owner) const;

  // Of what the grammars keep for masks to come.
  std::atomic<size_t> set_bytes{0};

 private:
  struct Entry {
    Owner owner;
    MaskKey key;
    std::shared_ptr<const LocalMask> mask;
  };
  using Entries = std::list<Entry>;
  using Index = std::unordered_map<MaskKey, Entries::iterator, MaskKeyHash>;

  void remove(Entries::iterator at);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::unordered_map<Owner, Index> indexes_;
  size_t size_bytes_ = 0;
};

}  // namespace capstan::grammar
