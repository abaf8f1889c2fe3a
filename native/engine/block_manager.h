#pragma once
// Allocates, shares and frees the blocks of the KV cache, and indexes full blocks by content (prefix cache). Integers
// only.
//
// The content of a block is identified by the salt and the ids of all tokens up to its end. The index key of a block is
// a hash of its parent's content id and its own token ids. A hit also compares the parent, the tokens and, for a first
// block, the salt, so a colliding hash counts as a miss. Content ids are never reused: the descendants of an evicted
// block become unreachable.
//
// A block is free (no content), cached (content but no user, in LRU order) or used (ref_count > 0). Shared blocks are
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

  // Returns whether there are blocks for `num_tokens` of `seq`, which holds none yet, counting its cached prefix.
  bool can_admit(const Sequence& seq, int num_tokens, bool uses_prefix_cache) const;
  // Assigns `seq` its cached prefix and new blocks for the rest of `num_tokens`. Sets num_computed_tokens to the length
  // of the prefix.
  void admit(Sequence& seq, int num_tokens, bool uses_prefix_cache);
  // Number of prompt blocks that the choices of one request share: the full ones without the last prompt token.
  int num_shareable(const Sequence& leader) const;
  // Like admit, but shares those blocks of `leader`, whose prompt must be computed.
  void admit_from(Sequence& seq, const Sequence& leader, int num_tokens);
  // Extends `seq` to blocks for `num_tokens` in total. Returns false, with nothing changed, when there are not enough.
  bool grow(Sequence& seq, int num_tokens);
  // Frees the last blocks of `seq` that `num_tokens` do not need. They must not be published or shared.
  void shrink(Sequence& seq, int num_tokens);

  // Adds the full blocks within the first `num_tokens` tokens to the prefix cache. Their ids must be known and the
  // steps that fill them enqueued.
  void publish(Sequence& seq, int num_tokens);
  // Removes the blocks that only `seq` uses from the prefix cache, because their contents are invalid.
  void unpublish(Sequence& seq);
  // Frees all blocks of `seq`, the last one first, so that the tail of a prefix is evicted before its head.
  void free(Sequence& seq);

  // Throws kInternal when the state contradicts itself or the block tables of `users`, which are all that hold blocks.
  void check_integrity(std::span<Sequence* const> users) const;

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
  // Returns the block with this content, or -1.
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
