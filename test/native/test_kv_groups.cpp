// KV groups: what a group with a window frees, shares and finds again, and how the memory is divided.
#include <deque>
#include <limits>
#include <memory>
#include <random>

#include "native/base/sip_hash.h"
#include "native/engine/memory_plan.h"
#include "native/engine/scheduler.h"
#include "native/model/weights.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

constexpr int kBlockSize = 4;

Sequence make_sequence(int num_prompt_tokens, int first_id = 1) {
  Sequence seq;
  for (int i = 0; i < num_prompt_tokens; ++i)
    seq.token_ids.push_back(first_id + i);
  seq.num_prompt_tokens = num_prompt_tokens;
  seq.sampling.max_tokens = 100;
  return seq;
}

// Plans and launches a step, and appends the samples.
void run_step(Scheduler& scheduler) {
  StepPlan plan;
  scheduler.plan_step(plan);
  scheduler.launched(plan);
  for (const ScheduledSequence& scheduled : plan.sequences)
    if (scheduled.samples) scheduler.append(*scheduled.seq, 1);
  scheduler.check_integrity();
}

// Computes a prompt and ends the sequence.
void run_prompt(Scheduler& scheduler, int num_tokens, int first_id, bool is_poisoned = false) {
  Sequence seq = make_sequence(num_tokens, first_id);
  scheduler.add(seq);
  while (seq.num_tokens() == num_tokens)
    run_step(scheduler);
  scheduler.finish(seq, is_poisoned);
}

// Returns the length of the cached prefix of a prompt.
int cached_tokens(Scheduler& scheduler, Sequence seq) {
  scheduler.add(seq);
  run_step(scheduler);
  scheduler.finish(seq);
  scheduler.check_integrity();
  return seq.num_cached_tokens;
}

int num_used(const BlockPool& pool) {
  return pool.num_blocks() - pool.num_available();
}

SchedulerLimits limits_of_steps(int max_num_batched_tokens) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = max_num_batched_tokens;
  return limits;
}

// From the reference implementation of SipHash, and `openssl mac -macopt size:16 SIPHASH`.
TEST(sip_hash_equals_the_reference) {
  std::vector<std::byte> message(15);
  for (size_t i = 0; i < message.size(); ++i)
    message[i] = static_cast<std::byte>(i);
  const Hash128 key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  const auto hash_of = [&](size_t size) { return sip_hash_128(key, std::span(message).first(size)); };
  EXPECT(hash_of(0) == (Hash128{0xe6a825ba047f81a3, 0x930255c71472f66d}));
  EXPECT(hash_of(1) == (Hash128{0x44af996bd8c187da, 0x45fc229b11597634}));
  EXPECT(hash_of(15) == (Hash128{0x11a8b03399e99354, 0xd9c3cf970fec087e}));
}

TEST(kv_groups_with_a_window_hold_its_blocks_only) {
  constexpr int kWindow = 8;
  for (const bool has_prefix_cache : {true, false}) {
    Scheduler scheduler(limits_of_steps(8), BlockManager({{30}, {6, kWindow}}, kBlockSize, has_prefix_cache));
    Sequence seq = make_sequence(60);
    scheduler.add(seq);
    while (seq.num_tokens() < 100) {
      run_step(scheduler);
      // Between two steps the window begins and ends within a block, and the end of the prompt keeps one more.
      EXPECT(num_used(scheduler.blocks().pool(1)) <= (kWindow + kBlockSize - 1) / kBlockSize + 2);
    }
    EXPECT_EQ(num_used(scheduler.blocks().pool(0)), 25);
    EXPECT_EQ(seq.num_preemptions, 0);
    EXPECT_EQ(seq.block_tables[1].num_freed, (99 - kWindow + 1) / kBlockSize);
    scheduler.finish(seq);
    EXPECT(scheduler.blocks().is_idle());
  }
}

TEST(kv_groups_of_one_window_hold_its_blocks_only) {
  Scheduler scheduler(limits_of_steps(8), BlockManager({{5, 8}}, kBlockSize, true));
  Sequence seq = make_sequence(60);
  scheduler.add(seq);
  for (int i = 0; i < 30; ++i)
    run_step(scheduler);
  EXPECT(seq.num_tokens() > 80 && seq.num_preemptions == 0);
}

