#pragma once
// Gives, shares and frees the blocks of the KV cache, and indexes full ones by their content (prefix cache). Integers
// only.
//
// A block's content is identified by (salt, ids of all tokens up to its end). The index key of a block is a hash over
// its parent's content id and its own token ids; on a hit the parent, the tokens and, for a first block, the salt are
// compared, so that a colliding hash is a miss. Content ids are never used twice: what hangs below an evicted block is
// unreachable.
//
// A block is: free (no content), cached (content, no user; in LRU order), or used (ref_count > 0). Shared blocks are
// never written.
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/engine/sequence.h"

namespace capstan {

class BlockManager {
 public:
  BlockManager(int num_blocks, int block_size, bool has_prefix_cache);

  int block_size() const { return block_size_; }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return num_cached_; }
  int num_available() const { return num_free() + num_cached_; }
  int64_t num_evictions() const { return num_evictions_; }
  int blocks_for(int num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  // Whether `seq`, which holds no blocks, could get blocks for `num_tokens` with its prefix from the cache.
  bool can_admit(const Sequence& seq, int num_tokens, bool uses_prefix_cache) const;
  // Gives `seq` its cached prefix and fresh blocks up to `num_tokens`; sets num_computed_tokens to what the prefix
  // holds.
  void admit(Sequence& seq, int num_tokens, bool uses_prefix_cache);
  // Full blocks of a computed prompt that hold no last token: those that choices of one prompt share.
  int num_shareable(const Sequence& leader) const;
  // Starts `seq` on those blocks of `leader`, whose prompt is computed; then as admit.
  void admit_from(Sequence& seq, const Sequence& leader, int num_tokens);
  // Blocks for `num_tokens` in all. False, and nothing taken, when there are not enough.
  bool grow(Sequence& seq, int num_tokens);

  // Offers the full blocks within the first `num_tokens` tokens, whose ids are known and whose K and V have been
  // enqueued.
  void publish(Sequence& seq, int num_tokens);
  // Takes the blocks that only `seq` uses out of the index (their contents are not to be trusted).
  void unpublish(Sequence& seq);
  // Gives back all blocks, the last first, so that the tail of a prefix is evicted before its head.
  void free(Sequence& seq);

  // Every block is in exactly one state and every index entry is right. Throws kInternal otherwise.
  void check_integrity(std::span<const Sequence* const> holders) const;

 private:
  struct Block {
    int32_t ref_count = 0;
    uint64_t content_id = 0;  // 0 = no content
    uint64_t parent_id = 0;   // content id of the block before, 0 for a first block
    uint64_t hash = 0;
    std::string salt;  // of a first block
    int32_t lru_previous = -1, lru_next = -1;
  };

  std::span<const int32_t> tokens_of(int32_t block_id) const;
  uint64_t key_of(const Sequence& seq, uint64_t parent_id, std::span<const int32_t> token_ids) const;
  // The block that holds this content, or -1.
  int32_t find(const Sequence& seq, uint64_t parent_id, std::span<const int32_t> token_ids) const;
  int match_prefix(const Sequence& seq, std::vector<int32_t>& out) const;
  int32_t take_block();
  void take_blocks(Sequence& seq, int num_tokens);
  void add_reference(int32_t block_id);
  void drop_content(int32_t block_id);
  void lru_push(int32_t block_id);
  void lru_remove(int32_t block_id);

  int block_size_;
  bool has_prefix_cache_;
  std::vector<Block> blocks_;
  std::vector<int32_t> block_tokens_;  // (num_blocks, block_size), of blocks with content
  std::vector<int32_t> free_;
  int32_t lru_oldest_ = -1, lru_newest_ = -1;
  int num_cached_ = 0;
  int64_t num_evictions_ = 0;
  uint64_t next_content_id_ = 1;
  std::unordered_map<uint64_t, int32_t> index_;  // hash → block id
  mutable std::vector<int32_t> matched_;         // scratch
};

}  // namespace capstan
