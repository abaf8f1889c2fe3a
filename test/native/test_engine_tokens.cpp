// Tokens that a request keeps out or forces in, requests that are only scored, and choices that are stopped.
#include "native/engine/thinking.h"
#include "test/native/picking_engine.h"

namespace capstan {
namespace {

using testing::ids_of;
using testing::PickedAnswer;
using testing::PickingEngine;
using testing::PickingSetup;

// A model that would say `text` again and again, by the position of each token.
PickingSetup saying(std::string text) {
  PickingSetup setup;
  setup.preferences = [ids = ids_of(text)](const SampleRow& row) {
    return std::vector<int32_t>{ids[(row.position - 3) % ids.size()]};
  };
  return setup;
}

TEST(bad_words_never_come) {
  PickingEngine engine(saying("ABCABC"));
  const auto run = [&](std::vector<std::vector<int32_t>> bad_words) {
    return engine
        .run([&](Request& request) {
          request.sampling.max_tokens = 6, request.sampling.is_eos_ignored = true,
          request.sampling.bad_words = std::move(bad_words);
        })
        .token_ids;
  };
  EXPECT(run({}) == ids_of("ABCABC"));
  // Without the preferred one the highest comes.
  const int32_t highest = testing::kNumLetterIds - 1;
  const auto replaced = [&](std::string_view text) {
    std::vector<int32_t> ids = ids_of(text);
    std::ranges::replace(ids, ids_of("Z")[0], highest);
    return ids;
  };
  EXPECT(run({ids_of("B")}) == replaced("AZCAZC"));
  EXPECT(run({ids_of("BC")}) == replaced("ABZABZ"));
  EXPECT(run({ids_of("CAB")}) == replaced("ABCAZC"));
  EXPECT(run({ids_of("AB"), ids_of("C"), ids_of("C")}) == replaced("AZZAZZ"));
  // The prompt's end (1, 2, 3 = BCD) is no beginning of a word.
  EXPECT(run({{3, 0}}) == ids_of("ABCABC"));
}

TEST(bad_words_and_min_tokens_hold_together) {
  PickingEngine engine;
  const auto answer = engine.run([](Request& request) {
    request.sampling.allowed_token_ids = std::vector<int32_t>{1, 2, testing::kLetterEos};
    request.sampling.min_tokens = 3;
    request.sampling.bad_words = {{2}};
  });
  EXPECT_EQ(answer.text, std::string("BBB"));
  EXPECT_EQ(answer.finish->num_completion_tokens, 4);
}

TEST(bad_words_that_leave_nothing_are_the_requests_error) {
  PickingEngine engine;
  const auto refused = [&](std::vector<int32_t> allowed, std::vector<std::vector<int32_t>> bad_words, int min_tokens) {
    EXPECT_ERROR("invalid_argument", engine.submit([&](Request& request) {
      request.sampling.allowed_token_ids = allowed, request.sampling.bad_words = bad_words,
      request.sampling.min_tokens = min_tokens;
    }));
  };
  refused({2, 4}, {{4}, {2}}, 0);
  refused({2, testing::kLetterEos}, {{2}}, 1);
  refused({testing::kLetterEos}, {}, 1);
  // A word of several tokens, where the grammar takes nothing else.
  const auto grammar = engine.compile("root ::= \"BCD\"");
  const auto stuck = engine.run(
      [&](Request& request) { request.grammar = grammar, request.sampling.bad_words = {{1, 2, 3}, {5, 6}}; });
  EXPECT_EQ(stuck.text, std::string("BC"));
  EXPECT(stuck.finish->reason == FinishReason::kError);
  EXPECT(stuck.finish->error_code == ErrorCode::kInvalidArgument);
}

TEST(bad_words_out_of_bounds_are_refused) {
  PickingEngine engine;
  EXPECT_ERROR("invalid_argument", engine.submit([](Request& request) { request.sampling.bad_words = {{}}; }));
  EXPECT_ERROR("invalid_argument", engine.submit([](Request& request) { request.sampling.bad_words = {{1, 70}}; }));
}

// ---- thoughts: "TH" opens, "EN" closes ----

PickedAnswer think(PickingEngine& engine, int budget, bool is_inside, int max_tokens = 12,
                   const std::function<void(Request&)>& change = nullptr) {
  return engine.run([&](Request& request) {
    request.sampling.max_tokens = max_tokens;
    request.sampling.is_eos_ignored = true;
    request.sampling.thinking = ThinkingParams{budget, ids_of("TH"), ids_of("EN"), is_inside};
    if (change) change(request);
  });
}

TEST(thinking_is_closed_when_its_budget_is_used_up) {
  for (const int depth : {1, 2}) {
    PickingSetup setup = saying("XXXXXXXXXXXX");
    setup.depth = depth;
    PickingEngine engine(setup);
    EXPECT_EQ(think(engine, 4, true).text, std::string("XXXXENXXXXXX"));
    EXPECT_EQ(think(engine, 1, true).text, std::string("XENXXXXXXXXX"));
    EXPECT_EQ(think(engine, 0, true).text, std::string("ENXXXXXXXXXX"));
    EXPECT_EQ(think(engine, 0, false).text, std::string("XXXXXXXXXXXX"));
    EXPECT_EQ(think(engine, 12, true).text, std::string("XXXXXXXXXXXX"));
  }
}

TEST(thinking_counts_what_is_between_the_markers) {
  PickingEngine engine(saying("XTHYYYYYYYYY"));
  EXPECT_EQ(think(engine, 3, false).text, std::string("XTHYYYENYYYY"));
  // Closed by itself, opened again: the budget is the completion's.
  PickingEngine twice(saying("YYENXTHYYYYY"));
  EXPECT_EQ(think(twice, 3, true).text, std::string("YYENXTHYENYY"));
  EXPECT_EQ(think(twice, 2, true).text, std::string("YYENXTHENYYY"));
  // A closing marker that has begun is finished, and one that came to nothing counts.
  PickingEngine begun(saying("YYEYYYYYYYYY"));
  EXPECT_EQ(think(begun, 3, true).text, std::string("YYENYYYYYYYY"));
  EXPECT_EQ(think(begun, 4, true).text, std::string("YYEYENYYYYYY"));
}

TEST(thinking_moves_a_grammar_on) {
  PickingEngine engine(saying("XXXXXXXXXXXX"));
  grammar::Grammar source;
  source.rules.push_back({"root", grammar::sequence({grammar::until("EN"), grammar::literal("ABC")})});
  const auto grammar = engine.compile(source);
  const auto with_grammar = [&](Request& request) { request.grammar = grammar; };
  EXPECT_EQ(think(engine, 2, true, 12, with_grammar).text, std::string("XXENABC"));
  EXPECT_EQ(think(engine, 0, true, 12, with_grammar).text, std::string("ENABC"));
  // A grammar that cannot close yet goes first.
  source.rules[0].expr = grammar::sequence({grammar::literal("KLM"), grammar::until("EN"), grammar::literal("Q")});
  const auto later = engine.compile(source);
  EXPECT_EQ(think(engine, 1, true, 12, [&](Request& request) { request.grammar = later; }).text, std::string("KLMENQ"));
}

TEST(thinking_goes_before_other_wishes) {
  PickingEngine engine(saying("XXXXXXXXXXXX"));
  EXPECT_EQ(think(engine, 2, true, 6,
                  [](Request& request) {
                    request.sampling.allowed_token_ids = ids_of("XY");
                    request.sampling.bad_words = {ids_of("N")};
                    request.sampling.min_tokens = 6;
                  })
                .text,
            std::string("XXENXX"));
  EXPECT_ERROR("invalid_argument", think(engine, -1, true));
  EXPECT_ERROR("invalid_argument",
               think(engine, 1, true, 6, [](Request& request) { request.sampling.thinking->close_ids.clear(); }));
  EXPECT_ERROR("invalid_argument",
               think(engine, 1, true, 6, [](Request& request) { request.sampling.thinking->open_ids = {70}; }));
}

// ---- scoring and stopping ----

TEST(a_request_without_completion_is_scored) {
  for (const int depth : {1, 2}) {
    PickingSetup setup;
    setup.depth = depth;
    PickingEngine engine(setup);
    const auto grammar = engine.compile("root ::= \"A\"");
    std::vector<int32_t> prompt;
    for (int i = 0; i < 41; ++i)
      prompt.push_back(i % 26);
    // Twice: the prefix cache must not take positions away.
    for (int round = 0; round < 2; ++round) {
      const PickedAnswer answer = engine.run([&](Request& request) {
        request.prompt_token_ids = prompt;
        request.sampling.max_tokens = 0;
        request.sampling.num_prompt_logprobs = 1;
        request.sampling.num_logprobs = 1;
        if (round == 1) request.grammar = grammar;
        request.sampling.thinking = ThinkingParams{0, {}, {1}, true};
      });
      EXPECT(answer.finish->reason == FinishReason::kLength);
      EXPECT(answer.token_ids.empty() && answer.text.empty());
      EXPECT_EQ(answer.finish->num_completion_tokens, 0);
      EXPECT_EQ(answer.finish->num_prompt_tokens, 41);
      EXPECT_EQ(answer.prompt_logprobs.size(), prompt.size());
      for (size_t i = 1; i < answer.prompt_logprobs.size(); ++i)
        EXPECT_EQ(answer.prompt_logprobs[i]->token_id, prompt[i]);
    }
    const RequestId choices =
        engine.submit([&](Request& request) { request.num_choices = 3, request.sampling.max_tokens = 0; });
    for (int choice = 0; choice < 3; ++choice)
      EXPECT(engine.wait(choices, choice).finish->reason == FinishReason::kLength);
    const EngineStats stats = engine.engine().stats();
    EXPECT_EQ(stats.num_free_blocks + stats.num_cached_blocks, stats.num_blocks);
  }
}

TEST(a_prompt_may_fill_the_context_when_it_is_scored) {
  PickingEngine engine;
  const auto run = [&](size_t num_prompt) {
    return engine.run(
        [&](Request& request) { request.prompt_token_ids.assign(num_prompt, 1), request.sampling.max_tokens = 0; });
  };
  EXPECT(run(200).finish->reason == FinishReason::kLength);
  EXPECT_ERROR("context_length_exceeded", run(201));
}

TEST(a_choice_that_is_stopped_keeps_its_usage) {
  PickingSetup setup;

  setup.preferences = [](const SampleRow&) { return ids_of("K"); };
  PickingEngine engine(setup);
  const RequestId id = engine.submit([](Request& request) {
    request.num_choices = 2, request.sampling.max_tokens = 190, request.sampling.is_eos_ignored = true;
  });
  engine.wait_for_tokens(id, 1);
  engine.engine().stop(id, 0);
  engine.engine().stop(id, 7);
  engine.engine().stop(id + 5, 0);
  const PickedAnswer stopped = engine.wait(id, 0), other = engine.wait(id, 1);
  // It may have come to its end before it was stopped, but nothing is lost or counted twice.
  EXPECT(stopped.finish->reason == FinishReason::kStop || stopped.token_ids.size() == 190);
  EXPECT_EQ(static_cast<size_t>(stopped.finish->num_completion_tokens), stopped.token_ids.size());
  EXPECT_EQ(stopped.finish->num_prompt_tokens, 3);
  EXPECT_EQ(stopped.finish->stop_token_id, -1);
  EXPECT_EQ(other.finish->num_completion_tokens, 190);
}

}  // namespace
}  // namespace capstan
