// The scheduler without an engine: the test decides which samples arrive and when.
#include <algorithm>
#include <deque>
#include <memory>
#include <random>

#include "native/engine/mask_pool.h"
#include "native/engine/scheduler.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

Sequence make_sequence(int num_prompt_tokens) {
  Sequence seq;
  seq.token_ids.assign(static_cast<size_t>(num_prompt_tokens), 1);
  seq.num_prompt_tokens = num_prompt_tokens;
  seq.sampling.max_tokens = 100;
  return seq;
}

// Plans and launches a step and appends the samples. Returns the sequences of the step.
std::vector<Sequence*> run_step(Scheduler& scheduler) {
  StepPlan plan;
  scheduler.plan_step(plan);
  scheduler.launched(plan);
  std::vector<Sequence*> planned;
  for (const ScheduledSequence& scheduled : plan.sequences) {
    planned.push_back(scheduled.seq);
    if (scheduled.samples) scheduler.append(*scheduled.seq, 1);
  }
  return planned;
}

TEST(scheduler_last_decode_preempts_a_late_sequence_before_it) {
  constexpr int kNumBlocks = 4, kBlockSize = 4;
  Scheduler scheduler({}, BlockManager({{kNumBlocks}}, kBlockSize, false));
  Sequence late = make_sequence(5), growing = make_sequence(4);
  scheduler.add(late);
  scheduler.add(growing);
  run_step(scheduler);
  EXPECT(late.status == SequenceStatus::kRunning && growing.status == SequenceStatus::kRunning);
  late.mask_job = std::make_shared<MaskJob>();
  late.is_mask_late = true;

  while (late.num_preemptions == 0 && growing.num_tokens() < 20)
    EXPECT(run_step(scheduler) == std::vector<Sequence*>{&growing});
  EXPECT_EQ(late.num_preemptions, 1);
  EXPECT(late.status == SequenceStatus::kWaiting && late.block_tables.empty());
  EXPECT_EQ(growing.num_tokens(), 10);
  EXPECT_EQ(growing.block_tables[0].block_ids.size(), size_t{3});
}

// A sequence that proposes tokens.
Sequence make_drafting_sequence(const SpeculationOptions& options) {
  Sequence seq = make_sequence(6);
  seq.ngrams.emplace(options);
  seq.ngrams->update(seq.token_ids, seq.num_prompt_tokens);
  return seq;
}

TEST(scheduler_drafts_take_only_room_that_nothing_else_needs) {
  constexpr int kBlockSize = 4;
  const SpeculationOptions options{.num_tokens = 8, .max_ngram = 1, .min_ngram = 1, .max_step_tokens = 6};
  SchedulerLimits limits;
  limits.speculation = options;
  Scheduler scheduler(limits, BlockManager({{3}}, kBlockSize, true));
  Sequence seq = make_drafting_sequence(options);
  scheduler.add(seq);
  run_step(scheduler);
  EXPECT_EQ(seq.num_tokens(), 7);
  StepPlan plan;
  EXPECT(scheduler.plan_step(plan));
  EXPECT_EQ(scheduler.draft_capacity(plan), 5);
  // Three blocks hold 12 tokens.
  EXPECT_EQ(scheduler.plan_drafts(plan, 0, 9), 5);
  EXPECT_EQ(plan.num_tokens, 6);
  EXPECT_EQ(seq.block_tables[0].block_ids.size(), size_t{3});
  scheduler.cut_drafts(plan, 0, 4);
  EXPECT_EQ(plan.sequences[0].num_tokens, 2);
  EXPECT_EQ(seq.block_tables[0].block_ids.size(), size_t{2});
  EXPECT_EQ(scheduler.plan_drafts(plan, 0, 4), 4);
  seq.drafts.resize(5);
  scheduler.launched(plan);
  EXPECT_EQ(seq.num_computed_tokens, 12);
  // The first two drafts hold.
  seq.drafts.clear();
  scheduler.reject(seq, 3);
  for (int i = 0; i < 3; ++i)
    scheduler.append(seq, 1);
  EXPECT_EQ(seq.num_in_flight, 0);
  EXPECT_EQ(seq.num_computed_tokens, 9);
  EXPECT_EQ(seq.block_tables[0].num_published, 2);
  scheduler.check_integrity();
  // Without a free block there are no drafts, and no sequence is preempted.
  EXPECT(scheduler.plan_step(plan));
  EXPECT_EQ(scheduler.plan_drafts(plan, 0, 5), 2);
  EXPECT_EQ(seq.num_preemptions, 0);
}

