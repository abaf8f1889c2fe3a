#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <new>
#include <random>
#include <thread>

#include "native/engine/engine.h"
#include "test/native/checking_runner.h"
#include "test/native/gate.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

using testing::CheckingRunner;

constexpr int kNumIds = 50;
constexpr int32_t kEos = 0;

std::shared_ptr<Vocabulary> letters() {
  auto vocabulary = std::make_shared<Vocabulary>();
  vocabulary->offsets.push_back(0);
  for (int id = 0; id < kNumIds; ++id) {
    vocabulary->bytes += static_cast<char>('A' + id % 26);
    vocabulary->offsets.push_back(static_cast<uint32_t>(vocabulary->bytes.size()));
    vocabulary->is_special.push_back(id == kEos);
  }
  return vocabulary;
}

struct Setup {
  int depth = 1, num_blocks = 64, block_size = 4, max_num_seqs = 8, max_num_batched_tokens = 16, max_model_len = 200,
      max_queued = 1024;
  std::vector<KvGroupBlocks> groups;  // empty: one group of num_blocks, or none with has_attention = false
  bool has_attention = true;
  int num_state_slots = 0, snapshot_interval = 8;
  bool has_prefix_cache = true;
  int32_t poisoned_id = -1;
  SpeculationOptions speculation;
  int period = 0;  // of the model, see CheckingRunner
};

struct Answer {
  std::string text;
  std::vector<int32_t> token_ids;
  std::optional<Finish> finish;
  int num_events = 0;
  int num_prompt_logprobs = 0;
};

// An engine on the checking runner. Collects answers by request and choice.
class Harness {
 public:
  explicit Harness(const Setup& setup) {
    EngineOptions options;
    options.limits = {setup.max_num_seqs, setup.max_num_batched_tokens, setup.max_model_len};
    options.limits.speculation = setup.speculation;
    options.max_queued_requests = setup.max_queued;
    options.eos_token_ids = {kEos};
    options.vocab_size = kNumIds;
    options.checks_integrity = true;
    auto groups = setup.groups;
    if (groups.empty() && setup.has_attention) groups.push_back({setup.num_blocks});
    auto runner =
        std::make_unique<CheckingRunner>(setup.depth, groups, setup.num_state_slots, setup.block_size, kNumIds);
    runner->poisoned_id_ = setup.poisoned_id;
    runner->period_ = setup.period;
    engine_ = std::make_unique<Engine>(
        options,
        BlockManager(groups, setup.block_size, setup.has_prefix_cache, setup.num_state_slots, setup.snapshot_interval),
        std::move(runner), letters(), [this](std::vector<Event>&& events) { gather(events); });
  }

  Engine& engine() { return *engine_; }
  // The engine's thread passes it before each emission of events.
  testing::Gate& events() { return events_; }

  RequestId submit(std::vector<int32_t> prompt, int max_tokens, const std::function<void(Request&)>& change = nullptr) {
    Request request;
    request.prompt_token_ids = std::move(prompt);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = max_tokens;
    if (change) change(request);
    return engine_->submit(std::move(request));
  }

  // Requests in the order in which their first choices ended.
  std::vector<RequestId> finish_order() {
    const std::lock_guard lock(mutex_);
    return finish_order_;
  }

  Answer wait(RequestId id, int choice = 0) {
    std::unique_lock lock(mutex_);
    const bool is_done =
        arrived_.wait_for(lock, std::chrono::seconds(300), [&] { return answers_[{id, choice}].finish.has_value(); });
    EXPECT(is_done);
    return answers_[{id, choice}];
  }

 private:
  void gather(const std::vector<Event>& events) {
    events_.pass();
    const std::lock_guard lock(mutex_);
    for (const Event& event : events) {
      Answer& answer = answers_[{event.request_id, event.choice_idx}];
      EXPECT(!answer.finish.has_value());
      answer.text += event.text_delta;
      answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
      ++answer.num_events;
      answer.num_prompt_logprobs += static_cast<int>(event.prompt_logprobs.size());
      if (event.finish) answer.finish = event.finish;
      if (event.finish && event.choice_idx == 0) finish_order_.push_back(event.request_id);
    }
    arrived_.notify_all();
  }

  testing::Gate events_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<RequestId, int>, Answer> answers_;
  std::vector<RequestId> finish_order_;
  std::unique_ptr<Engine> engine_;
};