TEST(kv_groups_of_the_largest_window_are_admitted_when_the_prompt_fits) {
  for (const int num_blocks : {2, 3}) {
    BlockManager blocks({{num_blocks, std::numeric_limits<int>::max()}}, kBlockSize, false);
    Sequence seq = make_sequence(2 * kBlockSize + 1);
    EXPECT_EQ(blocks.admit(seq, 0, false), num_blocks == 3);
  }
}

TEST(kv_groups_hit_needs_the_last_window) {
  for (const int num_window_blocks : {40, 6}) {
    Scheduler scheduler(limits_of_steps(8), BlockManager({{40}, {num_window_blocks, 8}}, kBlockSize, true));
    run_prompt(scheduler, 41, 1);
    // The end of the prompt has its window in the cache.
    EXPECT_EQ(cached_tokens(scheduler, make_sequence(41)), 40);
    // The middle of the prompt has it while the pool is large: six blocks have evicted it.
    Sequence middle = make_sequence(20);
    middle.token_ids.push_back(99);
    ++middle.num_prompt_tokens;
    EXPECT_EQ(cached_tokens(scheduler, middle), num_window_blocks == 40 ? 20 : 0);
  }
}

TEST(kv_groups_hit_needs_all_earlier_tokens_in_a_group_without_a_window) {
  Scheduler scheduler(limits_of_steps(64), BlockManager({{12}, {100, 8}}, kBlockSize, true));
  run_prompt(scheduler, 41, 1);
  EXPECT_EQ(cached_tokens(scheduler, make_sequence(41)), 40);
  // Another prompt evicts the tail of the first one from the small group.
  run_prompt(scheduler, 17, 1000);
  EXPECT_EQ(cached_tokens(scheduler, make_sequence(41)), 28);
}

TEST(kv_groups_evicted_head_becomes_a_hit_again) {
  // A short window, whose old blocks are evicted. What follows them stays reachable.
  Scheduler scheduler(limits_of_steps(8), BlockManager({{6, 8}}, kBlockSize, true));
  run_prompt(scheduler, 41, 1);
  EXPECT_EQ(cached_tokens(scheduler, make_sequence(41)), 40);
}

TEST(block_pool_compares_the_tokens_of_a_hit) {
  BlockPool pool(2, 2, true);
  const std::vector<int32_t> tokens{1, 2}, others{1, 3};
  const PrefixKey key = extend_key(root_key(""), tokens);
  const int32_t block_id = pool.take();
  pool.publish(block_id, key, tokens);
  EXPECT_EQ(pool.find(key, tokens), block_id);
  EXPECT_EQ(pool.find(key, others), -1);
  EXPECT(extend_key(root_key("tenant"), tokens) != key && extend_key(root_key(""), others) != key);
}

TEST(kv_groups_salts_share_nothing) {
  Scheduler scheduler(limits_of_steps(64), BlockManager({{40}, {40, 8}}, kBlockSize, true));
  run_prompt(scheduler, 41, 1);
  Sequence other = make_sequence(41);
  other.cache_salt = "tenant";
  EXPECT_EQ(cached_tokens(scheduler, other), 0);
}

TEST(kv_groups_forget_all_blocks_of_a_numeric_error) {
  Scheduler scheduler(limits_of_steps(8), BlockManager({{40}, {40, 8}}, kBlockSize, true));
  run_prompt(scheduler, 41, 1, true);
  EXPECT_EQ(scheduler.blocks().pool(0).num_cached(), 0);
  EXPECT_EQ(scheduler.blocks().pool(1).num_cached(), 0);
  EXPECT_EQ(cached_tokens(scheduler, make_sequence(41)), 0);
}

TEST(kv_groups_choices_share_the_prompt_without_a_prefix_cache) {
  for (const int num_prompt_tokens : {40, 41, 43, 44}) {
    Scheduler scheduler(limits_of_steps(8), BlockManager({{40}, {20, 5}}, kBlockSize, false));
    Sequence leader = make_sequence(num_prompt_tokens), follower = make_sequence(num_prompt_tokens);
    follower.leader = &leader;
    scheduler.add(leader);
    scheduler.add(follower);
    while (follower.status == SequenceStatus::kWaiting)
      run_step(scheduler);
    EXPECT_EQ(follower.num_cached_tokens, (num_prompt_tokens - 1) / kBlockSize * kBlockSize);
  }
}

