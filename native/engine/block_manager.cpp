#include "native/engine/block_manager.h"

#include <algorithm>
#include <functional>

#include "native/base/check.h"
#include "native/base/hash.h"

namespace capstan {

BlockManager::BlockManager(int num_blocks, int block_size, bool has_prefix_cache)
    : block_size_(block_size), has_prefix_cache_(has_prefix_cache), blocks_(static_cast<size_t>(num_blocks)) {
  if (has_prefix_cache) {
    block_tokens_.resize(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size));
    index_.reserve(static_cast<size_t>(num_blocks));
  }
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int32_t id = num_blocks - 1; id >= 0; --id)
    free_.push_back(id);
}

std::span<const int32_t> BlockManager::tokens_of(int32_t block_id) const {
  return {block_tokens_.data() + static_cast<size_t>(block_id) * static_cast<size_t>(block_size_),
          static_cast<size_t>(block_size_)};
}

uint64_t BlockManager::key_of(const Sequence& seq, uint64_t parent_id, std::span<const int32_t> token_ids) const {
  const uint64_t seed = parent_id != 0 ? parent_id : std::hash<std::string>{}(seq.cache_salt);
  return hash_ids(seed, token_ids);
}

int32_t BlockManager::find(const Sequence& seq, uint64_t parent_id, std::span<const int32_t> token_ids) const {
  const auto found = index_.find(key_of(seq, parent_id, token_ids));
  if (found == index_.end()) return -1;
  const Block& block = blocks_[static_cast<size_t>(found->second)];
  const bool is_same = block.parent_id == parent_id && (parent_id != 0 || block.salt == seq.cache_salt) &&
                       std::ranges::equal(tokens_of(found->second), token_ids);
  return is_same ? found->second : -1;
}

// NOTE: never matches the last token: its logits are needed, so it is recomputed into a private block.
int BlockManager::match_prefix(const Sequence& seq, std::vector<int32_t>& out) const {
  out.clear();
  if (!has_prefix_cache_) return 0;
  const int max_blocks = (seq.num_tokens() - 1) / block_size_;
  uint64_t parent_id = 0;
  for (int i = 0; i < max_blocks; ++i) {
    const std::span<const int32_t> token_ids(
        seq.token_ids.data() + static_cast<size_t>(i) * static_cast<size_t>(block_size_),
        static_cast<size_t>(block_size_));
    const int32_t block_id = find(seq, parent_id, token_ids);
    if (block_id < 0) break;
    out.push_back(block_id);
    parent_id = blocks_[static_cast<size_t>(block_id)].content_id;
  }
  return static_cast<int>(out.size());
}

bool BlockManager::can_admit(const Sequence& seq, int num_tokens, bool uses_prefix_cache) const {
  const int num_needed = blocks_for(num_tokens);
  if (num_needed <= num_free()) return true;
  if (!uses_prefix_cache) return num_needed <= num_available();
  const int num_matched = match_prefix(seq, matched_);
  // Matched blocks without a user are counted as available, but this admission takes them.
  const auto is_unused = [&](int32_t id) { return blocks_[static_cast<size_t>(id)].ref_count == 0; };
  const int num_unused = static_cast<int>(std::ranges::count_if(matched_, is_unused));
  return num_needed - num_matched <= num_available() - num_unused;
}

void BlockManager::admit(Sequence& seq, int num_tokens, bool uses_prefix_cache) {
  CAPSTAN_CHECK(seq.block_table.empty());
  const int num_matched = uses_prefix_cache ? match_prefix(seq, matched_) : 0;
  for (int i = 0; i < num_matched; ++i)
    add_reference(matched_[static_cast<size_t>(i)]);
  seq.block_table.assign(matched_.begin(), matched_.begin() + num_matched);
  seq.num_computed_tokens = num_matched * block_size_;
  seq.num_published_blocks = num_matched;
  seq.content_id = num_matched > 0 ? blocks_[static_cast<size_t>(seq.block_table.back())].content_id : 0;
  take_blocks(seq, num_tokens);
}

