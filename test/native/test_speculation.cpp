// Speculation never changes an answer: each test compares the answers of engines with and without it.
#include <algorithm>
#include <functional>
#include <random>

#include "native/base/hash.h"
#include "test/native/draft_answers.h"
#include "test/native/picking_engine.h"
#include "test/native/tiny_model.h"

namespace capstan {
namespace {

using testing::Answer;
using testing::ids_of;
using testing::kLetterEos;
using testing::PickedAnswer;
using testing::PickingEngine;
using testing::PickingSetup;
using testing::Session;
using testing::TinyModel;

constexpr SpeculationOptions kEager{.num_tokens = 5, .max_ngram = 4, .min_ngram = 1, .max_step_tokens = 32};
constexpr SpeculationOptions kFromGrammar{.num_tokens = 5, .from_grammar = true, .max_step_tokens = 32};

int64_t num_accepted(const EngineStats& stats) {
  int64_t sum = 0;
  for (const int64_t count : stats.num_accepted_tokens)
    sum += count;
  return sum;
}

// ---- what the rows of a step say ----

// All that a row says about its draw, as one number.
uint64_t digest(const SampleRow& row) {
  std::vector<int32_t> ids{static_cast<int32_t>(row.position), static_cast<int32_t>(row.choice_idx),
                           static_cast<int32_t>(row.seed)};
  for (const auto& [id, count] : row.counts.completion_counts)
    ids.push_back(id), ids.push_back(count);
  ids.push_back(-1);
  ids.insert(ids.end(), row.banned_ids.begin(), row.banned_ids.end());
  ids.push_back(-1);
  for (const uint32_t word : row.allowed_mask)
    ids.push_back(static_cast<int32_t>(word));
  return hash_ids(1, ids);
}

// A model that mostly repeats a pattern, and otherwise draws by what the row says. A wrong row changes the answer.
PickingSetup repeating(int depth, const SpeculationOptions& speculation) {
  PickingSetup setup;
  setup.depth = depth;
  setup.num_blocks = 48;
  setup.max_num_batched_tokens = 40;
  setup.speculation = speculation;
  setup.preferences = [](const SampleRow& row) {
    const uint64_t hash = digest(row);
    const auto pattern = static_cast<int32_t>(row.position % 4);
    if (hash % 8 != 0) return std::vector<int32_t>{pattern};
    return std::vector<int32_t>{static_cast<int32_t>(hash / 8 % 40), static_cast<int32_t>(hash / 512 % 40), pattern};
  };
  return setup;
}

const char* const kGrammars[] = {
    "root ::= [A-E]+ \",\" [A-E]* [0-9]",
    "root ::= \"(\"? item* \nitem ::= \"AB\" | \"A\" [B-D]{1,3} | [A-D]{4} | [0-9]",
    "root ::= ([A-D]{4} \",\"?)+",
    "root ::= list \nlist ::= \"A\" list* \"B\" | [C-E]",
    "root ::= (\"ABCD\" [A-D] \"CBA\" \",\"?)+",
};

// Changes every kind of parameter at random. `compile` returns a grammar of the engine.
Request random_request(std::mt19937& random, PickingEngine& engine, bool has_thinking) {
  Request request;
  SamplingParams& sampling = request.sampling;
  request.prompt_token_ids = {1, 2, 3};
  for (auto left = random() % 20; left > 0; --left)
    request.prompt_token_ids.push_back(static_cast<int32_t>(left % 4));
  const auto happens = [&](unsigned one_in) { return random() % one_in == 0; };
  sampling.seed = random() % 3;
  sampling.max_tokens = 1 + static_cast<int>(random() % 60);
  if (happens(3)) sampling.min_tokens = static_cast<int>(random() % 20);
  if (happens(4)) sampling.presence_penalty = 0.5f;
  if (happens(4)) sampling.repetition_penalty = 1.2f;
  if (happens(4)) sampling.bad_words = {ids_of("AB"), ids_of("DAD"), ids_of("K"), ids_of("CDA")};
  if (happens(4)) sampling.stop_strings = {"BCDD", "ABCDABC", "CC"};
  if (happens(5)) sampling.stop_token_ids = {static_cast<int32_t>(random() % 40)};
  if (happens(4)) sampling.is_eos_ignored = true;
  if (happens(5)) sampling.allowed_token_ids = std::vector<int32_t>{0, 1, 2, 3, 4, 9, 17, kLetterEos};
  if (happens(5)) sampling.thinking = ThinkingParams{static_cast<int>(random() % 12), {0, 1}, {3, 2}, happens(2)};
  if (!has_thinking) sampling.thinking.reset();
  if (happens(2)) request.grammar = engine.compile(kGrammars[random() % std::size(kGrammars)]);
  if (happens(3)) request.num_choices = 3;
  if (happens(4)) request.cache_salt = "other";
  return request;
}

struct Outcome {
  std::vector<std::vector<PickedAnswer>> answers;  // by request and choice
  EngineStats stats;
};

Outcome run_random_requests(const PickingSetup& setup, uint32_t seed, bool is_concurrent, bool has_thinking = true) {
  PickingEngine engine(setup);
  engine.engine().token_table();
  std::mt19937 random(seed);
  std::vector<std::pair<RequestId, int>> open;
  Outcome outcome;
  const auto collect = [&] {
    for (const auto& [id, num_choices] : open) {
      outcome.answers.emplace_back();
      for (int choice = 0; choice < num_choices; ++choice)
        outcome.answers.back().push_back(engine.wait(id, choice));
    }
    open.clear();
  };
  for (int i = 0; i < 80; ++i) {
    Request request = random_request(random, engine, has_thinking);
    const int num_choices = request.num_choices;
    open.emplace_back(engine.engine().submit(std::move(request)), num_choices);
    if (!is_concurrent) collect();
  }
  collect();
  outcome.stats = engine.engine().stats();
  return outcome;
}

void expect_same_answers(const Outcome& got, const Outcome& wanted) {
  EXPECT_EQ(got.answers.size(), wanted.answers.size());
  for (size_t i = 0; i < wanted.answers.size(); ++i)
    for (size_t choice = 0; choice < wanted.answers[i].size(); ++choice) {
      const PickedAnswer &a = got.answers[i][choice], &b = wanted.answers[i][choice];
      EXPECT_EQ(a.text, b.text);
      EXPECT(a.token_ids == b.token_ids);
      EXPECT(a.finish->reason == b.finish->reason);
      EXPECT_EQ(a.finish->stop_string, b.finish->stop_string);
      EXPECT_EQ(a.finish->stop_token_id, b.finish->stop_token_id);
      EXPECT_EQ(a.finish->num_completion_tokens, static_cast<int>(a.token_ids.size()));
    }
}

TEST(speculation_changes_no_answer_under_any_sampling_parameter) {
  for (const int depth : {1, 2})
    for (uint32_t seed = 1; seed <= 6; ++seed) {
      const Outcome plain = run_random_requests(repeating(1, {}), seed, false);
      for (const bool is_concurrent : {false, true}) {
        const Outcome drafted = run_random_requests(repeating(depth, kEager), seed, is_concurrent);
        expect_same_answers(drafted, plain);
        EXPECT(num_accepted(drafted.stats) > 100);
        EXPECT(num_accepted(drafted.stats) < drafted.stats.num_draft_tokens);
        EXPECT(drafted.stats.num_steps < plain.stats.num_steps);
      }
    }
}

TEST(speculation_by_grammars_changes_no_answer_under_any_sampling_parameter) {
  int64_t sum_accepted = 0;
  for (const int depth : {1, 2})
    for (uint32_t seed = 1; seed <= 6; ++seed) {
      const Outcome plain = run_random_requests(repeating(1, {}), seed, false);
      for (const bool is_concurrent : {false, true}) {
        const Outcome drafted = run_random_requests(repeating(depth, kFromGrammar), seed, is_concurrent);
        expect_same_answers(drafted, plain);
        sum_accepted += num_accepted(drafted.stats);
      }
    }
  EXPECT(sum_accepted > 200);
}

// "AB" is one token, and two.
TEST(speculation_by_grammars_writes_forced_text_in_one_step) {
  const auto run = [](std::vector<int32_t> preferred, int64_t& num_steps) {
    PickingSetup setup;
    setup.depth = 1;
    setup.speculation = {.num_tokens = 12, .from_grammar = true, .max_step_tokens = 32};
    setup.preferences = [preferred](const SampleRow&) { return preferred; };
    PickingEngine engine(setup);
    const auto grammar = engine.compile("root ::= \"ABCDEFGH\" [0-9] \"HGFEDCBA\"");
    PickedAnswer answer;
    // The first request computes the masks: a draft waits for none.
    for (int i = 0; i < 2; ++i) {
      const int64_t num_before = engine.engine().stats().num_steps;
      answer = engine.run([&](Request& request) { request.grammar = grammar; });
      num_steps = engine.engine().stats().num_steps - num_before;
    }
    return answer;
  };
  int64_t num_steps = 0;
  EXPECT_EQ(run({}, num_steps).text, "ABCDEFGH9HGFEDCBA");
  EXPECT(num_steps <= 4);
  // The model takes "A" where "AB" is proposed.
  const PickedAnswer answer = run({0, 30}, num_steps);
  EXPECT_EQ(answer.text, "ABCDEFGH4HGFEDCBA");
  EXPECT_EQ(answer.token_ids[0], 0);
  EXPECT(num_steps <= 6);
}

// Few blocks, so that drafts find none and sequences are preempted; a budget of grammar work that is soon used up. No
// budget of thinking: where its check of the grammar takes long, it waits for one more token.
TEST(speculation_changes_no_answer_when_blocks_and_grammar_work_are_short) {
  for (const int depth : {1, 2})
    for (const size_t work : {size_t{0}, size_t{60}, size_t{100'000}}) {
      const Outcome plain = run_random_requests(repeating(1, {}), 9, false, false);
      PickingSetup setup = repeating(depth, kEager);
      setup.num_blocks = 24;
      setup.max_num_seqs = 8;
      setup.grammar_work_per_step = work;
      setup.mask_patience = std::chrono::milliseconds(0);
      const Outcome drafted = run_random_requests(setup, 9, true, false);
      EXPECT(drafted.stats.num_preemptions > 0);
      expect_same_answers(drafted, plain);
    }
}

TEST(speculation_adds_no_drafts_to_large_steps) {
  PickingSetup setup = repeating(1, kEager);
  setup.speculation.max_step_tokens = 2;
  setup.max_num_seqs = 8;
  PickingEngine engine(setup);
  std::vector<RequestId> ids;
  engine.events().close();
  for (int i = 0; i < 4; ++i)
    ids.push_back(engine.submit([](Request& request) { request.sampling.is_eos_ignored = true; }));
  engine.events().open();
  for (const RequestId id : ids)
    engine.wait(id);
  EXPECT(engine.engine().stats().num_steps >= 50);
}

// An engine whose model wants to write `ids`, again and again, after a prompt of three tokens.
PickingSetup writing(const std::vector<int32_t>& ids) {
  PickingSetup setup;
  setup.depth = 1;
  setup.speculation = kEager;
  setup.preferences = [ids](const SampleRow& row) {
    return std::vector<int32_t>{ids[(row.position - 3) % ids.size()]};
  };
  return setup;
}

// After the last "A" only EOS is left, so min_tokens does not count: for the row after a draft "A" too.
TEST(speculation_waives_min_tokens_where_the_grammar_leaves_only_the_end) {
  PickingEngine engine(writing({0}));
  for (int length = 2; length < 14; ++length) {
    const std::string text(static_cast<size_t>(length), 'A');
    const auto grammar = engine.compile("root ::= \"" + text + "\" \"x\"*");
    // The first request computes the masks: a draft waits for none.
    for (int i = 0; i < 2; ++i) {
      const PickedAnswer answer = engine.run([&](Request& request) {
        request.prompt_token_ids = {0, 0, 0};
        request.grammar = grammar;
        request.sampling.min_tokens = 30;
      });
      EXPECT_EQ(answer.text, text);
      EXPECT(answer.finish->reason == FinishReason::kStop);
    }
  }
  EXPECT(num_accepted(engine.engine().stats()) > 30);
}

// The budget of thinking is used up at a draft, where the grammar refuses the closing marker.
TEST(speculation_forces_no_marker_that_the_grammar_refuses) {
  PickingEngine engine(writing({0}));
  const auto grammar = engine.compile("root ::= [A-C]+");
  for (int i = 0; i < 16; ++i) {
    const PickedAnswer answer = engine.run([&](Request& request) {
      request.prompt_token_ids = {0, 0, 0};
      request.grammar = grammar;
      request.sampling.max_tokens = 20;
      request.sampling.thinking = ThinkingParams{i, {}, ids_of("Z"), true};
    });
    EXPECT_EQ(answer.text, std::string(20, 'A'));
  }
  EXPECT(num_accepted(engine.engine().stats()) > 100);
}

// Letters that open, "G", and the letters that close them, such as "CDCGAEA". "G" and the first end are one token.
std::vector<int32_t> random_nest(std::mt19937& random) {
  std::string begin, end;
  for (auto left = 2 + random() % 5; left > 0; --left) {
    const bool is_usual = random() % 4 != 0;
    begin += is_usual ? 'C' : 'D';
    end.insert(0, is_usual ? "A" : "E");
  }
  std::vector<int32_t> ids = ids_of(begin);
  ids.push_back(testing::kNumLetterIds + (end[0] == 'E'));
  std::ranges::copy(ids_of(end.substr(1)), std::back_inserter(ids));
  return ids;
}

// The stacks of drafts and those of the tokens that come instead get the same numbers. Their masks must not be mixed
// up.
TEST(speculation_keeps_no_masks_of_rejected_drafts) {
  std::mt19937 random(2);
  int64_t sum_accepted = 0, sum_rejected = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<int32_t> ids;
    while (ids.size() < 150)
      std::ranges::copy(random_nest(random), std::back_inserter(ids));
    ids.resize(150);
    PickingSetup setup = writing(ids);
    setup.more_tokens = {"GA", "GE"};
    PickingEngine engine(setup);
    const auto grammar = engine.compile("root ::= x+ \nx ::= \"C\" x \"A\" | \"D\" x \"E\" | \"G\"");
    for (int i = 0; i < 3; ++i) {
      const PickedAnswer answer = engine.run([&](Request& request) {
        request.grammar = grammar;
        request.sampling.is_eos_ignored = true;
        request.sampling.max_tokens = 150;
      });
      EXPECT(answer.token_ids == ids);
    }
    const EngineStats stats = engine.engine().stats();
    sum_accepted += num_accepted(stats);
    sum_rejected += stats.num_draft_tokens - num_accepted(stats);
  }
  EXPECT(sum_accepted > 1000 && sum_rejected > 1000);
}

// At depth 2 a step is planned while the one before it runs, except of a sequence that has a proposal.
TEST(speculation_waits_for_the_tokens_that_a_proposal_follows) {
  PickingSetup setup;
  setup.depth = 2;
  setup.speculation = kEager;
  setup.preferences = [](const SampleRow& row) { return std::vector<int32_t>{static_cast<int32_t>(row.position % 3)}; };
  PickingEngine engine(setup);
  engine.run([](Request& request) {
    request.prompt_token_ids = {0, 1, 2, 0, 1, 2};
    request.sampling.max_tokens = 40;
  });
  EXPECT(engine.engine().stats().num_steps < 15);
}

TEST(speculation_verifies_a_proposal_in_one_step) {
  PickingSetup setup;
  setup.depth = 1;
  setup.speculation = kEager;
  setup.preferences = [](const SampleRow& row) { return std::vector<int32_t>{static_cast<int32_t>(row.position % 3)}; };
  PickingEngine engine(setup);
  const PickedAnswer answer = engine.run([](Request& request) {
    request.prompt_token_ids = {0, 1, 2, 0, 1, 2, 0, 1, 2};
    request.sampling.max_tokens = 40;
  });
  EXPECT_EQ(answer.token_ids.size(), size_t{40});
  const EngineStats stats = engine.engine().stats();
  EXPECT_EQ(num_accepted(stats), stats.num_draft_tokens);
  EXPECT(stats.num_steps < 10);
  EXPECT_EQ(stats.num_steps - 1 + num_accepted(stats) + 1, int64_t{40});
  EXPECT_EQ(stats.num_accepted_tokens[0], stats.num_speculations);
}

// The work of a step ends between two accepted tokens: the grammar has not consumed the rest yet.
TEST(speculation_draws_tokens_again_that_the_grammar_had_no_time_for) {
  const auto answer = [](const SpeculationOptions& speculation, size_t work) {
    PickingSetup setup;
    setup.depth = 1;
    setup.speculation = speculation;
    setup.grammar_work_per_step = work;
    setup.preferences = [](const SampleRow& row) {
      return std::vector<int32_t>{static_cast<int32_t>(row.position % 4)};
    };
    PickingEngine engine(setup);
    const auto grammar = engine.compile("root ::= [A-D]{200}");
    PickedAnswer answer = engine.run([&](Request& request) {
      request.grammar = grammar;
      request.sampling.max_tokens = 60;
    });
    return answer;
  };
  const PickedAnswer plain = answer({}, 100'000);
  EXPECT_EQ(plain.token_ids.size(), size_t{60});
  for (size_t work = 0; work < 120; ++work)
    EXPECT(answer(kEager, work).token_ids == plain.token_ids);
}

// ---- the CPU backend ----

Request random_model_request(std::mt19937& random) {
  Request request;
  SamplingParams& sampling = request.sampling;
  for (auto left = 1 + random() % 90; left > 0; --left)
    request.prompt_token_ids.push_back(static_cast<int32_t>(random() % 6));
  const auto happens = [&](unsigned one_in) { return random() % one_in == 0; };
  sampling.seed = random();
  sampling.max_tokens = 20 + static_cast<int>(random() % 40);
  sampling.temperature = happens(2) ? 0 : 0.7f;
  if (happens(3)) sampling.top_k = 5;
  if (happens(3)) sampling.top_p = 0.8f;
  if (happens(4)) sampling.min_p = 0.05f;
  if (happens(4)) sampling.presence_penalty = 0.3f;
  if (happens(4)) sampling.frequency_penalty = 0.2f;
  if (happens(4)) sampling.repetition_penalty = 1.1f;
  if (happens(4)) sampling.logit_bias = {{1, 2.0f}, {3, -1.0f}};
  if (happens(4)) sampling.bad_words = {{1, 2}, {3, 3, 3}};
  // Few ids, so that ends of the text occur again.
  sampling.allowed_token_ids = std::vector<int32_t>{0, 1, 2, 3, 4, 5};
  sampling.num_logprobs = testing::kNumAlternatives;
  return request;
}

void compare_with_plain(const TinyModel& model, const std::function<void(LoadRequest&)>& change) {
  LoadRequest load = model.request();
  load.has_prefix_cache = false;
  const std::vector<Answer> plain = testing::answers_of(load, false, nullptr, random_model_request);
  load = model.request();
  load.speculation = {.num_tokens = 4, .max_ngram = 3, .min_ngram = 1};
  change(load);
  for (const bool is_concurrent : {false, true}) {
    EngineStats stats;
    testing::expect_same(testing::answers_of(load, is_concurrent, &stats, random_model_request), plain, "speculation");
    EXPECT(num_accepted(stats) > 0 && num_accepted(stats) < stats.num_draft_tokens);
  }
}

TEST(speculation_on_the_cpu_gives_the_same_tokens_and_log_probabilities) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const TinyModel model({}, dtype);
    compare_with_plain(model, [](LoadRequest&) {});
    compare_with_plain(model, [](LoadRequest& load) { load.max_num_seqs = 1; });
    compare_with_plain(model, [](LoadRequest& load) {
      load.max_num_seqs = 2;
      load.max_num_batched_tokens = 7;
      load.has_prefix_cache = false;
    });
    compare_with_plain(model, [](LoadRequest& load) {
      load.device.world_size = 2;
      load.device.num_threads = 2;
    });
  }
}

TEST(speculation_fills_the_context_to_its_end) {
  const TinyModel model({}, DType::kF32);
  LoadRequest load = model.request();
  load.speculation = {.num_tokens = 8, .max_ngram = 2, .min_ngram = 1};
  load.max_model_len = 64;
  Session session(load);
  for (const int prompt_length : {1, 30, 60, 63}) {
    Request request;
    request.prompt_token_ids.assign(static_cast<size_t>(prompt_length), 1);
    request.sampling.max_tokens = 64 - prompt_length;
    request.sampling.allowed_token_ids = std::vector<int32_t>{1};
    const Answer answer = session.wait(session.submit(std::move(request)));
    EXPECT_EQ(answer.token_ids.size(), static_cast<size_t>(64 - prompt_length));
  }
  EXPECT(num_accepted(session.engine().stats()) > 60);
}

TEST(speculation_options_out_of_range_are_refused) {
  const TinyModel model({}, DType::kF32);
  const auto load = [&](const SpeculationOptions& options) {
    LoadRequest request = model.request();
    request.speculation = options;
    Session session(request);
  };
  EXPECT_ERROR("invalid_argument", load({.num_tokens = 65}));
  EXPECT_ERROR("invalid_argument", load({.num_tokens = -1}));
  EXPECT_ERROR("invalid_argument", load({.num_tokens = 1, .max_ngram = 2, .min_ngram = 3}));
  EXPECT_ERROR("invalid_argument", load({.num_tokens = 1, .max_ngram = 65}));
  EXPECT_ERROR("invalid_argument", load({.num_tokens = 1, .max_ngram = 1, .min_ngram = 0}));
}

}  // namespace
}  // namespace capstan