TEST(kv_groups_late_choice_computes_its_prompt) {
  SchedulerLimits limits = limits_of_steps(64);
  limits.max_num_seqs = 2;
  Scheduler scheduler(limits, BlockManager({{40}, {40, 5}}, kBlockSize, false));
  Sequence leader = make_sequence(41), other = make_sequence(5, 500), follower = make_sequence(41);
  follower.leader = &leader;
  scheduler.add(leader);
  scheduler.add(other);
  scheduler.add(follower);
  for (int i = 0; i < 10; ++i)
    run_step(scheduler);
  EXPECT(follower.status == SequenceStatus::kWaiting);
  // The leader has freed the window of the prompt's end.
  scheduler.finish(other);
  run_step(scheduler);
  EXPECT(follower.status == SequenceStatus::kRunning);
  EXPECT_EQ(follower.num_cached_tokens, 0);
  EXPECT_EQ(follower.num_tokens(), 42);
}

TEST(kv_groups_short_of_blocks_cut_chunks_and_preempt) {
  // Two sequences whose windows fit only one after the other.
  Scheduler scheduler(limits_of_steps(64), BlockManager({{100}, {6, 16}}, kBlockSize, false));
  Sequence first = make_sequence(60), second = make_sequence(60, 500);
  scheduler.add(first);
  scheduler.add(second);
  for (int i = 0; i < 200 && (first.num_tokens() < 80 || second.num_tokens() < 80); ++i) {
    for (Sequence* seq : {&first, &second})
      if (seq->num_tokens() == 80) scheduler.finish(*seq);
    run_step(scheduler);
  }
  EXPECT(first.num_tokens() == 80 && second.num_tokens() == 80);
  EXPECT_EQ(first.num_preemptions, 0);
}

// Adds, steps, rejects drafts, ends and preempts sequences at random, with few blocks in one group or another.
TEST(kv_groups_keep_their_integrity_under_random_operations) {
  int64_t num_preemptions = 0, num_evictions = 0, num_cached = 0;
  for (uint32_t seed = 1; seed <= 80; ++seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<uint32_t>(most)); };
    const int depth = 1 + up_to(2), window = 1 + up_to(20);
    SpeculationOptions speculation{.num_tokens = 4, .max_ngram = 1, .min_ngram = 1, .max_step_tokens = 16};
    SchedulerLimits limits{6, 8 + up_to(24), 64, random() % 2 ? 10.0 : 0.0, {}, speculation};
    std::vector<KvGroupBlocks> groups{{(window + kBlockSize) / kBlockSize + 2 + up_to(24), window}};
    if (random() % 3) groups.push_back({16 + up_to(24), 0});
    Scheduler scheduler(limits, BlockManager(groups, kBlockSize, random() % 4 != 0));
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::deque<StepPlan> in_flight;
    const auto collect = [&] {
      for (const ScheduledSequence& scheduled : in_flight.front().sequences) {
        Sequence& seq = *scheduled.seq;
        if (seq.status != SequenceStatus::kRunning || seq.epoch != scheduled.epoch || !scheduled.samples) continue;
        seq.drafts.clear();
        const int num_rejected = up_to(scheduled.num_drafts + 1);
        scheduler.reject(seq, num_rejected);
        for (int i = 0; i <= scheduled.num_drafts - num_rejected; ++i)
          scheduler.append(seq, up_to(2));
        if (seq.num_completion_tokens() >= seq.sampling.max_tokens)
          scheduler.finish(seq);
        else
          seq.ngrams->update(seq.token_ids, seq.num_prompt_tokens);
      }
      in_flight.pop_front();
    };
    const auto launch = [&] {
      StepPlan plan;
      if (!scheduler.plan_step(plan)) return;
      for (size_t i = 0; i < plan.sequences.size(); ++i) {
        ScheduledSequence& scheduled = plan.sequences[i];
        Sequence& seq = *scheduled.seq;
        if (!scheduled.samples || scheduled.num_tokens > 1 || seq.num_in_flight > 0) continue;
        const int count = scheduler.plan_drafts(plan, i, seq.num_wanted_drafts());
        seq.drafts.resize(static_cast<size_t>(up_to(count + 1)));
        scheduler.cut_drafts(plan, i, count - static_cast<int>(seq.drafts.size()));
      }
      scheduler.launched(plan);
      in_flight.push_back(plan);
    };
    for (int operation = 0; operation < 400; ++operation) {
      const auto kind = random() % 8;
      if (kind == 0) {
        sequences.push_back(std::make_unique<Sequence>(make_sequence(1 + up_to(40))));
        sequences.back()->sampling.max_tokens = 1 + up_to(20);
        sequences.back()->ngrams.emplace(speculation);
        if (random() % 2) sequences.back()->sampling.presence_penalty = 1;
        scheduler.add(*sequences.back());
      } else if (kind == 1 && !sequences.empty()) {
        Sequence& seq = *sequences[random() % sequences.size()];
        scheduler.finish(seq, random() % 4 == 0);
      } else if (static_cast<int>(in_flight.size()) < depth && random() % 2) {
        launch();
      } else if (!in_flight.empty()) {
        collect();
      }
      scheduler.check_integrity();
    }
    // Whatever waits comes to its end.
    for (int step = 0; scheduler.has_work() && step < 10'000; ++step) {
      launch();
      collect();
    }
    EXPECT(!scheduler.has_work() && scheduler.blocks().is_idle());
    num_preemptions += scheduler.num_preemptions();
    num_evictions += scheduler.blocks().num_evictions();
    for (const auto& seq : sequences)
      num_cached += seq->num_cached_tokens;
  }
  EXPECT(num_preemptions > 100 && num_evictions > 100 && num_cached > 1000);
}

