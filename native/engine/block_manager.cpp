#include "native/engine/block_manager.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "native/base/check.h"

namespace capstan {
namespace {

// Whether `a` sees more tokens than `b`.
bool is_longer_window(int a, int b) {
  return b != 0 && (a == 0 || a > b);
}

}  // namespace

BlockManager::BlockManager(std::span<const KvGroupBlocks> groups, int block_size, bool has_prefix_cache,
                           int num_state_slots, int snapshot_interval)
    : block_size_(block_size),
      has_prefix_cache_(has_prefix_cache),
      states_(num_state_slots, block_size, has_prefix_cache, snapshot_interval) {
  for (const KvGroupBlocks& group : groups) {
    groups_.push_back({BlockPool(group.num_blocks, block_size, has_prefix_cache), group.window});
    if (is_longer_window(group.window, groups_[main_group_].window)) main_group_ = groups_.size() - 1;
  }
}

int64_t BlockManager::num_evictions() const {
  int64_t count = 0;
  for (const Group& group : groups_)
    count += group.pool.num_evictions();
  return count;
}

bool BlockManager::is_idle() const {
  const auto is_unused = [](const BlockPool& pool) { return pool.num_available() == pool.num_blocks(); };
  return is_unused(states_.slots()) && std::ranges::all_of(groups_, is_unused, &Group::pool);
}

int BlockManager::first_seen_block(const Group& group, int position) const {
  return group.window > 0 && position >= group.window ? (position - group.window + 1) / block_size_ : 0;
}

// ---- the prefix cache ----

std::span<const int32_t> BlockManager::tokens_of(const Sequence& seq, int block) const {
  const auto size = static_cast<size_t>(block_size_);
  return std::span(seq.token_ids).subspan(static_cast<size_t>(block) * size, size);
}

void BlockManager::update_keys(Sequence& seq) const {
  std::vector<PrefixKey>& keys = seq.prefix_keys;
  if (keys.empty()) keys.push_back(root_key(seq.cache_salt, seq.adapter_key, secret_));
  for (int block = static_cast<int>(keys.size()) - 1; block < seq.num_tokens() / block_size_; ++block)
    keys.push_back(extend_key(keys.back(), tokens_of(seq, block)));
}

const std::vector<PrefixKey>& BlockManager::prefix_keys(Sequence& seq) const {
  update_keys(seq);
  return seq.prefix_keys;
}

int32_t BlockManager::find(const Group& group, const Sequence& seq, int block) const {
  return group.pool.find(seq.prefix_keys[static_cast<size_t>(block) + 1], tokens_of(seq, block));
}

// Returns the length of the longest prefix of at most `max_blocks` that the group can continue from.
int BlockManager::match_prefix(const Group& group, const Sequence& seq, int max_blocks) const {
  if (group.window == 0) {
    int length = 0;
    while (length < max_blocks && find(group, seq, length) >= 0)
      ++length;
    return length;
  }
  for (int length = max_blocks;;) {
    const int first = first_seen_block(group, length * block_size_);
    int block = length - 1;
    while (block >= first && find(group, seq, block) >= 0)
      --block;
    if (block < first) return length;
    // A longer prefix sees this missing block too, because the window moves forward.
    length = block;
  }
}

// NOTE: never matches the last token: its logits are needed, so it is recomputed into a private block.
int BlockManager::match_prefix(Sequence& seq) const {
  if (!has_prefix_cache_) return 0;
  update_keys(seq);
  int length = (seq.num_tokens() - 1) / block_size_;
  for (const Group& group : groups_)
    if (group.window == 0) length = match_prefix(group, seq, length);
  const int num_shared = length;
  // A shorter prefix needs other blocks of a window and another snapshot, so all are asked again until they agree.
  for (bool is_agreed = false; !is_agreed;) {
    const int asked = length;
    for (const Group& group : groups_)
      if (group.window > 0) length = match_prefix(group, seq, length);
    if (states_.has_slots()) length = states_.match_prefix(seq, length);
    is_agreed = length == asked;
  }
  seq.states.branch = groups_.empty() ? 0 : num_shared * block_size_;
  return length;
}

void BlockManager::renew(Sequence& seq, int num_blocks) {
  update_keys(seq);
  BlockPool& pool = groups_[0].pool;
  for (int block = num_blocks; block-- > 0;) {
    const int32_t block_id = find(groups_[0], seq, block);
    if (block_id < 0) continue;
    pool.add_user(block_id);
    pool.remove_user(block_id);
  }
}

void BlockManager::publish(Sequence& seq, int num_tokens) {
  if (!has_prefix_cache_) return;
  update_keys(seq);
  const int num_full = num_tokens / block_size_;
  for (size_t i = 0; i < groups_.size(); ++i) {
    BlockTable& table = seq.block_tables[i];
    for (; table.num_published < num_full; ++table.num_published) {
      const auto block = static_cast<size_t>(table.num_published);
      if (table.block_ids[block] >= 0)
        groups_[i].pool.publish(table.block_ids[block], seq.prefix_keys[block + 1],
                                tokens_of(seq, table.num_published));
    }
  }
  states_.publish(seq, num_tokens);
}

void BlockManager::unpublish(Sequence& seq) {
  if (!has_prefix_cache_) return;
  // Finds the blocks by their keys, because some have been freed.
  update_keys(seq);
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    const std::vector<int32_t>& own = seq.block_tables[i].block_ids;
    for (int block = 0; block < static_cast<int>(seq.prefix_keys.size()) - 1; ++block) {
      const int32_t block_id = find(group, seq, block);
      if (block_id < 0) continue;
      const bool is_own = static_cast<size_t>(block) < own.size() && own[static_cast<size_t>(block)] == block_id;
      const bool has_other_users = is_own ? group.pool.is_shared(block_id) : group.pool.is_used(block_id);
      if (!has_other_users) group.pool.unpublish(block_id);
    }
  }
  states_.unpublish(seq);
}

