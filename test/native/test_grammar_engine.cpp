// Grammars in the engine: masks reach the sampler, sampled tokens advance the grammar, and its end ends the text.
#include <algorithm>
#include <future>
#include <map>
#include <thread>

#include "test/native/grammar_fixture.h"
#include "test/native/picking_engine.h"

namespace capstan {
namespace {

using testing::PickedAnswer;
using testing::PickingEngine;

PickedAnswer run(PickingEngine& engine, std::string_view gbnf,
                 const std::function<void(SamplingParams&)>& change = nullptr) {
  const auto grammar = engine.compile(gbnf);
  return engine.run([&](Request& request) {
    request.grammar = grammar;
    if (change) change(request.sampling);
  });
}

TEST(grammar_in_the_engine_determines_the_text_and_its_end) {
  PickingEngine engine;
  const PickedAnswer counted = run(engine, "root ::= \"AB\" [0-5]{3} (\",\" [A-C])? [X-Z]");
  EXPECT_EQ(counted.text, std::string("AB555,CZ"));
  EXPECT(counted.finish->reason == FinishReason::kStop);
  EXPECT_EQ(counted.finish->num_completion_tokens, 7);
  // EOS is the highest id, so it is sampled when the text may end.
  const PickedAnswer open = run(engine, "root ::= \"A\"+ [0-9]*");
  EXPECT_EQ(open.text, std::string("A"));
  EXPECT_EQ(open.finish->num_completion_tokens, 2);
}

TEST(grammar_in_the_engine_overrides_min_tokens) {
  PickingEngine engine;
  const auto with_min = [](SamplingParams& sampling) { sampling.max_tokens = 6, sampling.min_tokens = 4; };
  EXPECT_EQ(run(engine, "root ::= \"A\" [0-7]*", with_min).text, std::string("A777"));
  // EOS ends a grammar's text even with is_eos_ignored, but not before min_tokens.
  EXPECT_EQ(run(engine, "root ::= \"A\" [0-7]*",
                [&](SamplingParams& sampling) { with_min(sampling), sampling.is_eos_ignored = true; })
                .text,
            std::string("A777"));
  const PickedAnswer complete = run(engine, "root ::= \"AB\"", with_min);
  EXPECT_EQ(complete.text, std::string("AB"));
  EXPECT(complete.finish->reason == FinishReason::kStop);
  // No token of this vocabulary continues the text, so only EOS is left.
  const PickedAnswer only_eos = run(engine, "root ::= \"A\" \"x\"*", with_min);
  EXPECT_EQ(only_eos.text, std::string("A"));
  EXPECT(only_eos.finish->reason == FinishReason::kStop);
  // The same with a stop token that the text requires.
  const PickedAnswer stop_token = run(engine, "root ::= \"A\" \"C\" \"D\"", [&](SamplingParams& sampling) {
    with_min(sampling), sampling.stop_token_ids = {2};
  });
  EXPECT_EQ(stop_token.finish->num_completion_tokens, 2);
  EXPECT(stop_token.finish->reason == FinishReason::kStop);
}

TEST(grammar_in_the_engine_ends_by_length) {
  PickingEngine engine;
  const PickedAnswer cut = run(engine, "root ::= \"B\"{30}", [](SamplingParams& sampling) { sampling.max_tokens = 5; });
  EXPECT_EQ(cut.text, std::string("BBBBB"));
  EXPECT(cut.finish->reason == FinishReason::kLength);
}

TEST(grammar_in_the_engine_without_an_allowed_token_is_an_error) {
  PickingEngine engine;
  const auto check = [](const PickedAnswer& stuck, const char* text) {
    EXPECT_EQ(stuck.text, std::string(text));
    EXPECT(stuck.finish->reason == FinishReason::kError);
    EXPECT(stuck.finish->error_code == ErrorCode::kInvalidArgument);
  };
  check(run(engine, "root ::= \"BC\"",
            [](SamplingParams& sampling) { sampling.allowed_token_ids = std::vector<int32_t>{1}; }),
        "B");
  // No token of the vocabulary matches, from the first token on and later.
  check(run(engine, "root ::= \"x\""), "");
  check(run(engine, "root ::= \"Bx\""), "B");
  check(run(engine, "root ::= \"BC\"", [](SamplingParams& sampling) { sampling.bad_words = {{2}}; }), "B");
  const auto grammar = engine.compile("root ::= \"x\"");
  const RequestId both = engine.submit([&](Request& request) { request.grammar = grammar, request.num_choices = 2; });
  check(engine.wait(both, 0), "");
  check(engine.wait(both, 1), "");
  EXPECT_EQ(run(engine, "root ::= \"C\"").text, std::string("C"));
}

TEST(grammar_in_the_engine_refuses_one_of_another_vocabulary) {
  PickingEngine first, second;
  Request request;
  request.prompt_token_ids = {1};
  request.grammar = first.compile("root ::= \"A\"");
  EXPECT_ERROR("invalid_argument", second.engine().submit(request));
  second.engine().token_table();
  EXPECT_ERROR("invalid_argument", second.engine().submit(request));
  request.grammar = std::make_shared<const grammar::CompiledGrammar>(grammar::parse_gbnf("root ::= \"A\""), nullptr);
  EXPECT_ERROR("invalid_argument", second.engine().submit(request));
}

// ---- slow masks ----

// A vocabulary and a grammar whose masks reach the cost limit, with several masks for one state.
testing::PickingSetup slow_setup() {
  testing::PickingSetup setup;
  setup.more_tokens.push_back("a");
  for (size_t i = 0; setup.more_tokens.size() < 20'000; ++i)
    for (const char c : {'a', 'b', 'c'})
      setup.more_tokens.push_back(setup.more_tokens[i] + c);
  return setup;
}

const char* const kSlowGrammar = R"(root ::= x (y | z | u | v | w)
x ::= ([ab]{1,900} "c"? | "a" [a-c]{0,70}){1,900}
y ::= ([ab]{1,900} "c"? | "a" [a-c]{0,71}){1,900}
z ::= ([ab]{1,900} "c"? | "a" [a-c]{0,72}){1,900}
u ::= ([ab]{1,900} "c"? | "a" [a-c]{0,73}){1,900}
v ::= ([ab]{1,900} "c"? | "a" [a-c]{0,74}){1,900}
w ::= ([ab]{1,900} "c"? | "a" [a-c]{0,75}){1,900})";

TEST(grammar_slow_masks_do_not_delay_other_requests) {
  testing::Gate masks;
  masks.close();
  testing::PickingSetup setup = slow_setup();
  setup.on_mask_start = [&] { masks.pass(); };
  PickingEngine engine(setup);
  const auto grammar = engine.compile(kSlowGrammar);
  const RequestId slow =
      engine.submit([&](Request& request) { request.grammar = grammar, request.sampling.max_tokens = 3; });
  const RequestId plain = engine.submit(
      [](Request& request) { request.sampling.max_tokens = 100, request.sampling.is_eos_ignored = true; });
  EXPECT_EQ(engine.wait(plain).finish->num_completion_tokens, 100);
  masks.open();
  EXPECT_EQ(engine.wait(slow).finish->num_completion_tokens, 3);
  // The masks are cached now, and the text stays the same.
  const PickedAnswer first = engine.wait(slow);
  EXPECT(engine.run([&](Request& request) { request.grammar = grammar, request.sampling.max_tokens = 3; }).token_ids ==
         first.token_ids);
  const EngineStats stats = engine.engine().stats();
  EXPECT_EQ(stats.num_free_blocks + stats.num_cached_blocks, stats.num_blocks);
}

TEST(grammar_mask_pool_does_nothing_for_a_cancelled_job) {
  const auto tokens = testing::make_tokens({"a", "b", "<eos>"});
  std::promise<void> has_started, is_cancelled, is_done;
  MaskPool pool(
      [&] {
        has_started.set_value();
        is_cancelled.get_future().wait();
      },
      [&] { is_done.set_value(); });
  const auto matcher = std::make_shared<grammar::GrammarMatcher>(testing::compile_gbnf("root ::= \"a\"*", tokens));
  const auto job = pool.start(matcher, 0, tokens->num_mask_words());
  has_started.get_future().wait();
  job->stop.request_stop();
  is_cancelled.set_value();
  is_done.get_future().wait();
  EXPECT(!matcher->rollback(1));  // accepted nothing
  EXPECT_EQ(job->mask[0], 0u);
}

TEST(grammar_mask_pool_schedules_grammars_in_turn) {
  const auto tokens = testing::make_tokens({"a", "b", "<eos>"});
  std::mutex mutex;
  std::condition_variable changed;
  int num_made = 0, num_released = 0;
  // Each thread waits after a mask until it is released.
  MaskPool pool(nullptr, [&] {
    std::unique_lock lock(mutex);
    const int idx = num_made++;
    changed.notify_all();
    changed.wait(lock, [&] { return idx < num_released; });
  });
  const auto release_and_wait_for = [&](int num_masks) {
    std::unique_lock lock(mutex);
    num_released = num_masks - MaskPool::kNumThreads;
    changed.notify_all();
    EXPECT(changed.wait_for(lock, std::chrono::seconds(300), [&] { return num_made == num_masks; }));
  };
  const auto first = testing::compile_gbnf("root ::= \"a\"*", tokens),
             second = testing::compile_gbnf("root ::= \"b\"", tokens);
  const auto start = [&](const std::shared_ptr<const grammar::CompiledGrammar>& grammar) {
    return pool.start(std::make_shared<grammar::GrammarMatcher>(grammar), -1, tokens->num_mask_words());
  };
  std::vector<std::shared_ptr<MaskJob>> many{start(first), start(first)};
  release_and_wait_for(2);
  for (int i = 0; i < 50; ++i)
    many.push_back(start(first));
  const auto late = start(second);
  release_and_wait_for(4);
  EXPECT(late->is_done && many[2]->is_done && !many[3]->is_done);
  release_and_wait_for(6);
  EXPECT(many[4]->is_done && !many[5]->is_done);
  const std::lock_guard lock(mutex);
  num_released = 100;
  changed.notify_all();
}

// A queue whose jobs take the times that the test gives them.
class TimedQueue {
 public:
  std::shared_ptr<MaskJob> push(const std::shared_ptr<const grammar::CompiledGrammar>& grammar) {
    auto job = std::make_shared<MaskJob>();
    job->matcher = std::make_shared<grammar::GrammarMatcher>(grammar);
    queue.push(job);
    return job;
  }
  // Runs the next job, which takes a millisecond unless its grammar is slow.
  const grammar::CompiledGrammar* run() {
    const auto job = queue.pop();
    const auto* grammar = &job->matcher->grammar();
    queue.finish(*job, slow.contains(grammar) ? slow.at(grammar) : std::chrono::milliseconds(1));
    return grammar;
  }