TEST(scheduler_frees_the_blocks_of_rejected_drafts) {
  const SpeculationOptions options{.num_tokens = 8, .max_ngram = 1, .min_ngram = 1, .max_step_tokens = 16};
  SchedulerLimits limits;
  limits.speculation = options;
  Scheduler scheduler(limits, BlockManager({{8}}, 4, true));
  Sequence seq = make_drafting_sequence(options);
  scheduler.add(seq);
  run_step(scheduler);
  StepPlan plan;
  EXPECT(scheduler.plan_step(plan));
  EXPECT_EQ(scheduler.plan_drafts(plan, 0, 8), 8);
  seq.drafts.resize(8);
  scheduler.launched(plan);
  EXPECT_EQ(seq.block_tables[0].block_ids.size(), size_t{4});
  seq.drafts.clear();
  scheduler.reject(seq, 8);
  scheduler.append(seq, 1);
  EXPECT_EQ(seq.block_tables[0].block_ids.size(), size_t{2});
  EXPECT_EQ(scheduler.blocks().pool(0).num_available(), 6);
  scheduler.check_integrity();
}

TEST(step_times_count_drafts_as_decodes) {
  Sequence seq = make_sequence(6);
  StepPlan plan;
  plan.sequences.push_back({.seq = &seq, .first_position = 6, .num_tokens = 5, .samples = true, .num_drafts = 4});
  plan.num_tokens = 5;
  StepTimes times;
  times.measure(plan, 10);
  // Nothing is known about prefill yet.
  EXPECT_EQ(times.prefill_ms(0, 100), 0.0);
}

// A machine whose step takes `base_ms`, `token_ms` for each token and `context_ms` for each token and 1,000 tokens of
// its context. Small chunks are free while the weights are read.
struct Machine {
  double base_ms, token_ms, context_ms;

  double ms(const StepPlan& plan) const {
    double work = 0;
    for (const ScheduledSequence& scheduled : plan.sequences)
      work += scheduled.num_tokens *
              (token_ms + context_ms * (scheduled.first_position + 0.5 * scheduled.num_tokens) / 1000);
    return std::max(base_ms, work) + 0.1 * work;
  }
};

struct LongPrompt {
  double longest_ms = 0;  // of a step in which streams decode
  int num_steps = 0;      // until the prompt is computed
  double total_ms = 0;
  double decode_ms = 0;  // of a step of the streams alone, at the end
};

