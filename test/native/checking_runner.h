#pragma once
// A step runner without a model that detects errors of the paged KV cache. It records in each slot which tokens it
// stands for, and verifies each slot that a row would read. The id that it draws is a function of all earlier tokens,
// so a wrong id, position, slot or block table, or a lost token, also changes the completion.
#include <deque>
#include <limits>
#include <vector>

#include "native/base/hash.h"
#include "native/engine/block_manager.h"
#include "native/engine/step_runner.h"
#include "test/native/testing.h"

namespace capstan::testing {

// The context is a hash of all tokens so far.
inline uint64_t extend_context(uint64_t context, int32_t token_id) {
  return hash_ids(context, {&token_id, 1});
}
// The id that follows `context`.
inline int32_t next_id(uint64_t context, int num_ids) {
  return static_cast<int32_t>(context % static_cast<uint64_t>(num_ids));
}
// Whether a model that repeats itself does so after `context`: seven times in eight.
inline bool is_repeating(uint64_t context) {
  return (context >> 40) % 8 != 0;
}

class CheckingRunner final : public StepRunner {
 public:
  CheckingRunner(int depth, std::span<const KvGroupBlocks> groups, int num_state_slots, int block_size, int num_ids)
      : depth_(depth), block_size_(block_size), num_ids_(num_ids), states_(static_cast<size_t>(num_state_slots)) {
    model_.max_model_len = limits_.max_num_tokens = std::numeric_limits<int>::max();
    limits_.block_size = block_size;
    limits_.num_state_slots = num_state_slots;
    for (const KvGroupBlocks& group : groups) {
      groups_.push_back({group.window, std::vector<Slot>(static_cast<size_t>(group.num_blocks * block_size))});
      model_.kv_groups.push_back({group.window, 1});
      limits_.num_blocks.push_back(group.num_blocks);
    }
  }

  int depth() const override { return depth_; }

  // Computes the step, as a stream would, in launch order. collect() returns the results.
  void launch(Batch& batch) override {
    EXPECT(static_cast<int>(in_flight_.size()) < depth_);
    check_step(batch.input(), model_, limits_);
    std::vector<int32_t> next_ids;  // by row
    for (size_t s = 0; s < batch.plan.sequences.size(); ++s) {
      const auto rows_begin = static_cast<size_t>(batch.cu_seqlens_q[s]),
                 rows_end = static_cast<size_t>(batch.cu_seqlens_q[s + 1]);
      State state;
      if (!states_.empty() && batch.state_reads[s] >= 0) state = states_.at(static_cast<size_t>(batch.state_reads[s]));
      for (size_t row = rows_begin; row < rows_end; ++row)
        next_ids.push_back(run_row(batch, s, row, state));
      EXPECT_EQ(batch.context_lens[s], batch.positions[rows_end - 1] + 1);
    }
    std::vector<int32_t> drawn;
    for (size_t i = 0; i < batch.sample_rows.size(); ++i) {
      const SampleRow& row = batch.sample_rows[i];
      const int32_t next = next_ids[static_cast<size_t>(batch.logits_rows[i])];
      drawn.push_back(row.wants_sample ? next : row.target_id);
    }
    previous_ = drawn;
    in_flight_.push_back(drawn);
  }

  void collect(Batch& batch) override {
    const std::vector<int32_t> drawn = in_flight_.front();
    in_flight_.pop_front();
    EXPECT_EQ(drawn.size(), batch.results.size());
    for (size_t i = 0; i < drawn.size(); ++i) {
      batch.results[i] = {};
      batch.results[i].token_id = drawn[i];
      batch.results[i].has_numeric_error = drawn[i] == poisoned_id_;
    }
  }

  int period_ = 0;            // above 0, the model mostly repeats the token this many places before the next one
  int32_t poisoned_id_ = -1;  // drawing this id counts as NaN in the logits

 private:
  // The recurrent state after some token: a hash of all tokens so far.
  struct State {
    int num_tokens = 0;
    uint64_t context = 0;
  };

  // Returns the id that follows the row.
  int32_t run_row(const Batch& batch, size_t s, size_t row, State& state) {
    const int position = batch.positions[row];
    const int32_t given = batch.input_ids[row];
    const int32_t token_id = given >= 0 ? given : previous_.at(static_cast<size_t>(-1 - given));
    EXPECT_EQ(batch.kv_groups.size(), groups_.size());
    uint64_t context = 0;
    if (!states_.empty()) context = advance(batch, row, token_id, state);
    for (size_t i = 0; i < groups_.size(); ++i) {
      const uint64_t seen = write_row(batch, i, s, row, token_id);
      if (i > 0 || !states_.empty()) EXPECT_EQ(seen, context);
      context = seen;
    }
    if (period_ > 0 && position + 1 >= period_ && is_repeating(context))
      return groups_[0].slots[slot_at(batch, 0, s, position + 1 - period_)].token_id;
    return next_id(context, num_ids_);
  }

  // Advances a recurrent state by one row and stores it. Returns its context.
  uint64_t advance(const Batch& batch, size_t row, int32_t token_id, State& state) {
    EXPECT_EQ(state.num_tokens, batch.positions[row]);
    state = {state.num_tokens + 1, extend_context(state.context, token_id)};
    const int32_t slot = batch.state_writes[row];
    if (slot >= 0) states_.at(static_cast<size_t>(slot)) = state;
    return state.context;
  }

  size_t slot_at(const Batch& batch, size_t group, size_t s, int position) const {
    const auto width = static_cast<size_t>(batch.max_blocks_per_seq);
    const int32_t block = batch.kv_groups[group].block_tables[s * width + static_cast<size_t>(position / block_size_)];
    EXPECT(block >= 0);
    return static_cast<size_t>(block * block_size_ + position % block_size_);
  }

  // Verifies the slots that a row sees and writes its own. Returns its context. A window has at least two tokens, so
  // that a row sees the context of the one before it.
  uint64_t write_row(const Batch& batch, size_t group, size_t s, size_t row, int32_t token_id) {
    const int position = batch.positions[row];
    const auto at = [&](int p) -> Slot& { return groups_[group].slots[slot_at(batch, group, s, p)]; };
    EXPECT_EQ(static_cast<size_t>(batch.kv_groups[group].slot_mapping[row]), slot_at(batch, group, s, position));
    // The row reads all earlier slots that it sees: they must hold their positions, and their contexts must form a
    // chain.
    const int first = first_visible_key(position, groups_[group].window);
    for (int p = first; p < position; ++p)
      EXPECT_EQ(at(p).position, p);
    for (int p = first + 1; p < position; ++p)
      EXPECT_EQ(at(p).parent, at(p - 1).context);
    const uint64_t parent = position > 0 ? at(position - 1).context : 0;
    at(position) = {position, token_id, parent, extend_context(parent, token_id)};
    return at(position).context;
  }

  struct Slot {
    int position = -1;
    int32_t token_id = -1;
    uint64_t parent = 0;
    uint64_t context = 0;
  };
  int depth_, block_size_, num_ids_;
  struct Group {
    int window;
    std::vector<Slot> slots;
  };
  std::vector<Group> groups_;
  std::vector<State> states_;
  DeviceModel model_;    // only the KV groups
  DeviceLimits limits_;  // of the cache
  std::vector<int32_t> previous_;
  std::deque<std::vector<int32_t>> in_flight_;
};

}  // namespace capstan::testing
