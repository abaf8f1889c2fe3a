// Recurrent states: which slots a step reads and writes, where snapshots stand, and what they are found by.
#include <memory>
#include <set>

#include "native/engine/memory_plan.h"
#include "native/engine/scheduler.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

constexpr int kBlockSize = 4, kInterval = 16;

Sequence make_sequence(int num_prompt_tokens, int first_id = 1) {
  Sequence seq;
  for (int i = 0; i < num_prompt_tokens; ++i)
    seq.token_ids.push_back(first_id + i);
  seq.num_prompt_tokens = num_prompt_tokens;
  seq.sampling.max_tokens = 100;
  return seq;
}

// A scheduler of a model with recurrent layers and 100 blocks of attention.
struct Hybrid {
  Scheduler scheduler;
  StepPlan plan;

  explicit Hybrid(int num_slots, int max_num_batched_tokens = 1000, bool has_prefix_cache = true,
                  bool has_attention = true)
      : scheduler(limits(max_num_batched_tokens),
                  BlockManager(has_attention ? std::vector<KvGroupBlocks>{{100}} : std::vector<KvGroupBlocks>{},
                               kBlockSize, has_prefix_cache, num_slots, kInterval)) {}

  static SchedulerLimits limits(int max_num_batched_tokens) {
    SchedulerLimits limits;
    limits.max_num_batched_tokens = max_num_batched_tokens;
    limits.speculation = {.num_tokens = 8, .max_ngram = 1, .min_ngram = 1, .max_step_tokens = 16};
    return limits;
  }
  // Plans and launches a step, and appends the samples.
  void step() {
    scheduler.plan_step(plan);
    scheduler.launched(plan);
    scheduler.check_integrity();
    for (const ScheduledSequence& scheduled : plan.sequences)
      if (scheduled.samples) scheduler.append(*scheduled.seq, 1);
    scheduler.check_integrity();
  }
  // Computes a prompt and `num_tokens` more, and ends it. Returns the length of its cached prefix.
  int run(Sequence seq, int num_tokens = 1, bool is_poisoned = false) {
    scheduler.add(seq);
    while (seq.num_completion_tokens() < num_tokens)
      step();
    scheduler.finish(seq, is_poisoned);
    scheduler.check_integrity();
    return seq.num_cached_tokens;
  }
  const BlockPool& slots() const { return scheduler.blocks().states().slots(); }
};

// A prompt that begins with the first `num_shared` ids of make_sequence(n) and differs after them.
Sequence sharing(int num_shared, int num_more = 10) {
  Sequence seq = make_sequence(num_shared);
  for (int i = 0; i < num_more; ++i)
    seq.token_ids.push_back(5000 + i);
  seq.num_prompt_tokens += num_more;
  return seq;
}

std::vector<int> written_positions(const ScheduledSequence& scheduled) {
  std::vector<int> positions;
  for (const StateWrite& write : scheduled.state_writes)
    positions.push_back(scheduled.first_position + write.row + 1);
  return positions;
}

TEST(states_advance_in_place_without_a_prefix_cache) {
  Hybrid hybrid(2, 8, false);
  Sequence seq = make_sequence(20);
  hybrid.scheduler.add(seq);
  hybrid.step();
  const ScheduledSequence first = hybrid.plan.sequences[0];
  EXPECT_EQ(first.state_read, -1);
  EXPECT_EQ(first.state_writes.size(), size_t{1});
  EXPECT_EQ(first.state_writes[0].row, 7);
  for (int i = 0; i < 30; ++i) {
    hybrid.step();
    const ScheduledSequence& scheduled = hybrid.plan.sequences[0];
    EXPECT_EQ(scheduled.state_read, first.state_writes[0].slot);
    EXPECT_EQ(scheduled.state_writes.size(), size_t{1});
    EXPECT_EQ(scheduled.state_writes[0].slot, scheduled.state_read);
    EXPECT_EQ(scheduled.state_writes[0].row, scheduled.num_tokens - 1);
  }
  EXPECT_EQ(hybrid.slots().num_available(), 1);
}

TEST(states_have_snapshots_at_the_interval_and_the_prompt_end) {
  Hybrid hybrid(20);
  Sequence seq = make_sequence(43);
  hybrid.scheduler.add(seq);
  hybrid.step();
  EXPECT(written_positions(hybrid.plan.sequences[0]) == (std::vector<int>{16, 32, 40, 43}));
  EXPECT_EQ(hybrid.slots().num_with_content(), 3);
  // The next token completes a block.
  hybrid.step();
  const ScheduledSequence& scheduled = hybrid.plan.sequences[0];
  EXPECT(written_positions(scheduled) == (std::vector<int>{44}));
  EXPECT(scheduled.state_writes[0].slot != scheduled.state_read);
  const int32_t snapshot = scheduled.state_writes[0].slot;
  hybrid.step();
  EXPECT_EQ(hybrid.plan.sequences[0].state_read, snapshot);
  EXPECT(hybrid.plan.sequences[0].state_writes[0].slot != snapshot);
}