int BlockManager::num_shareable(const Sequence& leader) const {
  return (leader.num_prompt_tokens - 1) / block_size_;
}

void BlockManager::admit_from(Sequence& seq, const Sequence& leader, int num_tokens) {
  CAPSTAN_CHECK(seq.block_table.empty());
  const int num_shared = num_shareable(leader);
  for (int i = 0; i < num_shared; ++i) {
    add_reference(leader.block_table[static_cast<size_t>(i)]);
    seq.block_table.push_back(leader.block_table[static_cast<size_t>(i)]);
  }
  seq.num_computed_tokens = num_shared * block_size_;
  // The leader's blocks need not be published, so publish() follows the chain from the first block.
  seq.num_published_blocks = 0;
  seq.content_id = 0;
  take_blocks(seq, num_tokens);
}

bool BlockManager::grow(Sequence& seq, int num_tokens) {
  if (blocks_for(num_tokens) - static_cast<int>(seq.block_table.size()) > num_available()) return false;
  take_blocks(seq, num_tokens);
  return true;
}

void BlockManager::shrink(Sequence& seq, int num_tokens) {
  while (static_cast<int>(seq.block_table.size()) > blocks_for(num_tokens)) {
    Block& block = blocks_[static_cast<size_t>(seq.block_table.back())];
    CAPSTAN_CHECK(block.ref_count == 1 && block.content_id == 0);
    block.ref_count = 0;
    free_.push_back(seq.block_table.back());
    seq.block_table.pop_back();
  }
}

void BlockManager::take_blocks(Sequence& seq, int num_tokens) {
  while (static_cast<int>(seq.block_table.size()) < blocks_for(num_tokens))
    seq.block_table.push_back(take_block());
}

int32_t BlockManager::take_block() {
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
  blocks_[static_cast<size_t>(block_id)].ref_count = 1;
  return block_id;
}

void BlockManager::add_reference(int32_t block_id) {
  Block& block = blocks_[static_cast<size_t>(block_id)];
  if (block.ref_count++ == 0) lru_remove(block_id);
}

void BlockManager::publish(Sequence& seq, int num_tokens) {
  if (!has_prefix_cache_) return;
  const int num_full = num_tokens / block_size_;
  for (int i = seq.num_published_blocks; i < num_full; ++i) {
    const int32_t block_id = seq.block_table[static_cast<size_t>(i)];
    const std::span<const int32_t> token_ids(
        seq.token_ids.data() + static_cast<size_t>(i) * static_cast<size_t>(block_size_),
        static_cast<size_t>(block_size_));
    const int32_t known = find(seq, seq.content_id, token_ids);
    if (known >= 0) {
      // Another sequence published the same content first. This block stays private and the chain continues there.
      seq.content_id = blocks_[static_cast<size_t>(known)].content_id;
    } else {
      Block& block = blocks_[static_cast<size_t>(block_id)];
      // A sequence that shares this block published it below a parent that was evicted since. The block is unreachable,
      // so the rest of this sequence stays private.
      if (block.content_id != 0) return;
      const uint64_t hash = key_of(seq, seq.content_id, token_ids);
      if (!index_.emplace(hash, block_id).second) return;  // a hash collision: the rest stays private
      block.hash = hash;
      block.parent_id = seq.content_id;
      block.content_id = next_content_id_++;
      block.salt = seq.content_id == 0 ? seq.cache_salt : std::string();
      std::ranges::copy(token_ids, block_tokens_.begin() + static_cast<ptrdiff_t>(block_id) * block_size_);
      seq.content_id = block.content_id;
    }
    seq.num_published_blocks = i + 1;
  }
}