// ---- allocation ----

template <class BlockOf>
bool BlockManager::admit_prefix(Sequence& seq, int num_blocks, int num_reserved_blocks, BlockOf block_of) {
  CAPSTAN_CHECK(seq.block_tables.empty());
  if (!states_.can_admit()) return false;
  const int num_new = blocks_for(seq.num_tokens()) - num_blocks;
  std::vector<BlockTable> tables(groups_.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    BlockTable& table = tables[i];
    table.num_freed = first_seen_block(group, num_blocks * block_size_);
    table.block_ids.assign(static_cast<size_t>(table.num_freed), -1);
    int num_unused = 0;  // available blocks that this admission takes
    for (int block = table.num_freed; block < num_blocks; ++block) {
      table.block_ids.push_back(block_of(i, block));
      if (!group.pool.is_used(table.block_ids.back())) ++num_unused;
    }
    // A window that begins and ends within a block, or at least the next token.
    const int window = std::min(group.window, seq.num_tokens());
    const int num_in_window = std::max(1, blocks_for(window) + 1 - (num_blocks - table.num_freed));
    const int num_needed = group.window == 0 ? num_new : std::min(num_new, num_in_window);
    if (num_needed + num_reserved_blocks > group.pool.num_available() - num_unused) return false;
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    for (const int32_t block_id : tables[i].block_ids)
      if (block_id >= 0) groups_[i].pool.add_user(block_id);
    if (groups_[i].window == 0) extend(groups_[i], tables[i], num_blocks + num_new);
  }
  seq.block_tables = std::move(tables);
  states_.admit(seq, num_blocks);
  seq.num_computed_tokens = seq.num_followed_tokens = num_blocks * block_size_;
  return true;
}

bool BlockManager::admit(Sequence& seq, int num_reserved_blocks, bool uses_prefix_cache) {
  const int num_matched = uses_prefix_cache ? match_prefix(seq) : 0;
  return admit_prefix(seq, num_matched, num_reserved_blocks,
                      [&](size_t group, int block) { return find(groups_[group], seq, block); });
}

int BlockManager::num_shareable(const Sequence& leader) const {
  return (leader.num_prompt_tokens - 1) / block_size_;
}

bool BlockManager::holds_prefix(const Sequence& seq, int num_blocks) const {
  if (states_.has_slots()) return false;  // a state is shared by snapshots only
  for (size_t i = 0; i < groups_.size(); ++i)
    if (seq.block_tables[i].num_freed > first_seen_block(groups_[i], num_blocks * block_size_)) return false;
  return true;
}

