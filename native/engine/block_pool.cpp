#include "native/engine/block_pool.h"

#include <algorithm>

#include "native/base/check.h"

namespace capstan {

BlockPool::BlockPool(int num_blocks, int block_size, bool has_prefix_cache)
    : block_size_(block_size), blocks_(static_cast<size_t>(num_blocks)) {
  if (has_prefix_cache) {
    block_tokens_.resize(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size));
    index_.reserve(static_cast<size_t>(num_blocks));
  }
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int32_t id = num_blocks - 1; id >= 0; --id)
    free_.push_back(id);
}

std::span<int32_t> BlockPool::tokens_of(int32_t block_id) {
  const auto size = static_cast<size_t>(block_size_);
  return std::span(block_tokens_).subspan(static_cast<size_t>(block_id) * size, size);
}

std::span<const int32_t> BlockPool::tokens_of(int32_t block_id) const {
  const auto size = static_cast<size_t>(block_size_);
  return std::span(block_tokens_).subspan(static_cast<size_t>(block_id) * size, size);
}

int32_t BlockPool::find(const PrefixKey& key, std::span<const int32_t> token_ids) const {
  const auto found = index_.find(key);
  const bool is_same = found != index_.end() && std::ranges::equal(tokens_of(found->second), token_ids);
  return is_same ? found->second : -1;
}

int32_t BlockPool::find(const PrefixKey& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? -1 : found->second;
}

int32_t BlockPool::take() {
  int32_t block_id = -1;
  if (!free_.empty()) {
    block_id = free_.back();
    free_.pop_back();
  } else {
    block_id = lru_oldest_;
    CAPSTAN_CHECK(block_id >= 0);
    lru_remove(block_id);
    drop_content(block_id);
    ++num_evictions_;
  }
  at(block_id).ref_count = 1;
  return block_id;
}

void BlockPool::add_user(int32_t block_id) {
  if (at(block_id).ref_count++ == 0) lru_remove(block_id);
}

void BlockPool::remove_user(int32_t block_id) {
  Block& block = at(block_id);
  CAPSTAN_CHECK(block.ref_count > 0);
  if (--block.ref_count > 0) return;
  if (block.has_content)
    lru_insert(block_id);
  else
    free_.push_back(block_id);
}

void BlockPool::publish(int32_t block_id, const PrefixKey& key, std::span<const int32_t> token_ids) {
  Block& block = at(block_id);
  if (block.has_content || !index_.emplace(key, block_id).second) return;
  block.has_content = true;
  block.key = key;
  std::ranges::copy(token_ids, tokens_of(block_id).begin());
}

void BlockPool::set_transient(int32_t block_id, bool is_transient) {
  Block& block = at(block_id);
  block.is_transient = is_transient && block.has_content;
  if (block.ref_count > 0 || !block.has_content) return;
  lru_remove(block_id);
  lru_insert(block_id);
}

void BlockPool::unpublish(int32_t block_id) {
  drop_content(block_id);
  if (at(block_id).ref_count > 0) return;
  lru_remove(block_id);
  free_.push_back(block_id);
}

void BlockPool::drop_content(int32_t block_id) {
  Block& block = at(block_id);
  if (!block.has_content) return;
  index_.erase(block.key);
  block.has_content = block.is_transient = false;
}

// Inserts a block as the newest, or as the oldest if it is transient.
void BlockPool::lru_insert(int32_t block_id) {
  Block& block = at(block_id);
  block.lru_previous = block.is_transient ? -1 : lru_newest_;
  block.lru_next = block.is_transient ? lru_oldest_ : -1;
  (block.lru_previous >= 0 ? at(block.lru_previous).lru_next : lru_oldest_) = block_id;
  (block.lru_next >= 0 ? at(block.lru_next).lru_previous : lru_newest_) = block_id;
  ++num_cached_;
}

void BlockPool::lru_remove(int32_t block_id) {
  Block& block = at(block_id);
  (block.lru_previous >= 0 ? at(block.lru_previous).lru_next : lru_oldest_) = block.lru_next;
  (block.lru_next >= 0 ? at(block.lru_next).lru_previous : lru_newest_) = block.lru_previous;
  block.lru_previous = block.lru_next = -1;
  --num_cached_;
}

void BlockPool::check_integrity(std::span<const int32_t> num_users) const {
  std::vector<int> num_lists(blocks_.size());  // a block without a user is in one list: free or cached
  for (const int32_t block_id : free_) {
    CAPSTAN_CHECK(!at(block_id).has_content);
    ++num_lists[static_cast<size_t>(block_id)];
  }
  int num_cached = 0;
  int32_t previous = -1;
  for (int32_t block_id = lru_oldest_; block_id >= 0; previous = block_id, block_id = at(block_id).lru_next) {
    CAPSTAN_CHECK(++num_cached <= num_cached_);
    CAPSTAN_CHECK(at(block_id).lru_previous == previous && at(block_id).has_content);
    ++num_lists[static_cast<size_t>(block_id)];
  }
  CAPSTAN_CHECK(previous == lru_newest_ && num_cached == num_cached_);
  size_t num_with_content = 0;
  for (size_t block_id = 0; block_id < blocks_.size(); ++block_id) {
    const Block& block = blocks_[block_id];
    CAPSTAN_CHECK(block.ref_count == num_users[block_id]);
    CAPSTAN_CHECK(num_lists[block_id] == (block.ref_count == 0 ? 1 : 0));
    if (!block.has_content) continue;
    ++num_with_content;
    const auto found = index_.find(block.key);
    CAPSTAN_CHECK(found != index_.end() && found->second == static_cast<int32_t>(block_id));
  }
  CAPSTAN_CHECK(num_with_content == index_.size());
}

}  // namespace capstan