// Returns the completion of the checking runner's model.
std::vector<int32_t> expected_answer(const std::vector<int32_t>& prompt, int max_tokens, bool ignores_eos = false,
                                     int period = 0) {
  uint64_t context = 0;
  for (const int32_t id : prompt)
    context = testing::extend_context(context, id);
  std::vector<int32_t> all = prompt;
  while (all.size() < prompt.size() + static_cast<size_t>(max_tokens)) {
    const bool is_repeated = period > 0 && all.size() >= static_cast<size_t>(period) && testing::is_repeating(context);
    all.push_back(is_repeated ? all[all.size() - static_cast<size_t>(period)] : testing::next_id(context, kNumIds));
    if (all.back() == kEos && !ignores_eos) break;
    context = testing::extend_context(context, all.back());
  }
  return {all.begin() + static_cast<ptrdiff_t>(prompt.size()), all.end()};
}

std::vector<int32_t> random_prompt(std::mt19937& random, int length) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i)
    prompt.push_back(1 + static_cast<int32_t>(random() % (kNumIds - 1)));
  return prompt;
}

void expect_idle(Harness& harness) {
  for (int i = 0; i < 100'000; ++i) {
    const EngineStats stats = harness.engine().stats();
    if (stats.num_running == 0 && stats.num_waiting == 0 &&
        stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks)
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT(false && "idle with all blocks free or cached");
}

TEST(engine_completes_prompts_as_the_model_does_at_both_depths) {
  std::mt19937 random(1);
  for (const int depth : {1, 2}) {
    Setup setup;
    setup.depth = depth;
    Harness harness(setup);
    for (const int length : {1, 3, 4, 5, 16, 17, 40}) {
      const auto prompt = random_prompt(random, length);
      const Answer answer = harness.wait(harness.submit(prompt, 20));
      EXPECT(answer.token_ids == expected_answer(prompt, 20));
      EXPECT(answer.finish->reason == (answer.token_ids.back() == kEos ? FinishReason::kStop : FinishReason::kLength));
      EXPECT_EQ(answer.finish->num_completion_tokens, static_cast<int>(answer.token_ids.size()));
    }
    expect_idle(harness);
  }
}

// Submits and aborts at random with few blocks. Batching, chunks, preemption, the prefix cache and speculation must not
// change a completion or lose a block.
void run_random_operations(const SpeculationOptions& speculation, int period, int64_t* num_accepted = nullptr,
                           const std::vector<KvGroupBlocks>& groups = {}, int num_state_slots = 0,
                           bool has_attention = true) {
  for (const int depth : {1, 2})
    for (const bool has_prefix_cache : {true, false})
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        std::mt19937 random(seed);
        Setup setup;
        setup.speculation = speculation;
        setup.period = period;
        setup.depth = depth;
        setup.has_prefix_cache = has_prefix_cache;
        setup.num_blocks = 24;
        setup.groups = groups;
        setup.num_state_slots = num_state_slots;
        setup.has_attention = has_attention;
        setup.max_model_len = 80;
        setup.max_num_batched_tokens = 8 + static_cast<int>(random() % 24);
        Harness harness(setup);
        const auto shared = random_prompt(random, 18);
        struct Open {
          RequestId id;
          std::vector<int32_t> prompt;
          int max_tokens, num_choices;
          bool is_aborted;
        };
        std::vector<Open> open;
        for (int i = 0; i < 60; ++i) {
          auto prompt = random_prompt(random, 1 + static_cast<int>(random() % 30));
          if (random() % 2) prompt.insert(prompt.begin(), shared.begin(), shared.end());
          const int max_tokens = 1 + static_cast<int>(random() % 30), num_choices = random() % 5 == 0 ? 3 : 1;
          const RequestId id = harness.submit(prompt, max_tokens, [&](Request& request) {
            request.num_choices = num_choices;
            request.sampling.is_eos_ignored = true;
            if (random() % 4 == 0) request.sampling.presence_penalty = 0.1f;
            if (random() % 3 == 0) request.cache_salt = "tenant";
            request.priority = static_cast<int>(random() % 3) - 1;
          });
          open.push_back({id, prompt, max_tokens, num_choices, false});
          if (random() % 6 == 0) {
            Open& victim = open[random() % open.size()];
            victim.is_aborted = true;
            harness.engine().abort(victim.id);
          }
          if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        }
        for (const Open& request : open)
          for (int choice = 0; choice < request.num_choices; ++choice) {
            const Answer answer = harness.wait(request.id, choice);
            const auto expected = expected_answer(request.prompt, request.max_tokens, true, period);
            if (request.is_aborted) {
              EXPECT(answer.token_ids.size() <= expected.size() &&
                     std::equal(answer.token_ids.begin(), answer.token_ids.end(), expected.begin()));
            } else {
              EXPECT(answer.token_ids == expected);
              EXPECT(answer.finish->reason == FinishReason::kLength);
            }
          }
        expect_idle(harness);
        if (num_accepted != nullptr)
          for (const int64_t count : harness.engine().stats().num_accepted_tokens)
            *num_accepted += count;
      }
}