  std::map<const grammar::CompiledGrammar*, std::chrono::milliseconds> slow;
  MaskQueue queue;
};

TEST(grammar_mask_queue_schedules_by_time) {
  const auto tokens = testing::make_tokens({"a", "b", "<eos>"});
  const auto compile = [&] { return testing::compile_gbnf("root ::= \"a\"*", tokens); };
  const std::vector slow{compile(), compile(), compile()};
  const auto quick = compile(), late = compile();
  TimedQueue queue;
  for (size_t i = 0; i < slow.size(); ++i)
    queue.slow[slow[i].get()] = std::chrono::milliseconds(1000 + i);
  for (int i = 0; i < 10; ++i)
    for (const auto& grammar : slow)
      queue.push(grammar);
  for (const auto& grammar : slow)
    EXPECT(queue.run() == grammar.get());

  // Between its jobs it does not wait.
  for (int i = 0; i < 20; ++i) {
    queue.push(quick);
    EXPECT(queue.run() == quick.get());
  }
  EXPECT(queue.run() == slow[0].get());
  queue.push(quick);
  EXPECT(queue.run() == quick.get());

  // It has the next turns, but does not make up for the time before it came.
  for (int i = 0; i < 3000; ++i)
    queue.push(late);
  int num_late = 0;
  while (queue.run() == late.get())
    ++num_late;
  EXPECT(num_late >= 1 && num_late <= 1000);
}

TEST(grammar_mask_queue_prefers_grammars_without_a_running_mask) {
  const auto tokens = testing::make_tokens({"a", "b", "<eos>"});
  const auto first = testing::compile_gbnf("root ::= \"a\"*", tokens),
             second = testing::compile_gbnf("root ::= \"b\"", tokens);
  TimedQueue queue;
  const std::vector jobs{queue.push(first), queue.push(first), queue.push(second)};
  EXPECT(queue.queue.pop() == jobs[0]);
  EXPECT(queue.queue.pop() == jobs[2]);
  EXPECT(queue.queue.pop() == jobs[1]);
  EXPECT(queue.queue.is_empty());
}

TEST(grammar_sequences_can_end_while_they_wait_for_masks) {
  testing::Gate masks;
  masks.close();
  testing::PickingSetup setup = slow_setup();
  setup.on_mask_start = [&] { masks.pass(); };
  setup.max_num_seqs = 8;
  PickingEngine engine(setup);
  const auto grammar = engine.compile(kSlowGrammar);
  const auto submit_slow = [&] {
    return engine.submit([&](Request& request) { request.grammar = grammar, request.sampling.max_tokens = 3; });
  };
  const RequestId aborted = submit_slow(), stopped = submit_slow();
  engine.engine().abort(aborted);
  engine.engine().stop(stopped, 0);
  EXPECT(engine.wait(aborted).finish->reason == FinishReason::kAbort);
  EXPECT(engine.wait(stopped).finish->reason == FinishReason::kStop);
  EXPECT_EQ(engine.wait(stopped).finish->num_prompt_tokens, 3);
  const RequestId closed = submit_slow();
  std::thread closer([&] { engine.engine().close(); });
  EXPECT(engine.wait(closed).finish->error_code == ErrorCode::kEngineClosed);
  masks.open();  // close() joins the threads that compute masks
  closer.join();
}

TEST(grammar_sequences_survive_preemption_while_they_wait) {
  testing::Gate masks;
  testing::PickingSetup setup = slow_setup();
  setup.on_mask_start = [&] { masks.pass(); };
  setup.mask_patience = std::chrono::hours(1);
  setup.num_blocks = 7;
  PickingEngine engine(setup);
  // The first mask is ready at once, so that the younger sequence waits for its second one.
  const auto grammar = engine.compile("root ::= \"A\" slow\nslow" + std::string(kSlowGrammar + 4));
  const auto submit = [&](int max_tokens) {
    return engine.submit(
        [&](Request& request) { request.grammar = grammar, request.sampling.max_tokens = max_tokens; });
  };
  engine.wait(submit(1));
  masks.close();
  engine.events().close();
  const RequestId older =
      engine.submit([](Request& request) { request.sampling.max_tokens = 25, request.sampling.is_eos_ignored = true; });
  engine.events().wait_for_threads(1);
  const RequestId younger = submit(6);
  engine.events().open();
  masks.wait_for_threads(1);
  // The older sequence needs all blocks.
  const PickedAnswer first = engine.wait(older);
  EXPECT_EQ(first.finish->num_completion_tokens, 25);
  EXPECT_EQ(first.finish->num_preemptions, 0);
  masks.open();
  const PickedAnswer result = engine.wait(younger);
  EXPECT_EQ(result.finish->num_preemptions, 1);
  EXPECT_EQ(result.finish->num_completion_tokens, 6);
  EXPECT(engine.wait(submit(6)).token_ids == result.token_ids);
}

// ---- the budget of work per step ----

TEST(grammar_in_the_engine_gives_the_same_text_without_a_budget_of_work) {
  testing::PickingSetup setup;
  PickingEngine quick(setup);
  setup.grammar_work_per_step = 0;  // the mask pool does everything
  PickingEngine pooled(setup);
  const auto limit = [](int min_tokens, int max_tokens) {
    return [=](SamplingParams& sampling) { sampling.min_tokens = min_tokens, sampling.max_tokens = max_tokens; };
  };
  for (const char* text : {"root ::= \"AB\" [0-5]{3} (\",\" [A-C])? [X-Z]", "root ::= \"A\"+ [0-9]*", "root ::= \"AB\"",
                           "root ::= \"A\" [0-7]*", "root ::= \"\"", "root ::= \"Bx\"", "root ::= \"x\""})
    for (const auto& change : {limit(0, 50), limit(4, 6), limit(0, 1), limit(0, 2), limit(0, 7)}) {
      const PickedAnswer wanted = run(quick, text, change), got = run(pooled, text, change);
      EXPECT_EQ(got.text, wanted.text);
      EXPECT(got.token_ids == wanted.token_ids);
      EXPECT(got.finish->reason == wanted.finish->reason && got.finish->error_code == wanted.finish->error_code);
    }
}

TEST(grammar_work_of_many_sequences_has_one_budget) {
  const auto vocabulary = testing::all_strings("abcd", 5);
  auto pieces = vocabulary;
  pieces.push_back("<eos>");
  const auto tokens = testing::make_tokens(pieces);
  // Every token leaves the rule after its first byte and continues on the stack of its sequence.
  const auto grammar = testing::compile_gbnf(
      "root ::= one (s | t)\none ::= [a-d]\ns ::= \"!\" | [a-d] (s | t) \"x\"\nt ::= \"?\" | [a-d] (t | s) \"y\"",
      tokens);
  grammar->masks().warm_up(std::chrono::steady_clock::now() + std::chrono::hours(1));
  size_t unlimited = SIZE_MAX;
  std::vector<uint32_t> mask(tokens->num_mask_words());
  EXPECT(grammar::GrammarMatcher(grammar).try_fill_mask(mask, unlimited));
  const size_t mask_work = SIZE_MAX - unlimited;

  constexpr size_t kNumInBudget = 3;
  testing::Gate masks;
  masks.close();
  MaskGate gate({.patience = std::chrono::hours(1),
                 .work_per_step = kNumInBudget * mask_work + 1,
                 .on_start = [&] { masks.pass(); },
                 .on_ready = [] {},
                 .fail = [](Sequence&, ErrorCode, const std::string& message) { EXPECT_EQ(message, std::string()); },
                 .end = [](Sequence&, FinishReason) { EXPECT(false && "no text ends"); }});
  std::vector<Sequence> sequences(20);
  for (Sequence& seq : sequences) {
    seq.sampling.max_tokens = 10;
    seq.grammar = std::make_shared<grammar::GrammarMatcher>(grammar);
    seq.grammar_mask.resize(tokens->num_mask_words());
  }
  const auto is_ready = [](const Sequence& seq) { return !seq.waits_for_mask(); };
  gate.begin_step();
  for (Sequence& seq : sequences)
    gate.prepare_next_token(seq);
  EXPECT_EQ(static_cast<size_t>(std::ranges::count_if(sequences, is_ready)), kNumInBudget);
  masks.open();
  while (gate.has_waiting()) {
    gate.take_ready_masks();
    std::this_thread::yield();
  }
  for (const Sequence& seq : sequences)
    EXPECT(seq.grammar_mask == mask);

  // The same for accepted tokens: the pool accepts what exceeds the budget.
  const int32_t id = static_cast<int32_t>(std::ranges::find(pieces, "abcda") - pieces.begin());
  gate.begin_step();
  for (Sequence& seq : sequences) {
    EXPECT(gate.accept(seq, id));
    gate.prepare_next_token(seq);
  }
  EXPECT(std::ranges::count_if(sequences, is_ready) < 10);
  while (gate.has_waiting()) {
    gate.take_ready_masks();
    std::this_thread::yield();
  }
  grammar::GrammarMatcher expected(grammar);
  EXPECT(expected.accept(id));
  expected.fill_mask(mask);
  for (const Sequence& seq : sequences)
    EXPECT(seq.grammar_mask == mask);
}

// Sequences that wait for their second mask occupy all slots, or most blocks. Another request must finish first, and
// their texts must stay the same.
TEST(grammar_sequences_that_wait_long_release_slots_and_blocks) {
  for (const bool is_about_blocks : {false, true}) {
    testing::Gate masks;
    testing::PickingSetup setup = slow_setup();
    setup.on_mask_start = [&] { masks.pass(); };
    setup.mask_patience = std::chrono::milliseconds(0);
    setup.max_num_seqs = is_about_blocks ? 4 : 2;
    setup.num_blocks = is_about_blocks ? 14 : 64;
    PickingEngine engine(setup);
    const auto grammar = engine.compile(kSlowGrammar);
    const auto submit_slow = [&](int32_t first_id) {
      return engine.submit([&](Request& request) {
        request.prompt_token_ids.assign(20, first_id);
        request.grammar = grammar;
        request.sampling.max_tokens = 3;
      });
    };
    // Their first masks pass, the others wait.
    masks.close();
    const RequestId slow = submit_slow(1), other = submit_slow(2);
    masks.wait_for_threads(MaskPool::kNumThreads);
    masks.release_waiting();
    engine.wait_for_tokens(slow, 1);
    engine.wait_for_tokens(other, 1);
    const RequestId plain = engine.submit(
        [](Request& request) { request.sampling.max_tokens = 40, request.sampling.is_eos_ignored = true; });
    EXPECT_EQ(engine.wait(plain).finish->num_completion_tokens, 40);
    masks.open();
    EXPECT_EQ(engine.wait(slow).finish->num_completion_tokens, 3);
    EXPECT_EQ(engine.wait(other).finish->num_completion_tokens, 3);
    EXPECT(engine.wait(submit_slow(1)).token_ids == engine.wait(slow).token_ids);
    EXPECT(engine.wait(submit_slow(2)).token_ids == engine.wait(other).token_ids);
    const EngineStats stats = engine.engine().stats();
    EXPECT_EQ(stats.num_free_blocks + stats.num_cached_blocks, stats.num_blocks);
  }
}

}  // namespace
}  // namespace capstan
