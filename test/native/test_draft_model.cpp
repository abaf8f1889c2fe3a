// Speculation by a draft model: its drafts change no answer, and a model that drafts for itself is always right.
#include <functional>

#include "native/engine/draft_loader.h"
#include "native/grammar/matcher.h"
#include "test/native/draft_answers.h"
#include "test/native/grammar_fixture.h"
#include "test/native/picking_engine.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

using testing::Answer;
using testing::answers_of;
using testing::num_accepted;
using testing::Session;
using testing::TinyModel;
using testing::TinyShape;

// Drafts in every step that is small enough.
LoadRequest with_draft_model(LoadRequest load, const TinyModel& draft, int num_tokens = 3) {
  const LoadRequest model = draft.request();
  load.speculation.num_tokens = num_tokens;
  load.draft.emplace(DraftRequest{model.files, model.tensors, model.spec, model.device.weight_dtype});
  load.draft->is_free = true;
  return load;
}

void two_ranks(LoadRequest& load) {
  load.device.world_size = 2;
  load.device.num_threads = 2;
}

void small_chunks(LoadRequest& load) {
  load.max_num_seqs = 2;
  load.max_num_batched_tokens = 7;
}

// Less than the requests of a step need.
void few_blocks(LoadRequest& load) {
  load.kv_cache_bytes = 1 << 20;
  load.max_model_len = 160;
}

using Change = std::function<void(LoadRequest&)>;
const std::vector<Change> kChanges{[](LoadRequest&) {},
                                   [](LoadRequest& load) { load.max_num_seqs = 1; },
                                   [](LoadRequest& load) { load.has_prefix_cache = false; },
                                   small_chunks,
                                   few_blocks,
                                   two_ranks};

// The first layers have the same weights in both models.
TinyShape shape_of(int num_layers, int window = 0) {
  TinyShape shape;
  shape.num_layers = num_layers;
  shape.sliding_window = window;
  return shape;
}

void expect_same_answers(const TinyModel& model, const TinyModel& draft) {
  LoadRequest plain = model.request();
  plain.has_prefix_cache = false;
  const std::vector<Answer> wanted = answers_of(plain, false);
  for (const Change& change : kChanges)
    for (const bool is_concurrent : {false, true}) {
      LoadRequest load = with_draft_model(model.request(), draft);
      change(load);
      EngineStats stats;
      testing::expect_same(answers_of(load, is_concurrent, &stats), wanted, "drafts by a model");
      EXPECT(is_concurrent || (num_accepted(stats) > 0 && num_accepted(stats) < stats.num_draft_tokens));
    }
}

TEST(draft_model_gives_the_same_tokens_and_log_probabilities) {
  for (const DType dtype : {DType::kF32, DType::kBf16})
    expect_same_answers(TinyModel(shape_of(3), dtype), TinyModel(shape_of(1), dtype));
}

TEST(draft_model_gives_the_same_tokens_with_windows) {
  const TinyModel plain(shape_of(2), DType::kF32), window(shape_of(2, 20), DType::kF32);
  expect_same_answers(plain, window);
  expect_same_answers(window, plain);
}

TEST(draft_model_that_is_the_model_is_always_right) {
  for (const int window : {0, 20})
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const TinyModel model(shape_of(2, window), dtype);
      for (const Change& change : kChanges)
        for (const bool is_concurrent : {false, true}) {
          LoadRequest load = with_draft_model(model.request(), model);
          change(load);
          EngineStats stats;
          answers_of(load, is_concurrent, &stats);
          // Large steps have no drafts.
          EXPECT(is_concurrent || stats.num_draft_tokens > 100);
          EXPECT_EQ(num_accepted(stats), stats.num_draft_tokens);
        }
    }
}

