#pragma once
// The slots of recurrent state. Integers only.
//
// A slot holds the state of all recurrent layers after some token of a sequence. Each sequence owns a slot, in which
// its state advances in place. A snapshot is a slot that is never written again: the step that reads it writes to the
// slot that the sequence owns. So no state is ever copied.
//
// Snapshots belong to the prefix cache. They stand at the ends of full blocks and have the key of the prefix that ends
// there: at multiples of the snapshot interval, where the text leaves that of earlier sequences, at the end of the last
// full block of a prompt, and at that of a sequence that ends. Because the end of a sequence is not known before, a
// decoding sequence takes a snapshot at the end of each block and drops the one before. Snapshots take the slots that
// the running sequences leave. The oldest unused one is evicted first.
//
// While drafts are verified, the state after each of them has a slot. The sequence then owns the slot of the last draft
// that holds.
#include <cstdint>
#include <span>
#include <vector>

#include "native/engine/block_pool.h"
#include "native/engine/sequence.h"
#include "native/engine/step_plan.h"

namespace capstan {

// In tokens; rounded up to whole blocks.
constexpr int kSnapshotInterval = 512;

class StateCache {
 public:
  // Without slots, for a model without recurrent layers, nothing is done.
  StateCache(int num_slots, int block_size, bool has_prefix_cache, int snapshot_interval = kSnapshotInterval);

  bool has_slots() const { return slots_.num_blocks() > 0; }
  const BlockPool& slots() const { return slots_; }
  // Sequences that continued from a snapshot.
  int64_t num_hits() const { return num_hits_; }

  // Returns the length of the longest prefix of at most `max_blocks` blocks that ends with a snapshot.
  int match_prefix(const Sequence& seq, int max_blocks) const;
  bool can_admit() const { return !has_slots() || slots_.num_available() > 0; }
  // Assigns `seq` a slot. It continues from the snapshot after its first `num_blocks` blocks.
  void admit(Sequence& seq, int num_blocks);
  // Plans which slots the step reads and writes. Frees what rejected drafts had.
  void plan(ScheduledSequence& scheduled);
  // Plans a slot for the state after one more draft. Returns false when there is none.
  bool add_draft(ScheduledSequence& scheduled);
  void cut_drafts(ScheduledSequence& scheduled, int count);
  // Call when the planned step is enqueued.
  void launched();
  // Frees the slots of the last `count` drafts.
  void reject(Sequence& seq, int count);
  // Adds the snapshots within the first `num_tokens` tokens to the prefix cache. Conditions as for blocks.
  void publish(Sequence& seq, int num_tokens);
  // Removes the snapshots that only `seq` has used from the prefix cache, and forgets those that are not in it yet.
  void unpublish(Sequence& seq);
  void free(Sequence& seq);

  // Throws kInternal when the state contradicts itself or the slots of `users`.
  void check_integrity(std::span<Sequence* const> users) const;

 private:
  const PrefixKey& key_at(const Sequence& seq, int position) const {
    return seq.prefix_keys[static_cast<size_t>(position / block_size_)];
  }
  bool is_lasting(const Sequence& seq, int position) const;
  std::vector<int> choose_snapshots(const ScheduledSequence& scheduled) const;
  void commit_drafts(Sequence& seq);
  void drop_rolling(Sequence& seq);

  BlockPool slots_;  // a state slot is a block without tokens
  int block_size_;
  bool has_prefix_cache_;
  int interval_;
  int64_t num_hits_ = 0;
  std::vector<int32_t> released_;  // snapshots that the planned step reads, and that their sequence needs no longer
};

}  // namespace capstan