// ---- memory ----

MemoryRequest gemma_like() {
  MemoryRequest request;
  request.groups = {{1000, 0}, {5000, 512}};
  request.block_size = 16;
  request.available_bytes = int64_t{1} << 40;
  request.trained_length = 32768;
  request.max_num_seqs = 4;
  request.max_num_batched_tokens = 512;
  return request;
}

TEST(memory_of_a_window_does_not_follow_the_context) {
  MemoryRequest request = gemma_like();
  const MemoryPlan plan = plan_memory(request);
  EXPECT_EQ(plan.num_blocks[0], 4 * 2048);
  // Twice four windows of 32 blocks and two more, and a step.
  EXPECT_EQ(plan.num_blocks[1], 2 * 4 * 34 + 32);
  EXPECT_EQ(plan.kv_cache_bytes, int64_t{plan.num_blocks[0]} * 1000 + int64_t{plan.num_blocks[1]} * 5000);
  // A window that is longer than the context is as large as it.
  request.trained_length = 256;
  EXPECT(plan_memory(request).num_blocks == (std::vector<int>{64, 64}));
}

TEST(memory_that_is_short_serves_both_groups) {
  MemoryRequest request = gemma_like();
  request.kv_cache_bytes = 6000 * 200;
  const MemoryPlan plan = plan_memory(request);
  EXPECT(plan.num_blocks == (std::vector<int>{200, 200}));
  EXPECT_EQ(plan.max_model_len, 3200);
  request.kv_cache_bytes = 304 * 5000 + 2048 * 1000;
  EXPECT(plan_memory(request).num_blocks == (std::vector<int>{2048, 304}));
  EXPECT_EQ(plan_memory(request).max_model_len, 32768);
  request.kv_cache_bytes -= 1;
  EXPECT_EQ(plan_memory(request).max_model_len, 2047 * 16);
  request.max_model_len = 32768;
  EXPECT_ERROR("out_of_memory", plan_memory(request));
}

TEST(memory_of_one_window_needs_no_more_than_it) {
  MemoryRequest request = gemma_like();
  request.groups = {{1000, 512}};
  EXPECT(plan_memory(request).num_blocks == (std::vector<int>{2 * 4 * 34 + 32}));
  EXPECT_EQ(plan_memory(request).max_model_len, 32768);
  // One sequence: its window and a step.
  request.kv_cache_bytes = 66 * 1000;
  EXPECT_EQ(plan_memory(request).max_model_len, 32768);
  request.kv_cache_bytes = 65 * 1000;
  EXPECT_EQ(plan_memory(request).max_model_len, 65 * 16);
  // The prefix cache uses the rest of a size that was asked for.
  request.kv_cache_bytes = 5000 * 1000;
  EXPECT(plan_memory(request).num_blocks == (std::vector<int>{5000}));
}

}  // namespace
}  // namespace capstan