TEST(states_hit_is_the_newest_snapshot_within_the_match) {
  Hybrid hybrid(20);
  EXPECT_EQ(hybrid.run(make_sequence(43)), 0);
  EXPECT_EQ(hybrid.run(make_sequence(43)), 40);
  EXPECT_EQ(hybrid.scheduler.blocks().states().num_hits(), 1);
  // The prompts share 39 tokens, and 36 of them are in full blocks. The newest snapshot within them is at 32.
  EXPECT_EQ(hybrid.run(sharing(39)), 32);
  EXPECT_EQ(hybrid.run(sharing(31)), 16);
  EXPECT_EQ(hybrid.run(sharing(15)), 0);
}

// A prompt that others begin with gets a snapshot at its end when the second one shows it.
TEST(states_have_snapshots_where_prompts_part) {
  Hybrid hybrid(20, 8);
  hybrid.run(make_sequence(43));
  EXPECT_EQ(hybrid.run(sharing(31)), 16);
  Sequence third = sharing(31);
  third.token_ids[31] = 7000;
  EXPECT_EQ(hybrid.run(third), 28);
}

TEST(states_hit_needs_the_blocks_too) {
  Hybrid hybrid(20);
  hybrid.run(make_sequence(43));
  // 100 blocks of other prompts evict those of the first one. Its snapshots are still there.
  hybrid.run(make_sequence(395, 1000));
  EXPECT_EQ(hybrid.run(make_sequence(43)), 0);
}

TEST(states_hit_needs_no_attention) {
  Hybrid hybrid(20, 8, true, false);
  EXPECT_EQ(hybrid.run(make_sequence(43)), 0);
  EXPECT_EQ(hybrid.run(make_sequence(43)), 40);
  EXPECT_EQ(hybrid.run(sharing(39)), 32);
}

TEST(states_keep_one_snapshot_of_a_decoding_sequence_until_its_end) {
  Hybrid hybrid(20);
  Sequence seq = make_sequence(6);
  hybrid.scheduler.add(seq);
  while (seq.num_tokens() < 31) {
    hybrid.step();
    // The end of the prompt at 4, the interval at 16, the newest end of a block.
    EXPECT(hybrid.slots().num_with_content() <= 3);
  }
  hybrid.scheduler.finish(seq);
  EXPECT_EQ(hybrid.slots().num_with_content(), 3);
  // 30 tokens are computed, so the last full block ends at 28.
  Sequence next = make_sequence(0);
  next.token_ids = seq.token_ids;
  next.num_prompt_tokens = next.num_tokens();
  EXPECT_EQ(hybrid.run(next), 28);
}

TEST(states_of_a_short_budget_prefer_the_newest_snapshot) {
  // With chunks of 8, the step that reads the snapshot at 32 ends at 40, and no slot is left.
  for (const auto& [max_num_batched_tokens, cached] : {std::pair{1000, 40}, {8, 32}}) {
    Hybrid hybrid(2, max_num_batched_tokens);
    hybrid.run(make_sequence(43));
    EXPECT_EQ(hybrid.slots().num_with_content(), 1);
    EXPECT_EQ(hybrid.run(make_sequence(43)), cached);
  }
  Hybrid hybrid(1);
  hybrid.run(make_sequence(43));
  EXPECT_EQ(hybrid.run(make_sequence(43)), 0);
}

TEST(states_of_ending_blocks_are_evicted_before_others) {
  Hybrid hybrid(3);
  hybrid.run(make_sequence(43));  // leaves snapshots at 32 and 40
  Sequence other = make_sequence(3, 1000);
  hybrid.scheduler.add(other);
  while (other.num_tokens() < 15)
    hybrid.step();
  // It has evicted one snapshot, and then its own.
  EXPECT_EQ(hybrid.run(make_sequence(43)), 40);
  hybrid.scheduler.finish(other);
}

TEST(states_at_the_end_of_a_sequence_outlive_older_ones) {
  Hybrid hybrid(3);
  Sequence seq = make_sequence(6);
  hybrid.scheduler.add(seq);
  while (seq.num_tokens() < 15)
    hybrid.step();
  hybrid.scheduler.finish(seq);
  EXPECT_EQ(hybrid.slots().num_with_content(), 2);
  hybrid.run(make_sequence(10, 1000));  // evicts the one at the end of the prompt
  Sequence next = make_sequence(0);
  next.token_ids = seq.token_ids;
  next.num_prompt_tokens = next.num_tokens();
  EXPECT_EQ(hybrid.run(next), 12);
}