TEST(engine_random_operations_change_no_completion) {
  run_random_operations({}, 0);
}

TEST(engine_speculation_changes_no_completion_of_random_operations) {
  for (const int max_step_tokens : {8, 64}) {
    int64_t num_accepted = 0;
    run_random_operations({.num_tokens = 5, .max_ngram = 4, .min_ngram = 1, .max_step_tokens = max_step_tokens}, 3,
                          &num_accepted);
    EXPECT(num_accepted > 0);
    // A model that does not repeat itself: almost all drafts are rejected.
    run_random_operations({.num_tokens = 5, .max_ngram = 4, .min_ngram = 1, .max_step_tokens = max_step_tokens}, 0);
  }
}

// With few blocks in one group or the other, in both, and without a group that sees all tokens.
TEST(engine_random_operations_with_windows_change_no_completion) {
  for (const std::vector<KvGroupBlocks>& groups : std::vector<std::vector<KvGroupBlocks>>{{{24}, {200, 7}},
                                                                                          {{24}, {9, 7}},
                                                                                          {{200}, {8, 2}},
                                                                                          {{30}, {12, 9}, {20, 16}},
                                                                                          {{13, 10}},
                                                                                          {{24}, {24, 500}}}) {
    run_random_operations({}, 0, nullptr, groups);
    int64_t num_accepted = 0;
    run_random_operations({.num_tokens = 5, .max_ngram = 4, .min_ngram = 1, .max_step_tokens = 8}, 3, &num_accepted,
                          groups);
    EXPECT(num_accepted > 0);
  }
}

// With fewer slots than sequences, with some snapshots, and with many; beside attention and alone.
TEST(engine_random_operations_with_recurrent_states_change_no_completion) {
  for (const int num_slots : {1, 3, 9, 40, 200})
    for (const std::vector<KvGroupBlocks>& groups :
         std::vector<std::vector<KvGroupBlocks>>{{}, {{24}}, {{200}}, {{24}, {14, 7}}}) {
      run_random_operations({}, 0, nullptr, groups, num_slots, !groups.empty());
      int64_t num_accepted = 0;
      // Without attention, the model cannot repeat what it said.
      run_random_operations({.num_tokens = 5, .max_ngram = 4, .min_ngram = 1, .max_step_tokens = 8},
                            groups.empty() ? 0 : 3, &num_accepted, groups, num_slots, !groups.empty());
      EXPECT(groups.empty() || num_slots == 1 || num_accepted > 0);
    }
}

// A row after a rejected draft belongs to no text, so its NaN is not an error.
TEST(engine_speculation_ignores_numeric_errors_of_rejected_drafts) {
  int num_errors = 0, num_complete = 0;
  int64_t num_accepted = 0;
  const auto run = [&](const SpeculationOptions& speculation) {
    Setup setup;
    setup.speculation = speculation;
    setup.period = 2;
    setup.poisoned_id = 7;
    Harness harness(setup);
    std::mt19937 random(8);
    std::vector<std::pair<std::vector<int32_t>, FinishReason>> outcomes;
    for (int i = 0; i < 200; ++i) {
      const Answer answer = harness.wait(harness.submit(random_prompt(random, 2 + i % 9), 30));
      outcomes.emplace_back(answer.token_ids, answer.finish->reason);
      ++(answer.finish->reason == FinishReason::kError ? num_errors : num_complete);
    }
    expect_idle(harness);
    for (const int64_t count : harness.engine().stats().num_accepted_tokens)
      num_accepted += count;
    return outcomes;
  };
  const auto plain = run({});
  EXPECT(run({.num_tokens = 6, .max_ngram = 2, .min_ngram = 1, .max_step_tokens = 16}) == plain);
  EXPECT(num_errors > 20 && num_complete > 20 && num_accepted > 100);
}

