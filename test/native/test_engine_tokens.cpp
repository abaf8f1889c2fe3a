// Tokens that a request bans or forces, requests that only score their prompt, and choices that are stopped.
#include "native/engine/thinking.h"
#include "test/native/picking_engine.h"

namespace capstan {
namespace {

using testing::ids_of;
using testing::PickedAnswer;
using testing::PickingEngine;
using testing::PickingSetup;

// A model that prefers to repeat `text`, indexed by the position of each token.
PickingSetup repeating(std::string text) {
  PickingSetup setup;
  setup.preferences = [ids = ids_of(text)](const SampleRow& row) {
    return std::vector<int32_t>{ids[(row.position - 3) % ids.size()]};
  };
  return setup;
}

TEST(bad_words_are_never_drawn) {
  PickingEngine engine(repeating("ABCABC"));
  const auto run = [&](std::vector<std::vector<int32_t>> bad_words) {
    return engine
        .run([&](Request& request) {
          request.sampling.max_tokens = 6, request.sampling.is_eos_ignored = true,
          request.sampling.bad_words = std::move(bad_words);
        })
        .token_ids;
  };
  EXPECT(run({}) == ids_of("ABCABC"));
  // When the preferred id is banned, the model draws the highest one.
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
  // A bad word does not match across the end of the prompt (1, 2, 3 = BCD).
  EXPECT(run({{3, 0}}) == ids_of("ABCABC"));
}

TEST(bad_words_and_min_tokens_combine) {
  PickingEngine engine;
  const auto answer = engine.run([](Request& request) {
    request.sampling.allowed_token_ids = std::vector<int32_t>{1, 2, testing::kLetterEos};
    request.sampling.min_tokens = 3;
    request.sampling.bad_words = {{2}};
  });
  EXPECT_EQ(answer.text, std::string("BBB"));
  EXPECT_EQ(answer.finish->num_completion_tokens, 4);
}

TEST(bad_words_that_leave_no_token_are_an_error_of_the_request) {
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
  // A bad word of several tokens that is the only text that the grammar accepts.
  const auto grammar = engine.compile("root ::= \"BCD\"");
  const auto stuck = engine.run(
      [&](Request& request) { request.grammar = grammar, request.sampling.bad_words = {{1, 2, 3}, {5, 6}}; });
  EXPECT_EQ(stuck.text, std::string("BC"));
  EXPECT(stuck.finish->reason == FinishReason::kError);
  EXPECT(stuck.finish->error_code == ErrorCode::kInvalidArgument);
}

TEST(bad_words_that_are_empty_or_unknown_are_refused) {
  PickingEngine engine;
  EXPECT_ERROR("invalid_argument", engine.submit([](Request& request) { request.sampling.bad_words = {{}}; }));
  EXPECT_ERROR("invalid_argument", engine.submit([](Request& request) { request.sampling.bad_words = {{1, 70}}; }));
}

// ---- thinking budget: "TH" opens, "EN" closes ----

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
    PickingSetup setup = repeating("XXXXXXXXXXXX");
    setup.depth = depth;
    PickingEngine engine(setup);
    EXPECT_EQ(think(engine, 4, true).text, std::string("XXXXENXXXXXX"));
    EXPECT_EQ(think(engine, 1, true).text, std::string("XENXXXXXXXXX"));
    EXPECT_EQ(think(engine, 0, true).text, std::string("ENXXXXXXXXXX"));
    EXPECT_EQ(think(engine, 0, false).text, std::string("XXXXXXXXXXXX"));
    EXPECT_EQ(think(engine, 12, true).text, std::string("XXXXXXXXXXXX"));
  }
}