TEST(states_of_a_decoding_sequence_stay_if_another_one_used_them) {
  Hybrid hybrid(20);
  Sequence seq = make_sequence(6);
  hybrid.scheduler.add(seq);
  while (seq.num_tokens() < 10)
    hybrid.step();
  Sequence next = make_sequence(0);
  next.token_ids = seq.token_ids;
  next.num_prompt_tokens = next.num_tokens();
  EXPECT_EQ(hybrid.run(next), 8);
  while (seq.num_tokens() < 15)
    hybrid.step();
  EXPECT_EQ(hybrid.run(next), 8);
  hybrid.scheduler.finish(seq);
}

TEST(states_that_were_of_use_stay_longer) {
  Hybrid hybrid(3);
  hybrid.run(make_sequence(10));
  hybrid.run(make_sequence(10, 1000));
  EXPECT_EQ(hybrid.run(make_sequence(10)), 8);
  hybrid.run(make_sequence(10, 2000));  // evicts the one at 1000
  EXPECT_EQ(hybrid.run(make_sequence(10)), 8);
  EXPECT_EQ(hybrid.run(make_sequence(10, 1000)), 0);
}

TEST(states_continue_in_the_slot_of_the_last_snapshot) {
  Hybrid hybrid(2);
  hybrid.run(make_sequence(43));
  Sequence running = make_sequence(2, 1000);
  hybrid.scheduler.add(running);
  hybrid.step();
  EXPECT_EQ(hybrid.slots().num_available(), 1);
  EXPECT_EQ(hybrid.run(make_sequence(43)), 40);
  EXPECT(running.status == SequenceStatus::kRunning);
  EXPECT_EQ(hybrid.slots().num_with_content(), 0);
}

TEST(states_are_waited_for) {
  Hybrid hybrid(1);
  Sequence first = make_sequence(10), second = make_sequence(10, 1000);
  hybrid.scheduler.add(first);
  hybrid.scheduler.add(second);
  hybrid.step();
  hybrid.step();
  EXPECT(second.status == SequenceStatus::kWaiting && first.num_tokens() == 12);
  hybrid.scheduler.finish(first);
  hybrid.step();
  EXPECT_EQ(second.num_tokens(), 11);
}

TEST(states_are_shared_by_the_choices_of_a_request) {
  Hybrid hybrid(20, 8);
  Sequence leader = make_sequence(43), follower = make_sequence(43);
  follower.leader = &leader;
  hybrid.scheduler.add(leader);
  hybrid.scheduler.add(follower);
  while (follower.num_tokens() == 43)
    hybrid.step();
  EXPECT_EQ(follower.num_cached_tokens, 40);
}

TEST(states_in_use_are_not_idle) {
  Hybrid hybrid(4, 1000, true, false);
  Sequence seq = make_sequence(10);
  hybrid.scheduler.add(seq);
  hybrid.step();
  EXPECT(!hybrid.scheduler.blocks().is_idle());
  hybrid.scheduler.finish(seq);
  EXPECT(hybrid.scheduler.blocks().is_idle() && hybrid.slots().num_cached() > 0);
}

TEST(states_of_a_numeric_error_are_forgotten) {
  Hybrid hybrid(20);
  hybrid.run(make_sequence(43), 10, true);
  EXPECT_EQ(hybrid.slots().num_with_content(), 0);
  EXPECT_EQ(hybrid.run(make_sequence(43)), 0);
}

TEST(states_of_a_preempted_sequence_are_found_again) {
  Hybrid hybrid(20);
  // 100 blocks of 4 tokens: the first sequence takes all of them.
  Sequence first = make_sequence(330), second = make_sequence(23, 1000);
  first.sampling.max_tokens = second.sampling.max_tokens = 60;
  hybrid.scheduler.add(first);
  hybrid.scheduler.add(second);
  while (second.num_preemptions == 0)
    hybrid.step();
  EXPECT(second.states.own < 0 && second.states.newest < 0 && second.states.pending.empty());
  const int num_tokens = second.num_tokens();
  hybrid.scheduler.finish(first);
  hybrid.step();
  // Its blocks may have been evicted from the tail on, and so may the snapshots after them.
  EXPECT(hybrid.plan.sequences[0].seq == &second && hybrid.plan.sequences[0].first_position > 0);
  EXPECT_EQ(second.num_tokens(), num_tokens + 1);
}