TEST(engine_preempts_and_recovers_when_blocks_run_out) {
  Setup setup;
  setup.num_blocks = 12;
  setup.max_model_len = 48;
  setup.has_prefix_cache = false;
  Harness harness(setup);
  std::mt19937 random(3);
  std::vector<std::pair<RequestId, std::vector<int32_t>>> open;
  harness.events().close();
  for (int i = 0; i < 6; ++i) {
    const auto prompt = random_prompt(random, 6);
    open.emplace_back(harness.submit(prompt, 30, [](Request& request) { request.sampling.is_eos_ignored = true; }),
                      prompt);
  }
  harness.events().open();
  int num_preemptions = 0;
  for (const auto& [id, prompt] : open) {
    const Answer answer = harness.wait(id);
    EXPECT(answer.token_ids == expected_answer(prompt, 30, true));
    num_preemptions += answer.finish->num_preemptions;
  }
  EXPECT(num_preemptions > 0);
  expect_idle(harness);
}

TEST(prompt_logprobs_are_emitted_once_even_after_a_preemption) {
  Setup setup;
  setup.num_blocks = 12;
  setup.max_model_len = 48;
  Harness harness(setup);
  std::mt19937 random(11);
  std::vector<RequestId> open;
  harness.events().close();
  for (int i = 0; i < 6; ++i)
    open.push_back(harness.submit(random_prompt(random, 6), 30, [](Request& request) {
      request.sampling.is_eos_ignored = true;
      request.sampling.num_prompt_logprobs = 0;
    }));
  harness.events().open();
  int num_preemptions = 0;
  for (const RequestId id : open) {
    const Answer answer = harness.wait(id);
    EXPECT_EQ(answer.num_prompt_logprobs, 6);
    num_preemptions += answer.finish->num_preemptions;
  }
  EXPECT(num_preemptions > 0);
  expect_idle(harness);
}

TEST(prefix_cache_serves_full_blocks_and_recomputes_the_last_token) {
  Setup setup;
  Harness harness(setup);
  std::mt19937 random(4);
  const auto prompt = random_prompt(random, 33);
  EXPECT_EQ(harness.wait(harness.submit(prompt, 3)).finish->num_cached_tokens, 0);
  EXPECT_EQ(harness.wait(harness.submit(prompt, 3)).finish->num_cached_tokens, 32);
  // 32 tokens end at the end of a block, so the last block is recomputed.
  const std::vector<int32_t> exact(prompt.begin(), prompt.begin() + 32);
  EXPECT_EQ(harness.wait(harness.submit(exact, 3)).finish->num_cached_tokens, 28);
  auto changed = prompt;
  changed[9] = changed[9] == 1 ? 2 : 1;
  EXPECT_EQ(harness.wait(harness.submit(changed, 3)).finish->num_cached_tokens, 8);
}

TEST(prefix_cache_is_partitioned_by_salt) {
  Setup setup;
  Harness harness(setup);
  std::mt19937 random(5);
  const auto prompt = random_prompt(random, 20);
  const auto salted = [](const char* salt) { return [salt](Request& request) { request.cache_salt = salt; }; };
  EXPECT_EQ(harness.wait(harness.submit(prompt, 2, salted("a"))).finish->num_cached_tokens, 0);
  EXPECT_EQ(harness.wait(harness.submit(prompt, 2, salted("b"))).finish->num_cached_tokens, 0);
  EXPECT_EQ(harness.wait(harness.submit(prompt, 2)).finish->num_cached_tokens, 0);
  EXPECT_EQ(harness.wait(harness.submit(prompt, 2, salted("a"))).finish->num_cached_tokens, 16);
}

TEST(prefix_cache_evicts_the_oldest) {
  Setup setup;
  setup.num_blocks = 16;
  setup.max_model_len = 60;
  Harness harness(setup);
  std::mt19937 random(6);
  const auto first = random_prompt(random, 24), second = random_prompt(random, 24), third = random_prompt(random, 24);
  harness.wait(harness.submit(first, 1));
  harness.wait(harness.submit(second, 1));
  harness.wait(harness.submit(third, 1));
  // Each prompt takes six blocks. The third one evicts the last two of the first prompt. Then each one, in the order of
  // their last use, finds the four blocks at its head and evicts the last two of the next one.
  EXPECT_EQ(harness.engine().stats().num_evictions, 2);
  for (const auto& prompt : {first, second, third})
    EXPECT_EQ(harness.wait(harness.submit(prompt, 1)).finish->num_cached_tokens, 16);
  EXPECT_EQ(harness.engine().stats().num_evictions, 8);
}