TEST(thinking_counts_the_tokens_between_the_markers) {
  PickingEngine engine(repeating("XTHYYYYYYYYY"));
  EXPECT_EQ(think(engine, 3, false).text, std::string("XTHYYYENYYYY"));
  // The model closes and opens again: one budget holds for the completion.
  PickingEngine twice(repeating("YYENXTHYYYYY"));
  EXPECT_EQ(think(twice, 3, true).text, std::string("YYENXTHYENYY"));
  EXPECT_EQ(think(twice, 2, true).text, std::string("YYENXTHENYYY"));
  // A closing marker that the model has begun is completed. One that it has abandoned counts as thinking.
  PickingEngine begun(repeating("YYEYYYYYYYYY"));
  EXPECT_EQ(think(begun, 3, true).text, std::string("YYENYYYYYYYY"));
  EXPECT_EQ(think(begun, 4, true).text, std::string("YYEYENYYYYYY"));
}

TEST(thinking_advances_the_grammar) {
  PickingEngine engine(repeating("XXXXXXXXXXXX"));
  grammar::Grammar source;
  source.rules.push_back({"root", grammar::sequence({grammar::until("EN"), grammar::literal("ABC")})});
  const auto grammar = engine.compile(source);
  const auto with_grammar = [&](Request& request) { request.grammar = grammar; };
  EXPECT_EQ(think(engine, 2, true, 12, with_grammar).text, std::string("XXENABC"));
  EXPECT_EQ(think(engine, 0, true, 12, with_grammar).text, std::string("ENABC"));
  // A grammar that does not accept the marker yet takes precedence.
  source.rules[0].expr = grammar::sequence({grammar::literal("KLM"), grammar::until("EN"), grammar::literal("Q")});
  const auto later = engine.compile(source);
  EXPECT_EQ(think(engine, 1, true, 12, [&](Request& request) { request.grammar = later; }).text, std::string("KLMENQ"));
}

TEST(thinking_takes_precedence_over_other_constraints) {
  PickingEngine engine(repeating("XXXXXXXXXXXX"));
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

TEST(a_request_with_max_tokens_0_scores_its_prompt) {
  for (const int depth : {1, 2}) {
    PickingSetup setup;
    setup.depth = depth;
    PickingEngine engine(setup);
    const auto grammar = engine.compile("root ::= \"A\"");
    std::vector<int32_t> prompt;
    for (int i = 0; i < 41; ++i)
      prompt.push_back(i % 26);
    // Twice, because cached positions must be scored too.
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

TEST(a_scored_prompt_may_fill_the_context) {
  PickingEngine engine;
  const auto run = [&](size_t num_prompt) {
    return engine.run(
        [&](Request& request) { request.prompt_token_ids.assign(num_prompt, 1), request.sampling.max_tokens = 0; });
  };
  EXPECT(run(200).finish->reason == FinishReason::kLength);
  EXPECT_ERROR("context_length_exceeded", run(201));
}

TEST(a_stopped_choice_reports_its_usage) {
  PickingSetup setup;
  setup.preferences = [](const SampleRow&) { return ids_of("K"); };
  PickingEngine engine(setup);
  engine.events().close();
  const RequestId id = engine.submit([](Request& request) {
    request.num_choices = 2, request.sampling.max_tokens = 190, request.sampling.is_eos_ignored = true;
  });
  engine.events().wait_for_threads(1);
  engine.engine().stop(id, 0);
  engine.engine().stop(id, 7);      // no such choice
  engine.engine().stop(id + 5, 0);  // no such request
  engine.events().open();
  const PickedAnswer stopped = engine.wait(id, 0), other = engine.wait(id, 1);
  EXPECT(stopped.finish->reason == FinishReason::kStop && !stopped.token_ids.empty());
  EXPECT_EQ(static_cast<size_t>(stopped.finish->num_completion_tokens), stopped.token_ids.size());
  EXPECT_EQ(stopped.finish->num_prompt_tokens, 3);
  EXPECT_EQ(stopped.finish->stop_token_id, -1);
  EXPECT_EQ(other.finish->num_completion_tokens, 190);
}

}  // namespace
}  // namespace capstan