// A prompt that ends with a block, one that does not, and each again from the prefix cache.
TEST(draft_model_is_always_right_after_hits_of_the_prefix_cache) {
  const TinyModel model(shape_of(2), DType::kF32);
  Session session(with_draft_model(model.request(), model, 5));
  for (const int length : {15, 16, 17, 31, 32, 40, 64}) {
    std::vector<int32_t> prompt(static_cast<size_t>(length), length);
    for (int round = 0; round < 4; ++round) {
      const Answer answer = session.wait(session.submit(prompt, 21, round % 2 ? 0.8f : 0));
      // The next prompt continues from decoded blocks.
      prompt.insert(prompt.end(), answer.token_ids.begin(), answer.token_ids.end());
    }
  }
  const EngineStats stats = session.engine().stats();
  EXPECT(stats.cached_tokens > 400);
  EXPECT_EQ(num_accepted(stats), stats.num_draft_tokens);
}

TEST(draft_model_is_always_right_after_preemptions) {
  const TinyModel model(shape_of(2), DType::kF32);
  LoadRequest load = with_draft_model(model.request(), model);
  load.kv_cache_bytes = 700 << 10;
  load.max_model_len = 200;
  Session session(load);
  session.events().close();
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i)
    ids.push_back(session.submit(std::vector<int32_t>(60, i), 120));
  session.events().open();
  for (const RequestId id : ids)
    EXPECT_EQ(session.wait(id).token_ids.size(), size_t{120});
  const EngineStats stats = session.engine().stats();
  EXPECT(stats.num_preemptions > 0);
  EXPECT_EQ(num_accepted(stats), stats.num_draft_tokens);
}

// Each draft is drawn with the mask of its place.
TEST(draft_model_is_always_right_under_a_grammar) {
  const TinyModel model(shape_of(2), DType::kF32);
  const auto answer = [&](const LoadRequest& load, bool is_greedy, EngineStats* stats) {
    Session session(load);
    Request request;
    request.prompt_token_ids = {1, 2, 3};
    request.sampling.max_tokens = 60;
    request.sampling.seed = 5;
    request.sampling.temperature = is_greedy ? 0 : 1;
    request.grammar =
        testing::compile_gbnf("root ::= (\"a\" [b-d] \"e\" [x-z] [f-h])*", session.engine().token_table());
    const Answer answer = session.wait(session.submit(std::move(request)));
    if (stats != nullptr) *stats = session.engine().stats();
    return answer;
  };
  for (const bool is_greedy : {true, false}) {
    EngineStats stats;
    const Answer got = answer(with_draft_model(model.request(), model, 7), is_greedy, &stats);
    EXPECT(got == answer(model.request(), is_greedy, nullptr));
    EXPECT(stats.num_draft_tokens > 40);
    EXPECT_EQ(num_accepted(stats), stats.num_draft_tokens);
  }
}

TEST(draft_model_with_a_shorter_context_and_fewer_ids_changes_no_answer) {
  TinyShape shape = shape_of(1);
  shape.vocab_size = 280;
  const TinyModel model(shape_of(2), DType::kF32), small(shape, DType::kF32);
  LoadRequest plain = model.request();
  // The model has 20 ids without text.
  plain.tokenizer = small.request().tokenizer;
  LoadRequest load = with_draft_model(plain, small);
  load.draft->spec.max_position_embeddings = load.draft->spec.ropes[0].original_max_positions = 90;
  const auto answers = [](const LoadRequest& request) {
    Session session(request);
    return testing::batched_answers(session, 60);
  };
  testing::expect_same(answers(load), answers(plain), "a smaller draft model");
}

TEST(draft_model_takes_memory_of_the_kv_cache) {
  const TinyModel model(shape_of(2), DType::kF32);
  LoadRequest plain = model.request(), load = with_draft_model(model.request(), model);
  plain.kv_cache_bytes = load.kv_cache_bytes = 1 << 20;
  const EngineInfo alone = Session(plain).info(), together = Session(load).info();
  EXPECT_EQ(together.num_blocks, alone.num_blocks / 2);
  EXPECT(together.kv_cache_bytes <= 1 << 20);
  EXPECT_EQ(together.weight_bytes, 2 * alone.weight_bytes);
}