TEST(choices_share_the_blocks_of_the_prompt) {
  for (const bool has_prefix_cache : {true, false}) {
    Setup setup;
    setup.has_prefix_cache = has_prefix_cache;
    setup.num_blocks = 16;  // three separate prompts of 40 tokens would need 30
    setup.max_model_len = 60;
    Harness harness(setup);
    std::mt19937 random(7);
    const auto prompt = random_prompt(random, 40);
    const RequestId id = harness.submit(prompt, 4, [](Request& request) {
      request.num_choices = 3;
      request.sampling.is_eos_ignored = true;
    });
    for (int choice = 0; choice < 3; ++choice) {
      const Answer answer = harness.wait(id, choice);
      EXPECT(answer.token_ids == expected_answer(prompt, 4, true));
      EXPECT_EQ(answer.finish->num_preemptions, 0);
      EXPECT_EQ(answer.finish->num_cached_tokens, choice == 0 ? 0 : 36);
    }
    expect_idle(harness);
  }
}

TEST(short_requests_finish_before_long_ones_that_started_earlier) {
  Setup setup;
  setup.num_blocks = 200;
  setup.max_model_len = 400;
  Harness harness(setup);
  std::mt19937 random(8);
  const auto ignore_eos = [](Request& request) { request.sampling.is_eos_ignored = true; };
  harness.events().close();  // the long request starts, but cannot finish before the short one is submitted
  const RequestId slow = harness.submit(random_prompt(random, 100), 250, ignore_eos);
  const RequestId quick = harness.submit(random_prompt(random, 5), 3, ignore_eos);
  harness.events().open();
  harness.wait(slow);
  EXPECT(harness.finish_order() == (std::vector<RequestId>{quick, slow}));
}

TEST(numeric_errors_end_one_sequence_and_unpublish_its_blocks) {
  std::mt19937 random(9);
  const auto prompt = random_prompt(random, 21);
  const auto answer = expected_answer(prompt, 6, true);
  Setup setup;
  setup.poisoned_id = answer[5];
  Harness harness(setup);
  const Answer poisoned =
      harness.wait(harness.submit(prompt, 20, [](Request& request) { request.sampling.is_eos_ignored = true; }));
  EXPECT(poisoned.finish->reason == FinishReason::kError && poisoned.finish->error_code == ErrorCode::kNumeric);
  EXPECT(poisoned.token_ids.size() <= 5);
  EXPECT_EQ(harness.wait(harness.submit(prompt, 2)).finish->num_cached_tokens, 0);
  expect_idle(harness);
}

TEST(stop_strings_and_stop_ids_end_the_text) {
  Setup setup;
  Harness harness(setup);
  std::mt19937 random(10);
  const auto prompt = random_prompt(random, 9);
  const auto answer = expected_answer(prompt, 12, true);
  const auto letter = [](int32_t id) { return std::string(1, static_cast<char>('A' + id % 26)); };
  const std::string stop = letter(answer[3]) + letter(answer[4]);
  std::string before;
  for (int i = 0; i < 3; ++i)
    before += letter(answer[static_cast<size_t>(i)]);
  const Answer by_text = harness.wait(harness.submit(prompt, 12, [&](Request& request) {
    request.sampling.is_eos_ignored = true;
    request.sampling.stop_strings = {stop};
    request.sampling.skips_special_tokens = false;
  }));
  EXPECT_EQ(by_text.text, before);
  EXPECT_EQ(by_text.finish->stop_string, stop);
  const Answer by_id = harness.wait(harness.submit(prompt, 12, [&](Request& request) {
    request.sampling.is_eos_ignored = true;
    request.sampling.stop_token_ids = {answer[3]};
    request.sampling.skips_special_tokens = false;
  }));
  EXPECT_EQ(by_id.finish->stop_token_id, answer[3]);
  EXPECT_EQ(by_id.text, before);
}