TEST(states_after_drafts_have_slots_of_their_own) {
  // The newest snapshot within 9 tokens in the end. The step after the drafts may take one at 8, or at 12, which
  // replaces the one at 8. There is none at 8 when the state after 8 tokens is that of the sequence.
  for (const auto& [num_rejected, cached] : {std::pair{0, 4}, {1, 8}, {2, 8}, {3, 4}, {4, 8}}) {
    Hybrid hybrid(20);
    Sequence seq = make_sequence(6);
    std::ranges::fill(seq.token_ids, 1);
    seq.ngrams.emplace(SpeculationOptions{.num_tokens = 8, .max_ngram = 1, .min_ngram = 1, .max_step_tokens = 16});
    seq.ngrams->update(seq.token_ids, seq.num_prompt_tokens);
    hybrid.scheduler.add(seq);
    hybrid.step();
    EXPECT(hybrid.scheduler.plan_step(hybrid.plan));
    EXPECT_EQ(hybrid.scheduler.plan_drafts(hybrid.plan, 0, 6), 6);
    hybrid.scheduler.cut_drafts(hybrid.plan, 0, 2);
    const ScheduledSequence scheduled = hybrid.plan.sequences[0];
    // The token at 6 and drafts at 7 to 10. The token completes no block; the first draft does.
    EXPECT(written_positions(scheduled) == (std::vector<int>{7, 8, 9, 10, 11}));
    std::set<int32_t> slots;
    for (const StateWrite& write : scheduled.state_writes)
      slots.insert(write.slot);
    EXPECT_EQ(slots.size(), size_t{5});
    seq.drafts.resize(4);
    hybrid.scheduler.launched(hybrid.plan);
    hybrid.scheduler.check_integrity();
    seq.drafts.clear();
    hybrid.scheduler.reject(seq, num_rejected);
    for (int i = 0; i < 5 - num_rejected; ++i)
      hybrid.scheduler.append(seq, 1);
    hybrid.scheduler.check_integrity();
    hybrid.step();
    const ScheduledSequence& next = hybrid.plan.sequences[0];
    EXPECT_EQ(next.first_position, 11 - num_rejected);
    EXPECT_EQ(next.state_read, scheduled.state_writes[static_cast<size_t>(4 - num_rejected)].slot);
    Sequence other = make_sequence(10);
    std::ranges::fill(other.token_ids, 1);
    EXPECT_EQ(hybrid.run(other), cached);
    hybrid.scheduler.finish(seq);
    EXPECT(hybrid.scheduler.blocks().is_idle());
  }
}

// ---- memory ----

MemoryRequest hybrid_request() {
  MemoryRequest request;
  request.groups = {{1000, 0}};
  request.state_slot_bytes = 5000;
  request.snapshot_interval = 512;
  request.block_size = 16;
  request.available_bytes = int64_t{1} << 40;
  request.trained_length = 8192;
  request.max_num_seqs = 4;
  request.max_num_batched_tokens = 512;
  return request;
}

TEST(memory_of_states_serves_all_sequences_and_their_snapshots) {
  const MemoryPlan plan = plan_memory(hybrid_request());
  EXPECT(plan.num_blocks == (std::vector<int>{4 * 512}));
  EXPECT_EQ(plan.num_state_slots, 4 * (2 + 16));
  EXPECT_EQ(plan.kv_cache_bytes, int64_t{2048} * 1000 + int64_t{72} * 5000);
}

TEST(memory_of_states_without_a_prefix_cache_has_no_snapshots) {
  MemoryRequest request = hybrid_request();
  request.has_prefix_cache = false;
  EXPECT_EQ(plan_memory(request).num_state_slots, 4);
  request.max_num_drafts = 7;
  EXPECT_EQ(plan_memory(request).num_state_slots, 11);
}

TEST(memory_of_states_is_half_when_it_is_short) {
  MemoryRequest request = hybrid_request();
  request.kv_cache_bytes = 600'000;
  EXPECT_EQ(plan_memory(request).num_state_slots, 60);
  EXPECT(plan_memory(request).num_blocks == (std::vector<int>{300}));
  EXPECT_EQ(plan_memory(request).max_model_len, 4800);
  // A length that was asked for leaves fewer slots.
  request.max_model_len = 8192;
  EXPECT_EQ(plan_memory(request).num_state_slots, 17);
  EXPECT(plan_memory(request).num_blocks == (std::vector<int>{515}));
  request.kv_cache_bytes = 516'999;
  EXPECT_ERROR("out_of_memory", plan_memory(request));
  request.kv_cache_bytes = 517'000;
  EXPECT_EQ(plan_memory(request).num_state_slots, 1);
}

TEST(memory_of_states_alone_takes_all_bytes) {
  MemoryRequest request = hybrid_request();
  request.groups.clear();
  request.kv_cache_bytes = 100'000;
  EXPECT_EQ(plan_memory(request).num_state_slots, 20);
  EXPECT(plan_memory(request).num_blocks.empty());
  EXPECT_EQ(plan_memory(request).max_model_len, 8192);
  request.kv_cache_bytes = 4'999;
  EXPECT_ERROR("out_of_memory", plan_memory(request));
}

}  // namespace
}  // namespace capstan