bool BlockManager::admit_from(Sequence& seq, const Sequence& leader, int num_reserved_blocks) {
  const int num_shared = num_shareable(leader);
  if (!holds_prefix(leader, num_shared)) return admit(seq, num_reserved_blocks, true);
  return admit_prefix(seq, num_shared, num_reserved_blocks, [&](size_t group, int block) {
    return leader.block_tables[group].block_ids[static_cast<size_t>(block)];
  });
}

int BlockManager::max_tokens(const Sequence& seq) const {
  int num_blocks = std::numeric_limits<int>::max() / block_size_;
  for (size_t i = 0; i < groups_.size(); ++i)
    num_blocks =
        std::min(num_blocks, static_cast<int>(seq.block_tables[i].block_ids.size()) + groups_[i].pool.num_available());
  return num_blocks * block_size_;
}

bool BlockManager::grow(Sequence& seq, int num_tokens) {
  if (num_tokens > max_tokens(seq)) return false;
  for (size_t i = 0; i < groups_.size(); ++i)
    extend(groups_[i], seq.block_tables[i], blocks_for(num_tokens));
  return true;
}

void BlockManager::extend(Group& group, BlockTable& table, int num_blocks) {
  while (static_cast<int>(table.block_ids.size()) < num_blocks)
    table.block_ids.push_back(group.pool.take());
}

void BlockManager::shrink(Sequence& seq, int num_tokens) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    BlockTable& table = seq.block_tables[i];
    for (; static_cast<int>(table.block_ids.size()) > blocks_for(num_tokens); table.block_ids.pop_back()) {
      CAPSTAN_CHECK(static_cast<int>(table.block_ids.size()) > table.num_published);
      groups_[i].pool.remove_user(table.block_ids.back());
    }
  }
}

void BlockManager::free_unseen(Sequence& seq, int next_position) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    BlockTable& table = seq.block_tables[i];
    const int first_seen =
        std::min(first_seen_block(groups_[i], next_position), static_cast<int>(table.block_ids.size()));
    for (; table.num_freed < first_seen; ++table.num_freed)
      groups_[i].pool.remove_user(std::exchange(table.block_ids[static_cast<size_t>(table.num_freed)], -1));
  }
}

void BlockManager::free(Sequence& seq) {
  if (has_prefix_cache_) update_keys(seq);
  states_.free(seq);
  for (size_t i = 0; i < seq.block_tables.size(); ++i) {
    BlockPool& pool = groups_[i].pool;
    std::vector<int32_t>& block_ids = seq.block_tables[i].block_ids;
    // The cache evicts the tail of a chain before its head. Of a window it evicts the head first, because the next
    // request often continues where this one ends.
    if (groups_[i].window == 0) std::ranges::reverse(block_ids);
    for (const int32_t block_id : block_ids)
      if (block_id >= 0) pool.remove_user(block_id);
  }
  seq.block_tables.clear();
  seq.num_computed_tokens = seq.num_followed_tokens = 0;
}

void BlockManager::check_integrity(std::span<Sequence* const> users) const {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    std::vector<int32_t> num_users(static_cast<size_t>(group.pool.num_blocks()));
    for (const Sequence* seq : users) {
      const BlockTable& table = seq->block_tables.at(i);
      // Rejected drafts are computed again.
      const int next_position = seq->num_computed_tokens - static_cast<int>(seq->drafts.size());
      CAPSTAN_CHECK(table.num_freed <= first_seen_block(group, next_position));
      CAPSTAN_CHECK(blocks_for(seq->num_computed_tokens) <= static_cast<int>(table.block_ids.size()));
      for (size_t block = 0; block < table.block_ids.size(); ++block) {
        const int32_t block_id = table.block_ids[block];
        CAPSTAN_CHECK((block_id < 0) == (static_cast<int>(block) < table.num_freed));
        if (block_id >= 0) ++num_users.at(static_cast<size_t>(block_id));
      }
    }
    group.pool.check_integrity(num_users);
  }
  states_.check_integrity(users);
}

}  // namespace capstan