TEST(invalid_requests_are_refused_with_a_code) {
  Setup setup;
  setup.max_num_seqs = 1;
  setup.max_queued = 1;
  Harness harness(setup);
  EXPECT_ERROR("invalid_argument", harness.submit({}, 4));
  EXPECT_ERROR("invalid_argument", harness.submit({kNumIds}, 4));
  EXPECT_ERROR("invalid_argument", harness.submit({-1}, 4));
  EXPECT_ERROR("context_length_exceeded", harness.submit(std::vector<int32_t>(190, 1), 20));
  EXPECT_ERROR("invalid_argument", harness.submit({1}, 4, [](Request& request) { request.sampling.top_p = 0; }));
  EXPECT_ERROR("invalid_argument",
               harness.submit({1}, 4, [](Request& request) { request.sampling.temperature = NAN; }));
  EXPECT_ERROR("invalid_argument",
               harness.submit({1}, 4, [](Request& request) { request.sampling.stop_strings = {""}; }));
  EXPECT_ERROR("queue_full", harness.submit({1}, 4, [](Request& request) { request.num_choices = 3; }));
  EXPECT(harness.wait(harness.submit({1}, 4)).finish.has_value());
}

TEST(free_running_slots_count_before_the_queue) {
  Setup setup;
  setup.max_num_seqs = 1;
  setup.max_queued = 2;
  Harness harness(setup);
  harness.events().close();  // nothing finishes before all are submitted
  std::vector<RequestId> accepted;
  for (int i = 0; i < 3; ++i)
    accepted.push_back(harness.submit({1, 2}, 3));
  for (int i = 0; i < 5; ++i)
    EXPECT_ERROR("queue_full", harness.submit({1, 2}, 3));
  harness.events().open();
  for (const RequestId id : accepted)
    EXPECT(harness.wait(id).finish.has_value());
}

TEST(background_requests_take_no_place_in_the_queue_from_urgent_ones) {
  Setup setup;
  setup.max_num_seqs = 2;
  setup.max_queued = 1;
  Harness harness(setup);
  harness.events().close();
  const auto background = [](Request& request) { request.priority = 1; };
  const auto endless = [](Request& request) { request.sampling.is_eos_ignored = true; };
  std::vector<RequestId> open;
  for (int i = 0; i < 3; ++i)
    open.push_back(harness.submit({3, 4}, 20, background));
  EXPECT_EQ(testing::thrown_code([&] { harness.submit({3, 4}, 20, background); }), "queue_full");
  const EngineStats stats = harness.engine().stats();
  EXPECT_EQ(stats.num_background, 3);
  for (int i = 0; i < 3; ++i)
    open.push_back(harness.submit({5, 6}, 20, endless));
  EXPECT_EQ(testing::thrown_code([&] { harness.submit({5, 6}, 20, endless); }), "queue_full");
  harness.events().open();
  for (const RequestId id : open)
    EXPECT(harness.wait(id).finish->reason != FinishReason::kError);
  expect_idle(harness);
  EXPECT_EQ(harness.engine().stats().num_background, 0);
}

TEST(closing_ends_open_requests_with_engine_closed) {
  Setup setup;
  setup.max_num_seqs = 1;
  Harness harness(setup);
  const auto submit = [&](int num_choices) {
    return harness.submit({1, 2, 3}, 190, [&](Request& request) {
      request.sampling.is_eos_ignored = true;
      request.num_choices = num_choices;
    });
  };
  harness.events().close();
  const RequestId running = submit(1);
  harness.events().wait_for_threads(1);
  const RequestId waiting = submit(2);
  harness.events().release_waiting();
  harness.events().wait_for_threads(1);
  const RequestId submitted = submit(1);  // the engine's thread has not seen it
  std::thread closer([&] { harness.engine().close(); });
  // The request is still open when close() begins.
  while (testing::thrown_code([&] { harness.submit({1}, 1); }) != "engine_closed")
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  harness.events().open();
  closer.join();
  for (const auto& [id, choice] : {std::pair{running, 0}, {waiting, 0}, {waiting, 1}, {submitted, 0}}) {
    const Answer answer = harness.wait(id, choice);
    EXPECT(answer.finish->reason == FinishReason::kError && answer.finish->error_code == ErrorCode::kEngineClosed);
  }
  EXPECT_ERROR("engine_closed", harness.submit({1}, 1));
  harness.engine().close();
}

TEST(max_tokens_zero_computes_the_prompt_only) {
  Setup setup;
  Harness harness(setup);
  const Answer answer = harness.wait(harness.submit({1, 2, 3, 4, 5}, 0));
  EXPECT(answer.token_ids.empty());
  EXPECT(answer.finish->reason == FinishReason::kLength);
}