void BlockManager::unpublish(Sequence& seq) {
  for (const int32_t block_id : seq.block_table)
    if (blocks_[static_cast<size_t>(block_id)].ref_count == 1) drop_content(block_id);
}

void BlockManager::free(Sequence& seq) {
  for (auto block_id = seq.block_table.rbegin(); block_id != seq.block_table.rend(); ++block_id) {
    Block& block = blocks_[static_cast<size_t>(*block_id)];
    CAPSTAN_CHECK(block.ref_count > 0);
    if (--block.ref_count > 0) continue;
    if (block.content_id != 0)
      lru_push(*block_id);
    else
      free_.push_back(*block_id);
  }
  seq.block_table.clear();
  seq.num_computed_tokens = 0;
  seq.num_published_blocks = 0;
  seq.content_id = 0;
}

void BlockManager::check_integrity(std::span<Sequence* const> users) const {
  std::vector<int32_t> num_users(blocks_.size());
  for (const Sequence* seq : users)
    for (const int32_t block_id : seq->block_table)
      ++num_users.at(static_cast<size_t>(block_id));
  std::vector<int> num_lists(blocks_.size());  // a block without a user is in one list: free or cached
  for (const int32_t block_id : free_) {
    CAPSTAN_CHECK(blocks_.at(static_cast<size_t>(block_id)).content_id == 0);
    ++num_lists[static_cast<size_t>(block_id)];
  }
  int num_cached = 0;
  int32_t previous = -1;
  for (int32_t block_id = lru_oldest_; block_id >= 0;
       previous = block_id, block_id = blocks_[static_cast<size_t>(block_id)].lru_next) {
    CAPSTAN_CHECK(++num_cached <= num_cached_);
    CAPSTAN_CHECK(blocks_.at(static_cast<size_t>(block_id)).lru_previous == previous);
    CAPSTAN_CHECK(blocks_[static_cast<size_t>(block_id)].content_id != 0);
    ++num_lists[static_cast<size_t>(block_id)];
  }
  CAPSTAN_CHECK(previous == lru_newest_ && num_cached == num_cached_);
  size_t num_with_content = 0;
  for (size_t block_id = 0; block_id < blocks_.size(); ++block_id) {
    const Block& block = blocks_[block_id];
    CAPSTAN_CHECK(block.ref_count == num_users[block_id]);
    CAPSTAN_CHECK(num_lists[block_id] == (block.ref_count == 0 ? 1 : 0));
    if (block.content_id == 0) continue;
    ++num_with_content;
    const auto found = index_.find(block.hash);
    CAPSTAN_CHECK(found != index_.end() && found->second == static_cast<int32_t>(block_id));
  }
  CAPSTAN_CHECK(num_with_content == index_.size());
}

void BlockManager::drop_content(int32_t block_id) {
  Block& block = blocks_[static_cast<size_t>(block_id)];
  if (block.content_id == 0) return;
  index_.erase(block.hash);
  block.content_id = block.parent_id = block.hash = 0;
  block.salt.clear();
}

void BlockManager::lru_push(int32_t block_id) {
  Block& block = blocks_[static_cast<size_t>(block_id)];
  block.lru_previous = lru_newest_;
  block.lru_next = -1;
  (lru_newest_ >= 0 ? blocks_[static_cast<size_t>(lru_newest_)].lru_next : lru_oldest_) = block_id;
  lru_newest_ = block_id;
  ++num_cached_;
}

void BlockManager::lru_remove(int32_t block_id) {
  Block& block = blocks_[static_cast<size_t>(block_id)];
  (block.lru_previous >= 0 ? blocks_[static_cast<size_t>(block.lru_previous)].lru_next : lru_oldest_) = block.lru_next;
  (block.lru_next >= 0 ? blocks_[static_cast<size_t>(block.lru_next)].lru_previous : lru_newest_) = block.lru_previous;
  block.lru_previous = block.lru_next = -1;
  --num_cached_;
}

}  // namespace capstan
