#pragma once
// Allocates, shares and frees the blocks of the sequences, and finds cached prefixes. Integers only.
//
// Each KV group has a pool of blocks, and each sequence a block table per group. In a group with a window, the blocks
// that no later query of the sequence sees are freed. A cached prefix is a number of full blocks: groups without a
// window have all of them, a group with a window has those that the next query sees, and a model with recurrent layers
// has a snapshot of their state after the last one.
//
// Admission reserves all blocks of the prompt in the groups without a window. In a group with a window, a sequence
// takes the blocks of each chunk when it is scheduled.
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "native/engine/block_pool.h"
#include "native/engine/sequence.h"
#include "native/engine/state_cache.h"

namespace capstan {

struct KvGroupBlocks {
  int num_blocks = 0;
  int window = 0;  // how many of the newest positions a query sees, its own included; 0 = all
};

class BlockManager {
 public:
  BlockManager(std::span<const KvGroupBlocks> groups, int block_size, bool has_prefix_cache, int num_state_slots = 0,
               int snapshot_interval = kSnapshotInterval);
  BlockManager(std::initializer_list<KvGroupBlocks> groups, int block_size, bool has_prefix_cache,
               int num_state_slots = 0, int snapshot_interval = kSnapshotInterval)
      : BlockManager(std::span(groups.begin(), groups.size()), block_size, has_prefix_cache, num_state_slots,
                     snapshot_interval) {}

  int block_size() const { return block_size_; }
  size_t num_groups() const { return groups_.size(); }
  const BlockPool& pool(size_t group) const { return groups_[group].pool; }
  // The pool of the group that sees the most tokens; null without groups.
  const BlockPool* main_pool() const { return groups_.empty() ? nullptr : &groups_[main_group_].pool; }
  // The recurrent states of the sequences.
  StateCache& states() { return states_; }
  const StateCache& states() const { return states_; }
  int64_t num_evictions() const;  // over all groups
  // Returns whether no sequence holds a block or a state slot.
  bool is_idle() const;
  int blocks_for(int num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  // Admits `seq`, which holds no blocks yet: assigns it its cached prefix and sets num_computed_tokens and
  // num_followed_tokens to the length of that. Returns false, with nothing changed, when fewer than
  // `num_reserved_blocks` would be left in a group, or when there is no state slot.
  bool admit(Sequence& seq, int num_reserved_blocks, bool uses_prefix_cache);
  // Number of prompt blocks that the choices of one request share: the full ones without the last prompt token.
  int num_shareable(const Sequence& leader) const;
  // Like admit, but shares those blocks of `leader`, whose prompt must be computed, as long as it holds them.
  bool admit_from(Sequence& seq, const Sequence& leader, int num_reserved_blocks);
  // Returns for how many tokens in total `seq` has blocks or could take available ones.
  int max_tokens(const Sequence& seq) const;
  // Extends `seq` to blocks for `num_tokens` in total. Returns false, with nothing changed, when there are not enough.
  bool grow(Sequence& seq, int num_tokens);
  // Frees the last blocks of `seq` that `num_tokens` do not need. They must not be published or shared.
  void shrink(Sequence& seq, int num_tokens);
  // Frees the blocks that no query of `seq` at `next_position` or later sees.
  void free_unseen(Sequence& seq, int next_position);

  // Adds the full blocks within the first `num_tokens` tokens to the prefix cache. Their ids must be known and the
  // steps that fill them enqueued.
  void publish(Sequence& seq, int num_tokens);
  // Removes the blocks that only `seq` has used from the prefix cache, because their contents are invalid.
  void unpublish(Sequence& seq);
  // Frees all blocks of `seq`.
  void free(Sequence& seq);

  // ---- for the prefix cache on disk ----

  // From now on, keys depend on this secret. No sequence may have keys yet.
  void set_secret(const Hash128& secret) { secret_ = secret; }
  // Returns the keys of the full blocks: entry i is that of the first i blocks.
  const std::vector<PrefixKey>& prefix_keys(Sequence& seq) const;
  // Returns how many leading blocks admission would find in the prefix cache.
  int num_cached_blocks(Sequence& seq) const { return match_prefix(seq); }
  // Makes the cached blocks among the first `num_blocks` of `seq` the newest ones, and the first block the very newest.
  // Of the first KV group.
  void renew(Sequence& seq, int num_blocks);
  // Adds a block that no sequence uses to the prefix cache. fill(block_id) writes its content. Of the first KV group.
  // Returns -1 when the block is there already, or no block is available.
  template <class Fill>
  int32_t insert_cached(const PrefixKey& key, std::span<const int32_t> token_ids, Fill fill) {
    BlockPool& pool = groups_[0].pool;
    if (pool.find(key) >= 0 || pool.num_available() == 0) return -1;
    const int32_t block_id = pool.take();
    fill(block_id);
    pool.publish(block_id, key, token_ids);
    pool.remove_user(block_id);
    return block_id;
  }

  // Throws kInternal when the state contradicts itself or the block tables of `users`, which are all that hold blocks.
  void check_integrity(std::span<Sequence* const> users) const;

 private:
  struct Group {
    BlockPool pool;
    int window;
  };

  // Returns the first block that a query at `position` sees.
  int first_seen_block(const Group& group, int position) const;
  std::span<const int32_t> tokens_of(const Sequence& seq, int block) const;
  // Returns the cached block `block` of `seq`, or -1.
  int32_t find(const Group& group, const Sequence& seq, int block) const;
  void update_keys(Sequence& seq) const;
  // Returns the length of the longest cached prefix, in blocks.
  int match_prefix(Sequence& seq) const;
  int match_prefix(const Group& group, const Sequence& seq, int max_blocks) const;
  static void extend(Group& group, BlockTable& table, int num_blocks);
  bool holds_prefix(const Sequence& seq, int num_blocks) const;
  // Admits `seq` with a prefix of `num_blocks`, whose blocks are block_of(group, block).
  template <class BlockOf>
  bool admit_prefix(Sequence& seq, int num_blocks, int num_reserved_blocks, BlockOf block_of);

  int block_size_;
  bool has_prefix_cache_;
  size_t main_group_ = 0;
  std::vector<Group> groups_;
  StateCache states_;
  Hash128 secret_ = process_secret();
};

}  // namespace capstan