// Neither model is in memory yet when its memory is checked.
TEST(draft_model_needs_memory_beside_the_model) {
  constexpr int64_t kMebibyte = 1 << 20;
  check_weights_fit(60 * kMebibyte, 40 * kMebibyte, 100 * kMebibyte);
  try {
    check_weights_fit(60 * kMebibyte, 41 * kMebibyte, 100 * kMebibyte);
    EXPECT(false);
  } catch (const Error& error) {
    EXPECT(error.code() == ErrorCode::kOutOfMemory);
    const std::string message = error.what();
    for (const char* const part : {"60 MiB", "41 MiB", "100 MiB"})
      EXPECT(message.find(part) != std::string::npos);
  }
}

// An engine whose drafts cost as much as its steps does not draft.
TEST(draft_model_that_is_as_slow_as_the_model_drafts_now_and_then_only) {
  const TinyModel model(shape_of(2), DType::kF32);
  LoadRequest load = with_draft_model(model.request(), model);
  load.draft->is_free = false;
  Session session(load);
  session.wait(session.submit({1, 2, 3}, 200));
  const EngineStats stats = session.engine().stats();
  EXPECT(stats.num_draft_tokens > 0 && stats.num_draft_tokens < 10);
}

// ---- a draft model that fails ----

// The model always draws A. `draw` returns the draft.
testing::PickingSetup with_draft_runner(const std::function<int32_t()>& draw) {
  testing::PickingSetup setup;
  setup.depth = 1;
  setup.speculation.num_tokens = 3;
  setup.preferences = [](const SampleRow&) { return testing::ids_of("A"); };
  setup.draft_runner = std::make_shared<testing::PickingRunner>(
      1, testing::kNumLetterIds, [draw](const SampleRow&) { return std::vector<int32_t>{draw()}; });
  return setup;
}

// The sanitizers see whether the drafter uses a sequence after its end.
TEST(draft_model_that_throws_ends_the_requests) {
  int num_drafts = 0;
  testing::PickingEngine engine(with_draft_runner([&] {
    if (++num_drafts == 5) throw Error(ErrorCode::kInternal, "the draft model failed");
    return int32_t{0};
  }));
  const testing::PickedAnswer answer =
      engine.run([&](Request& request) { request.grammar = engine.compile("root ::= [A-C]+"); });
  EXPECT_EQ(answer.finish->error_message, std::string("the draft model failed"));
  EXPECT_EQ(engine.engine().stats().failure, std::string("the draft model failed"));
  EXPECT_EQ(num_drafts, 5);
}

// An ending id is no draft.
TEST(draft_model_whose_drafts_are_refused_drafts_now_and_then_only) {
  int num_drafts = 0;
  testing::PickingEngine engine(with_draft_runner([&] {
    ++num_drafts;
    return testing::kLetterEos;
  }));
  const testing::PickedAnswer answer = engine.run([](Request& request) { request.sampling.max_tokens = 180; });
  EXPECT_EQ(answer.token_ids.size(), size_t{180});
  EXPECT_EQ(engine.engine().stats().num_draft_tokens, 0);
  EXPECT(num_drafts > 5 && num_drafts < 15);
}

TEST(draft_model_that_does_not_fit_is_refused) {
  const TinyModel model(shape_of(2), DType::kF32);
  const auto expect_refused = [&](const Change& change) {
    LoadRequest load = with_draft_model(model.request(), model);
    change(load);
    EXPECT_ERROR("invalid_argument", Session{load});
  };
  expect_refused([](LoadRequest& load) { load.draft->spec.vocab_size = 299; });
  expect_refused([](LoadRequest& load) { load.draft->spec.recurrent.conv_taps = 4; });
  expect_refused([](LoadRequest& load) { load.draft->spec.is_causal = false; });
  expect_refused([](LoadRequest& load) { load.disk_cache.path = "/tmp"; });
  LoadRequest load = with_draft_model(model.request(), model);
  load.draft->tensors.pop_back();
  EXPECT_ERROR("invalid_model", Session{load});
}

}  // namespace
}  // namespace capstan
