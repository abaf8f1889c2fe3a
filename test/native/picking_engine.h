#pragma once
// An engine over a vocabulary of letters. Its "model" draws the token that a test prefers, if the row allows it, which
// shows what the engine allows.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "native/engine/engine.h"
#include "native/grammar/matcher.h"
#include "test/native/gate.h"
#include "test/native/testing.h"

namespace capstan::testing {

constexpr int kNumLetterIds =
    40;  // capitals, digits, "AB", ",", EOS and one without bytes; the model's vocabulary has more ids
constexpr int kLetterVocabSize = 70;
constexpr int32_t kLetterEos = 38;

inline std::shared_ptr<Vocabulary> letter_vocabulary(const std::vector<std::string>& more = {}) {
  auto vocabulary = std::make_shared<Vocabulary>();
  vocabulary->offsets.push_back(0);
  const auto add = [&](const std::string& bytes, bool is_special) {
    vocabulary->bytes += bytes;
    vocabulary->offsets.push_back(static_cast<uint32_t>(vocabulary->bytes.size()));
    vocabulary->is_special.push_back(is_special);
  };
  for (int id = 0; id < kNumLetterIds; ++id) {
    if (id < 26)
      add(std::string(1, static_cast<char>('A' + id)), false);
    else if (id < 36)
      add(std::string(1, static_cast<char>('0' + id - 26)), false);
    else
      add(id == 36 ? "AB" : id == 37 ? "," : "", id == kLetterEos);
  }
  for (const std::string& bytes : more)
    add(bytes, false);
  return vocabulary;
}

// `text` consists of capitals and digits.
inline std::vector<int32_t> ids_of(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text)
    ids.push_back(c >= 'A' ? c - 'A' : c - '0' + 26);
  return ids;
}

