#pragma once
// The blocks of one KV group. A block is free (no content), cached (content but no user, in LRU order) or used
// (ref_count > 0). Full blocks are indexed by the key of the prefix that ends with them (prefix cache). A hit also
// compares the token ids of the block. Shared blocks are never written.
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "native/engine/prefix_key.h"

namespace capstan {

class BlockPool {
 public:
  BlockPool(int num_blocks, int block_size, bool has_prefix_cache);

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return num_cached_; }
  int num_available() const { return num_free() + num_cached_; }
  int num_with_content() const { return static_cast<int>(index_.size()); }
  int64_t num_evictions() const { return num_evictions_; }
  bool is_used(int32_t block_id) const { return at(block_id).ref_count > 0; }
  bool is_shared(int32_t block_id) const { return at(block_id).ref_count > 1; }
  bool is_transient(int32_t block_id) const { return at(block_id).is_transient; }

  // Returns the block with this content, or -1.
  int32_t find(const PrefixKey& key, std::span<const int32_t> token_ids) const;
  // Returns the block with this key, or -1.
  int32_t find(const PrefixKey& key) const;
  // Returns the tokens of a block with content.
  std::span<const int32_t> token_ids(int32_t block_id) const { return tokens_of(block_id); }
  // Returns a block with one user and no content. There must be an available one. The oldest cached block is evicted
  // when no block is free.
  int32_t take();
  void add_user(int32_t block_id);
  // Removes one user. A block without users is cached if it has content, as the newest one.
  void remove_user(int32_t block_id);

  // Adds a full block to the prefix cache, unless a block with this content is there already.
  void publish(int32_t block_id, const PrefixKey& key, std::span<const int32_t> token_ids);
  // A transient block is evicted before all others while it has no user. Otherwise, makes it the newest.
  void set_transient(int32_t block_id, bool is_transient);
  // Removes a block from the prefix cache.
  void unpublish(int32_t block_id);

  // Throws kInternal when the state contradicts itself or `num_users` (num_blocks).
  void check_integrity(std::span<const int32_t> num_users) const;

 private:
  struct Block {
    int32_t ref_count = 0;
    bool has_content = false;
    bool is_transient = false;
    PrefixKey key{};
    int32_t lru_previous = -1, lru_next = -1;
  };

  Block& at(int32_t block_id) { return blocks_[static_cast<size_t>(block_id)]; }
  const Block& at(int32_t block_id) const { return blocks_[static_cast<size_t>(block_id)]; }
  std::span<int32_t> tokens_of(int32_t block_id);
  std::span<const int32_t> tokens_of(int32_t block_id) const;
  void drop_content(int32_t block_id);
  void lru_insert(int32_t block_id);
  void lru_remove(int32_t block_id);

  int block_size_;
  std::vector<Block> blocks_;
  std::vector<int32_t> block_tokens_;  // (num_blocks, block_size), of blocks with content
  std::vector<int32_t> free_;
  int32_t lru_oldest_ = -1, lru_newest_ = -1;
  int num_cached_ = 0;
  int64_t num_evictions_ = 0;
  std::unordered_map<PrefixKey, int32_t, PrefixKeyHash> index_;
};

}  // namespace capstan