// Sends a prompt while `num_streams` sequences decode.
LongPrompt run_long_prompt(const Machine& machine, int num_streams, int num_prompt_tokens, double max_step_ms) {
  SchedulerLimits limits;
  limits.max_model_len = 100'000;
  limits.max_step_ms = max_step_ms;
  limits.context_work = {{0, machine.context_ms / 1000 / machine.token_ms}};
  Scheduler scheduler(limits, BlockManager({{20'000}}, 16, false));
  StepPlan plan;
  const auto step = [&] {
    scheduler.plan_step(plan);
    scheduler.launched(plan);
    scheduler.measured(plan, machine.ms(plan));
    for (const ScheduledSequence& scheduled : plan.sequences)
      if (scheduled.samples) scheduler.append(*scheduled.seq, 1);
  };
  std::deque<Sequence> streams;
  for (int i = 0; i < num_streams; ++i) {
    streams.push_back(make_sequence(5));
    streams.back().sampling.max_tokens = 90'000;
    scheduler.add(streams.back());
  }
  for (int i = 0; i < 10; ++i)
    step();
  Sequence prompt = make_sequence(num_prompt_tokens);
  scheduler.add(prompt);
  LongPrompt seen;
  while (prompt.num_computed_tokens < num_prompt_tokens && seen.num_steps < 100'000) {
    step();
    ++seen.num_steps;
    seen.total_ms += machine.ms(plan);
    if (num_streams > 0) seen.longest_ms = std::max(seen.longest_ms, machine.ms(plan));
  }
  plan.clear();
  for (Sequence& stream : streams) {
    plan.sequences.emplace_back().num_tokens = 1;
    plan.sequences.back().first_position = stream.num_computed_tokens;
  }
  seen.decode_ms = machine.ms(plan);
  return seen;
}

TEST(a_long_prompt_lengthens_steps_by_at_most_max_step_ms) {
  // From a small model on a fast machine to a large one on a slow machine.
  for (const Machine& machine : {Machine{2, 0.05, 0.05}, Machine{30, 1, 0.5}, Machine{40, 3, 2}, Machine{600, 30, 5}}) {
    for (const int num_streams : {1, 8, 40}) {
      const LongPrompt seen = run_long_prompt(machine, num_streams, 3'000, 100);
      EXPECT(seen.longest_ms <= 1.1 * (seen.decode_ms + 100));
      // Most of the time is used: a prompt does not crawl.
      const double num_ideal_steps = seen.total_ms / (seen.decode_ms + 100);
      EXPECT(seen.num_steps <= 1.5 * num_ideal_steps + 15);
    }
  }
}

// A machine on which a step of decodes takes 20 ms and 3 ms a stream, and a prefill token 0.75 ms.
double stream_ms(int num_streams) {
  return 20 + 3 * num_streams;
}

StepPlan step_of(int num_streams, int first_position, int num_prefill_tokens) {
  StepPlan plan;
  plan.clear();
  for (int i = 0; i < num_streams; ++i) {
    plan.sequences.emplace_back().first_position = 500;
    plan.sequences.back().num_tokens = 1;
    plan.sequences.back().samples = true;
  }
  if (num_prefill_tokens == 0) return plan;
  plan.sequences.emplace_back().first_position = first_position;
  plan.sequences.back().num_tokens = num_prefill_tokens;
  return plan;
}

TEST(step_times_count_no_more_context_than_the_windows_hold) {
  // Without a measurement of prefill all times are 0.
  const auto ms_at = [](std::map<int, double> work, int position) {
    StepTimes times(std::move(work));
    times.measure(step_of(0, 0, 100), 100);
    return times.prefill_ms(position, 100);
  };
  EXPECT_NEAR(ms_at({}, 100'000), 100, 1e-9);
  EXPECT_NEAR(ms_at({{64, 0.01}}, 100'000), ms_at({{64, 0.01}}, 1'000), 1e-9);
  // 50 tokens of context at first, later all of them without a window and 64 with one.
  EXPECT_NEAR(ms_at({{0, 0.01}, {64, 0.02}}, 950), 100 * (1 + 0.01 * 1'000 + 0.02 * 64) / (1 + 0.01 * 50 + 0.02 * 50),
              1e-9);
}

// Returns the longest step while one stream decodes and a prompt of 6,000 tokens arrives.
double longest_ms(StepTimes times) {
  double longest = 0;
  for (int pos = 0, num_tokens = 0; pos < 6'000; pos += num_tokens) {
    num_tokens = times.tokens_within(90, pos, std::min(512, 6'000 - pos));
    const double ms = stream_ms(1) + 0.75 * num_tokens;
    longest = std::max(longest, ms);
    times.measure(step_of(1, pos, num_tokens), ms);
  }
  return longest;
}

TEST(step_times_survive_a_slow_step_and_streams_that_end) {
  StepTimes quiet;
  quiet.measure(step_of(0, 0, 512), 20 + 0.75 * 512);
  StepTimes busy = quiet, first_is_slow = quiet;
  first_is_slow.measure(step_of(1, 0, 0), 1'000);
  for (int i = 0; i < 100; ++i) {
    quiet.measure(step_of(1, 0, 0), stream_ms(1));
    busy.measure(step_of(64, 0, 0), stream_ms(64));
  }
  EXPECT(longest_ms(quiet) <= 100 + stream_ms(1));
  StepTimes slow = quiet;
  slow.measure(step_of(1, 0, 0), 1'000);
  EXPECT(longest_ms(slow) <= 100 + stream_ms(1));
  EXPECT(longest_ms(first_is_slow) <= 100 + stream_ms(1));
  EXPECT(longest_ms(busy) <= 100 + stream_ms(1));  // 64 streams ended, one continues
}

TEST(many_short_prompts_at_once_do_not_exceed_the_time_of_a_step) {
  SchedulerLimits limits;
  limits.max_num_seqs = 256;
  limits.max_step_ms = 100;
  limits.max_model_len = 100'000;
  Scheduler scheduler(limits, BlockManager({{20'000}}, 16, false));
  std::deque<Sequence> sequences;
  StepPlan plan;
  const auto add = [&](int num_prompt_tokens) {
    sequences.push_back(make_sequence(num_prompt_tokens));
    sequences.back().sampling.max_tokens = 1'000;
    scheduler.add(sequences.back());
  };
  // 0.75 ms a token, which reading the weights hides up to 20 ms. Returns how much longer the step takes than its
  // decodes alone.
  const auto step = [&] {
    scheduler.plan_step(plan);
    scheduler.launched(plan);
    const double ms = std::max(20.0, 0.75 * plan.num_tokens);
    scheduler.measured(plan, ms);
    for (const ScheduledSequence& scheduled : plan.sequences)
      if (scheduled.samples) scheduler.append(*scheduled.seq, 1);
    const auto num_decodes = std::ranges::count(plan.sequences, 1, &ScheduledSequence::num_tokens);
    return ms - std::max(20.0, 0.75 * static_cast<double>(num_decodes));
  };
  add(8);
  for (int i = 0; i < 20; ++i)
    step();
  for (int i = 0; i < 30; ++i) {
    add(8);
    step();
    step();
  }
  for (int i = 0; i < 64; ++i)
    add(16);
  for (int i = 0; i < 30; ++i)
    EXPECT(step() <= 100);
}

TEST(a_prompt_is_not_cut_when_nothing_decodes_or_without_a_limit) {
  const Machine machine{30, 1, 0.5};
  EXPECT_EQ(run_long_prompt(machine, 0, 3'000, 100).num_steps, 6);  // 512 tokens a step
  const LongPrompt unlimited = run_long_prompt(machine, 1, 3'000, 0);
  EXPECT_EQ(unlimited.num_steps, 6);
  EXPECT(unlimited.longest_ms > 500);
}

TEST(a_prompt_is_not_cut_for_a_sequence_that_waits_for_its_mask) {
  SchedulerLimits limits;
  limits.max_model_len = 100'000;
  limits.max_step_ms = 100;
  Scheduler scheduler(limits, BlockManager({{20'000}}, 16, false));
  Sequence stream = make_sequence(5), prompt = make_sequence(3'000);
  scheduler.add(stream);
  run_step(scheduler);
  scheduler.measured(step_of(0, 0, 5), 50);
  scheduler.add(prompt);
  stream.mask_job = std::make_shared<MaskJob>();
  run_step(scheduler);
  EXPECT_EQ(prompt.num_computed_tokens, limits.max_num_batched_tokens);
  stream.mask_job = nullptr;
  run_step(scheduler);
  EXPECT(prompt.num_computed_tokens <= limits.max_num_batched_tokens + 10);
}

// Adds, steps, ends and holds up sequences at random, with few blocks.
Sequence make_background(int num_prompt_tokens) {
  Sequence seq = make_sequence(num_prompt_tokens);
  seq.priority = 1;
  return seq;
}

TEST(background_work_skips_the_steps_that_compute_an_urgent_prompt) {
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 8;
  Scheduler scheduler(limits, BlockManager({{64}}, 4, false));
  Sequence background = make_background(6), waiting = make_background(6), urgent = make_sequence(20);
  scheduler.add(background);
  EXPECT(run_step(scheduler) == std::vector<Sequence*>{&background});
  scheduler.add(waiting);
  scheduler.add(urgent);
  EXPECT_EQ(scheduler.num_background(), 2);
  EXPECT_EQ(scheduler.num_waiting_background_tokens(), int64_t{6});
  for (int i = 0; i < 3; ++i) {
    EXPECT(run_step(scheduler) == std::vector<Sequence*>{&urgent});
    EXPECT(background.status == SequenceStatus::kRunning && !background.block_tables.empty());
    EXPECT(waiting.status == SequenceStatus::kWaiting);
  }
  EXPECT_EQ(urgent.num_completion_tokens(), 1);
  // Its decodes share the step with what is less urgent.
  EXPECT((run_step(scheduler) == std::vector<Sequence*>{&urgent, &background, &waiting}));
  EXPECT((run_step(scheduler) == std::vector<Sequence*>{&urgent, &background, &waiting}));
  EXPECT_EQ(scheduler.num_preemptions(), int64_t{0});
  scheduler.finish(waiting);
  EXPECT_EQ(scheduler.num_background(), 1);
  scheduler.check_integrity();
}

// A prompt in the prefix cache takes one token of a step, and the first token does not wait for others either.
TEST(background_work_skips_the_step_of_a_cached_urgent_prompt) {
  Scheduler scheduler({}, BlockManager({{64}}, 4, true));
  Sequence first = make_sequence(9), background = make_background(6), again = make_sequence(9);
  scheduler.add(first);
  run_step(scheduler);
  scheduler.finish(first);
  scheduler.add(background);
  run_step(scheduler);
  scheduler.add(again);
  EXPECT(run_step(scheduler) == std::vector<Sequence*>{&again});
  EXPECT_EQ(again.num_cached_tokens, 8);
  EXPECT_EQ(again.num_completion_tokens(), 1);
}

TEST(an_urgent_sequence_takes_the_slot_and_the_blocks_of_the_least_urgent_youngest) {
  SchedulerLimits limits;
  limits.max_num_seqs = 3;
  Scheduler scheduler(limits, BlockManager({{9}}, 4, false));
  Sequence old = make_background(4), young = make_background(4), later = make_background(4), urgent = make_sequence(4),
           large = make_sequence(20);
  later.priority = 2;
  scheduler.add(later);
  scheduler.add(old);
  scheduler.add(young);
  EXPECT((run_step(scheduler) == std::vector<Sequence*>{&old, &young}));
  EXPECT((run_step(scheduler) == std::vector<Sequence*>{&old, &young, &later}));
  scheduler.add(urgent);
  EXPECT(run_step(scheduler) == std::vector<Sequence*>{&urgent});
  EXPECT(later.num_preemptions == 1 && old.num_preemptions + young.num_preemptions == 0);
  // Six blocks, beside those that `urgent` holds and will need.
  scheduler.add(large);
  EXPECT((run_step(scheduler) == std::vector<Sequence*>{&urgent, &large}));
  EXPECT(young.num_preemptions == 1 && old.num_preemptions == 1);
  EXPECT_EQ(later.num_preemptions, 1);
  scheduler.check_integrity();
  // The preempted ones return in their order when there is room.
  scheduler.finish(large);
  scheduler.finish(urgent);
  EXPECT((run_step(scheduler) == std::vector<Sequence*>{&old, &young}));
  EXPECT((run_step(scheduler) == std::vector<Sequence*>{&old, &young, &later}));
}

TEST(background_work_preempts_nothing_that_is_more_urgent) {
  SchedulerLimits limits;
  limits.max_num_seqs = 2;
  Scheduler scheduler(limits, BlockManager({{4}}, 4, false));
  Sequence urgent = make_sequence(4), late = make_sequence(4), background = make_background(4);
  scheduler.add(urgent);
  scheduler.add(late);
  run_step(scheduler);
  late.mask_job = std::make_shared<MaskJob>();
  late.is_mask_late = true;
  scheduler.add(background);
  for (int i = 0; i < 3; ++i)
    EXPECT(run_step(scheduler) == std::vector<Sequence*>{&urgent});
  EXPECT_EQ(scheduler.num_preemptions(), int64_t{0});
}

TEST(background_prompts_are_cut_although_nothing_decodes) {
  const Machine machine{2, 1, 0};
  for (const int priority : {0, 1}) {
    SchedulerLimits limits;
    limits.max_step_ms = 50;
    Scheduler scheduler(limits, BlockManager({{1000}}, 16, false));
    Sequence seq = make_sequence(1500);
    seq.priority = priority;
    seq.sampling.max_tokens = 1;
    scheduler.add(seq);
    double longest_ms = 0;
    StepPlan plan;
    for (int i = 0; seq.num_computed_tokens < 1500; ++i) {
      EXPECT(scheduler.plan_step(plan));
      scheduler.launched(plan);
      scheduler.measured(plan, machine.ms(plan));
      // Nothing is measured before the first step.
      if (i > 0) longest_ms = std::max(longest_ms, machine.ms(plan));
    }
    EXPECT(priority == 1 ? longest_ms <= 12 : longest_ms > 60);
  }
}

TEST(background_prompts_are_cut_shorter_while_urgent_requests_come) {
  const Machine machine{2, 1, 0};
  SchedulerLimits limits;
  limits.max_step_ms = 100;
  limits.max_model_len = 100'000;
  Scheduler scheduler(limits, BlockManager({{10'000}}, 16, false));
  Sequence urgent = make_sequence(64), background = make_background(50'000);
  urgent.sampling.max_tokens = 1;
  StepPlan plan;
  // Returns the longest of some steps.
  const auto longest_ms = [&](int num_steps) {
    double longest = 0;
    for (int i = 0; i < num_steps; ++i) {
      EXPECT(scheduler.plan_step(plan));
      scheduler.launched(plan);
      scheduler.measured(plan, machine.ms(plan));
      longest = std::max(longest, machine.ms(plan));
    }
    return longest;
  };
  scheduler.add(background);
  longest_ms(10);
  EXPECT(longest_ms(5) > 10);
  scheduler.add(urgent);
  longest_ms(1);
  EXPECT_EQ(urgent.num_computed_tokens, 64);
  scheduler.finish(urgent);
  EXPECT(longest_ms(400) <= 6);
  longest_ms(200);
  EXPECT(longest_ms(5) > 10);
}

TEST(scheduler_keeps_its_integrity_under_random_operations) {
  int num_preemptions = 0, num_evictions = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const int depth = 1 + static_cast<int>(random() % 2), num_blocks = 8 + static_cast<int>(random() % 24);
    SchedulerLimits limits{6, 8 + static_cast<int>(random() % 24), 64};
    limits.max_step_ms = random() % 2 ? 10 : 0;
    Scheduler scheduler(limits, BlockManager({{num_blocks}}, 4, random() % 4 != 0));
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::deque<StepPlan> in_flight;
    const auto collect = [&] {
      for (const ScheduledSequence& scheduled : in_flight.front().sequences) {
        Sequence& seq = *scheduled.seq;
        if (seq.status != SequenceStatus::kRunning || seq.epoch != scheduled.epoch || !scheduled.samples) continue;
        scheduler.append(seq, static_cast<int32_t>(random() % 3));
        if (seq.num_completion_tokens() >= seq.sampling.max_tokens)
          scheduler.finish(seq);
        else if (seq.needs_host() && random() % 4 == 0)
          seq.mask_job = std::make_shared<MaskJob>();
      }
      scheduler.measured(in_flight.front(), static_cast<double>(random() % 20));
      in_flight.pop_front();
    };
    for (int operation = 0; operation < 400; ++operation) {
      const auto kind = random() % 8;
      if (kind == 0) {
        sequences.push_back(std::make_unique<Sequence>(make_sequence(1 + static_cast<int>(random() % 24))));
        sequences.back()->sampling.max_tokens = 1 + static_cast<int>(random() % 20);
        if (random() % 2) sequences.back()->sampling.presence_penalty = 1;
        sequences.back()->priority = static_cast<int>(random() % 4) - 1;
        scheduler.add(*sequences.back());
      } else if (kind == 1 && !sequences.empty()) {
        scheduler.finish(*sequences[random() % sequences.size()], random() % 2 == 0);
      } else if (kind == 2 && !sequences.empty()) {
        Sequence& seq = *sequences[random() % sequences.size()];
        seq.is_mask_late = seq.waits_for_mask();
        if (random() % 2) seq.mask_job = nullptr;
      } else if (StepPlan plan; static_cast<int>(in_flight.size()) < depth && scheduler.plan_step(plan)) {
        scheduler.launched(plan);
        in_flight.push_back(plan);
      } else if (!in_flight.empty()) {
        collect();
      }
      scheduler.check_integrity();
    }
    for (const auto& seq : sequences)
      scheduler.finish(*seq);
    scheduler.check_integrity();
    EXPECT_EQ(scheduler.blocks().pool(0).num_available(), num_blocks);
    num_preemptions += static_cast<int>(scheduler.num_preemptions());
    num_evictions += static_cast<int>(scheduler.blocks().num_evictions());
  }
  EXPECT(num_preemptions > 100);
  EXPECT(num_evictions > 100);
}

}  // namespace
}  // namespace capstan