inline bool is_allowed(const SampleRow& row, int32_t id) {
  const bool is_in_mask =
      row.allowed_mask.empty() || (row.allowed_mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
  return is_in_mask && std::ranges::find(row.banned_ids, id) == row.banned_ids.end();
}

// Draws the first id of `preferences` that the row allows, or else the highest allowed id, or 0 when none is allowed.
class PickingRunner final : public StepRunner {
 public:
  using Preferences = std::function<std::vector<int32_t>(const SampleRow& row)>;
  PickingRunner(int depth, int num_ids, Preferences preferences)
      : depth_(depth), num_ids_(num_ids), preferences_(std::move(preferences)) {}

  int depth() const override { return depth_; }
  void launch(Batch& batch) override {
    std::vector<int32_t> drawn;
    for (const SampleRow& row : batch.sample_rows)
      drawn.push_back(row.wants_sample ? draw(row) : row.target_id);
    in_flight_.push_back(drawn);
  }
  void collect(Batch& batch) override {
    for (size_t i = 0; i < batch.results.size(); ++i)
      batch.results[i] = {.token_id = in_flight_.front()[i], .logprob = 0, .rank = 0, .top = {}};
    in_flight_.pop_front();
  }

 private:
  int32_t draw(const SampleRow& row) const {
    if (preferences_)
      for (const int32_t id : preferences_(row))
        if (is_allowed(row, id)) return id;
    int32_t id = num_ids_ - 1;
    while (id > 0 && !is_allowed(row, id))
      --id;
    return id;
  }

  const int depth_, num_ids_;
  const Preferences preferences_;
  std::deque<std::vector<int32_t>> in_flight_;
};

struct PickedAnswer {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  std::optional<Finish> finish;
};

struct PickingSetup {
  int depth = 2, max_num_seqs = 4, max_num_batched_tokens = 16, num_blocks = 64;
  std::chrono::milliseconds mask_patience{100};
  std::function<void()> on_mask_start;
  size_t grammar_work_per_step = EngineOptions().grammar_work_per_step;
  std::vector<std::string> more_tokens;
  SpeculationOptions speculation;
  PickingRunner::Preferences preferences;
  int max_adapters = 0;
  AdapterLoader load_adapter;
  std::shared_ptr<StepRunner> draft_runner;  // of a draft model; depth is 1
};

class PickingEngine {
 public:
  explicit PickingEngine(const PickingSetup& setup = {}) {
    EngineOptions options;
    options.limits = {setup.max_num_seqs, setup.max_num_batched_tokens, 200};
    options.limits.speculation = setup.speculation;
    options.eos_token_ids = {kLetterEos};
    options.mask_patience = setup.mask_patience;
    options.on_mask_start = setup.on_mask_start;
    options.grammar_work_per_step = setup.grammar_work_per_step;
    options.checks_integrity = true;
    options.max_adapters = setup.max_adapters;
    options.load_adapter = setup.load_adapter;
    const auto vocabulary = letter_vocabulary(setup.more_tokens);
    std::vector<KvGroupBlocks> groups{{setup.num_blocks}};
    if (setup.draft_runner) {
      options.draft_model = {.runner = setup.draft_runner,
                             .num_kv_groups = 1,
                             .vocab_size = kLetterVocabSize,
                             .max_model_len = options.limits.max_model_len,
                             .max_num_tokens = 200,
                             .max_num_seqs = setup.max_num_seqs,
                             .draft_cost = 0.5};
      groups.push_back({setup.num_blocks});
    }
    options.vocab_size = std::max<int64_t>(kLetterVocabSize, vocabulary->num_ids());
    auto runner =
        std::make_unique<PickingRunner>(setup.depth, static_cast<int>(vocabulary->num_ids()), setup.preferences);
    engine_ = std::make_unique<Engine>(options, BlockManager(groups, 4, true), std::move(runner), vocabulary,
                                       [this](std::vector<Event>&& events) { gather(std::move(events)); });
  }

  Engine& engine() { return *engine_; }
  // The engine's thread passes it before each emission of events.
  Gate& events() { return events_; }
  std::shared_ptr<const grammar::CompiledGrammar> compile(std::string_view gbnf) {
    return compile(grammar::parse_gbnf(gbnf));
  }
  std::shared_ptr<const grammar::CompiledGrammar> compile(grammar::Grammar source) {
    return std::make_shared<const grammar::CompiledGrammar>(std::move(source), engine_->token_table());
  }

  RequestId submit(const std::function<void(Request&)>& change) {
    Request request;
    request.prompt_token_ids = {1, 2, 3};
    request.sampling.max_tokens = 50;
    change(request);
    return engine_->submit(std::move(request));
  }
  PickedAnswer wait(RequestId id, int choice = 0) {
    std::unique_lock lock(mutex_);
    EXPECT(
        arrived_.wait_for(lock, std::chrono::seconds(300), [&] { return answers_[{id, choice}].finish.has_value(); }));
    return answers_[{id, choice}];
  }
  // Waits until the request has `count` tokens.
  void wait_for_tokens(RequestId id, size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT(arrived_.wait_for(lock, std::chrono::seconds(300),
                             [&] { return answers_[{id, 0}].token_ids.size() >= count; }));
  }
  PickedAnswer run(const std::function<void(Request&)>& change) { return wait(submit(change)); }

 private:
  void gather(std::vector<Event>&& events) {
    events_.pass();
    const std::lock_guard lock(mutex_);
    for (Event& event : events) {
      PickedAnswer& answer = answers_[{event.request_id, event.choice_idx}];
      EXPECT(!answer.finish.has_value());
      answer.text += event.text_delta;
      answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
      if (!event.prompt_logprobs.empty()) answer.prompt_logprobs = std::move(event.prompt_logprobs);
      if (event.finish) answer.finish = std::move(event.finish);
    }
    arrived_.notify_all();
  }

  Gate events_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<RequestId, int>, PickedAnswer> answers_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace capstan::testing