// A device that fails during a step.
class FailingRunner final : public StepRunner {
 public:
  int depth() const override { return 1; }
  void launch(Batch&) override {}
  void collect(Batch&) override { throw Error(ErrorCode::kDeviceLost, "the device is gone"); }
};

TEST(a_failing_device_ends_open_requests_and_refuses_new_ones) {
  EngineOptions options;
  options.eos_token_ids = {kEos};
  options.vocab_size = kNumIds;
  std::mutex mutex;
  std::condition_variable arrived;
  std::optional<Finish> finish;
  Engine engine(options, BlockManager({{64}}, 16, true), std::make_unique<FailingRunner>(), letters(),
                [&](std::vector<Event>&& events) {
                  const std::lock_guard lock(mutex);
                  for (const Event& event : events)
                    if (event.finish) finish = event.finish;
                  arrived.notify_all();
                });
  Request request;
  request.prompt_token_ids = {1, 2};
  engine.submit(request);
  {
    std::unique_lock lock(mutex);
    EXPECT(arrived.wait_for(lock, std::chrono::seconds(300), [&] { return finish.has_value(); }));
    EXPECT(finish->error_code == ErrorCode::kDeviceLost);
  }
  EXPECT_ERROR("device_lost", engine.submit(request));
  EXPECT_EQ(engine.stats().failure, std::string("the device is gone"));
}

// An error that cannot be described, like one for whose text there is no memory.
struct NamelessError final : std::exception {
  const char* what() const noexcept override { return nullptr; }
};

// A device that fails when the second step is launched. The first step still uses its batch.
class LaunchFailingRunner final : public StepRunner {
 public:
  LaunchFailingRunner(std::atomic<bool>& is_abandoned, bool is_nameless)
      : is_abandoned_(is_abandoned), is_nameless_(is_nameless) {}
  int depth() const override { return 2; }
  void launch(Batch&) override {
    if (is_launched_ && is_nameless_) throw NamelessError();
    if (is_launched_) throw Error(ErrorCode::kDeviceLost, "the device is gone");
    is_launched_ = true;
  }
  void collect(Batch&) override {}
  void abandon() override { is_abandoned_ = true; }

 private:
  std::atomic<bool>& is_abandoned_;
  const bool is_nameless_;
  bool is_launched_ = false;
};

TEST(a_failing_engine_gives_up_its_launched_steps_before_it_ends_requests) {
  for (const bool is_nameless : {false, true}) {
    std::atomic<bool> is_abandoned{false};
    std::promise<bool> was_abandoned;
    EngineOptions options;
    options.vocab_size = kNumIds;
    Engine engine(options, BlockManager({{64}}, 16, true),
                  std::make_unique<LaunchFailingRunner>(is_abandoned, is_nameless), letters(),
                  [&](std::vector<Event>&&) { was_abandoned.set_value(is_abandoned); });
    Request request;
    request.prompt_token_ids = {1, 2};
    engine.submit(request);
    auto ended = was_abandoned.get_future();
    EXPECT(ended.wait_for(std::chrono::seconds(60)) == std::future_status::ready && ended.get());
    EXPECT_EQ(engine.stats().failure, std::string(is_nameless ? "unknown error" : "the device is gone"));
  }
}

TEST(a_model_that_pools_needs_a_device_with_one_step_in_flight) {
  std::atomic<bool> is_abandoned{false};
  EngineOptions options;
  options.vocab_size = kNumIds;
  options.pooled = {Pooling::kMean, 8, 8, 0};
  const auto load = [&](std::unique_ptr<StepRunner> runner) {
    Engine(options, BlockManager({{64}}, 16, true), std::move(runner), letters(), [](std::vector<Event>&&) {});
  };
  load(std::make_unique<FailingRunner>());
  EXPECT_ERROR("internal_error", load(std::make_unique<LaunchFailingRunner>(is_abandoned, false)));
}

TEST(a_sink_that_fails_does_not_end_the_process) {
  EngineOptions options;
  options.vocab_size = kNumIds;
  Engine engine(options, BlockManager({{64}}, 16, true), std::make_unique<FailingRunner>(), letters(),
                [](std::vector<Event>&&) { throw std::bad_alloc(); });
  Request request;
  request.prompt_token_ids = {1, 2};
  engine.submit(request);
  while (engine.stats().failure.empty())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_ERROR("device_lost", engine.submit(request));
}

}  // namespace
}  // namespace capstan
