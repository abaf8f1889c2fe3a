// Grammars in the engine: masks reach the sampler, sampled tokens move the grammar on, and the text ends with it.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "native/engine/engine.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

constexpr int kNumIds = 40;  // the capitals, the digits, "AB", ",", EOS and one without bytes; the model's vocabulary has a few more
constexpr int kVocabSize = 70;
constexpr int32_t kEos = 38;

std::shared_ptr<Vocabulary> make_vocabulary() {
  auto vocabulary = std::make_shared<Vocabulary>();
  vocabulary->offsets.push_back(0);
  for (int id = 0; id < kNumIds; ++id) {
    if (id < 26) vocabulary->bytes += static_cast<char>('A' + id);
    else if (id < 36) vocabulary->bytes += static_cast<char>('0' + id - 26);
    else vocabulary->bytes += id == 36 ? "AB" : id == 37 ? "," : "";
    vocabulary->offsets.push_back(static_cast<uint32_t>(vocabulary->bytes.size()));
    vocabulary->is_special.push_back(id == kEos);
  }
  return vocabulary;
}

SamplingParams at_most(int max_tokens) {
  SamplingParams sampling;
  sampling.max_tokens = max_tokens;
  return sampling;
}

// Draws the highest id that its row allows, or 0 where there is none.
class HighestRunner final : public StepRunner {
 public:
  int depth() const override { return 2; }
  void launch(Batch& batch) override {
    std::vector<int32_t> drawn;
    for (const SampleRow& row : batch.sample_rows) {
      int32_t id = kVocabSize - 1;
      const auto is_allowed = [&] {
        return (row.allowed_mask.empty() || (row.allowed_mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) && std::ranges::find(row.banned_ids, id) == row.banned_ids.end();
      };
      while (id > 0 && !is_allowed()) --id;
      drawn.push_back(id);
    }
    in_flight_.push_back(drawn);
  }
  void collect(Batch& batch) override {
    for (size_t i = 0; i < batch.results.size(); ++i) batch.results[i] = {.token_id = in_flight_.front()[i], .logprob = 0, .rank = 0, .top = {}};
    in_flight_.pop_front();
  }

 private:
  std::deque<std::vector<int32_t>> in_flight_;
};

struct Answer {
  std::string text;
  Finish finish;
};

class Harness {
 public:
  Harness() {
    EngineOptions options;
    options.limits = {4, 16, 200};
    options.eos_token_ids = {kEos};
    options.vocab_size = kVocabSize;
    engine_ = std::make_unique<Engine>(options, BlockManager(64, 4, true), std::make_unique<HighestRunner>(), make_vocabulary(), [this](std::vector<Event>&& events) {
      const std::lock_guard lock(mutex_);
      for (Event& event : events) {
        answer_.text += event.text_delta;
        if (event.finish) answer_.finish = *event.finish, is_done_ = true;
      }
      arrived_.notify_all();
    });
  }

  std::shared_ptr<const grammar::CompiledGrammar> compile(std::string_view gbnf) {
    return std::make_shared<const grammar::CompiledGrammar>(grammar::parse_gbnf(gbnf), engine_->token_table());
  }

  Answer run(std::string_view gbnf, SamplingParams sampling = at_most(50)) {
    Request request;
    request.prompt_token_ids = {1, 2, 3};
    request.sampling = sampling;
    request.grammar = compile(gbnf);
    engine_->submit(request);
    std::unique_lock lock(mutex_);
    EXPECT(arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return is_done_; }));
    is_done_ = false;
    return std::exchange(answer_, {});
  }

  Engine& engine() { return *engine_; }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  Answer answer_;
  bool is_done_ = false;
  std::unique_ptr<Engine> engine_;
};

TEST(grammar_in_the_engine_decides_the_text_and_its_end) {
  Harness harness;
  const Answer counted = harness.run("root ::= \"AB\" [0-5]{3} (\",\" [A-C])? [X-Z]");
  EXPECT_EQ(counted.text, std::string("AB555,CZ"));
  EXPECT(counted.finish.reason == FinishReason::kStop);
  EXPECT_EQ(counted.finish.num_completion_tokens, 7);
  // EOS is the highest id once the text may end.
  const Answer open = harness.run("root ::= \"A\"+ [0-9]*");
  EXPECT_EQ(open.text, std::string("A"));
  EXPECT_EQ(open.finish.num_completion_tokens, 2);
  SamplingParams longer = at_most(6);
  longer.min_tokens = 4;
  EXPECT_EQ(harness.run("root ::= \"A\" [0-7]*", longer).text, std::string("A777"));
  longer.is_eos_ignored = true;
  EXPECT_EQ(harness.run("root ::= \"A\" [0-7]*", longer).text, std::string("A"));
}

TEST(grammar_in_the_engine_ends_by_length) {
  const Answer cut = Harness().run("root ::= \"B\"{30}", at_most(5));
  EXPECT_EQ(cut.text, std::string("BBBBB"));
  EXPECT(cut.finish.reason == FinishReason::kLength);
}

TEST(grammar_in_the_engine_without_a_token_to_go_on_with_is_an_error) {
  Harness harness;
  SamplingParams only_a = at_most(5);
  only_a.allowed_token_ids = std::vector<int32_t>{1};
  const Answer stuck = harness.run("root ::= \"BC\"", only_a);
  EXPECT_EQ(stuck.text, std::string("B"));
  EXPECT(stuck.finish.reason == FinishReason::kError);
  EXPECT(stuck.finish.error_code == ErrorCode::kInvalidArgument);
  EXPECT_EQ(harness.run("root ::= \"C\"").text, std::string("C"));
}

TEST(grammar_of_another_vocabulary_is_refused) {
  Harness first, second;
  Request request;
  request.prompt_token_ids = {1};
  request.grammar = first.compile("root ::= \"A\"");
  EXPECT_ERROR("invalid_argument", second.engine().submit(request));
  second.engine().token_table();
  EXPECT_ERROR("invalid_argument", second.engine().submit(request));
  request.grammar = std::make_shared<const grammar::CompiledGrammar>(grammar::parse_gbnf("root ::= \"A\""), nullptr);
  EXPECT_ERROR("invalid_argument", second.engine().submit(request));
}

}  // namespace
}  // namespace capstan
