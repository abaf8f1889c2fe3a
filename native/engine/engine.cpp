#include "native/engine/engine.h"

#include <algorithm>
#include <cmath>

#include "native/base/check.h"
#include "native/base/random.h"

namespace capstan {
namespace {

// Below this, logits over temperature leave the range of floats; the draw is as good as greedy long before.
constexpr float kMinTemperature = 0.01f;
constexpr int kMaxChoices = 128;
constexpr const char* kDeadEnd = "grammar: no token that may be sampled goes on from here";
constexpr int kMaxLogprobs = 1 << 20;  // the vocabulary is the real bound

double us_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}
double ms_between(Clock::time_point begin, Clock::time_point end) {
  return us_between(begin, end) / 1000;
}

void require(bool is_met, const char* name, const std::string& expected, const std::string& got) {
  if (!is_met) throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": expected " + expected + ", got " + got);
}

void check_range(const char* name, float value, float low, float high, const std::string& expected) {
  require(std::isfinite(value) && value >= low && value <= high, name, expected, std::to_string(value));
}

void check_ids(const char* name, std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids)
    require(id >= 0 && id < vocab_size, name, "token ids from 0 to " + std::to_string(vocab_size - 1),
            std::to_string(id));
}

void check_sampling(const SamplingParams& sampling, int64_t vocab_size) {
  constexpr float kMax = 1e30f;
  check_range("temperature", sampling.temperature, 0, kMax, "a finite number, 0 or more");
  check_range("topP", sampling.top_p, 1e-30f, 1, "a number in (0, 1]");
  check_range("minP", sampling.min_p, 0, 1, "a number from 0 to 1");
  check_range("presencePenalty", sampling.presence_penalty, -kMax, kMax, "a finite number");
  check_range("frequencyPenalty", sampling.frequency_penalty, -kMax, kMax, "a finite number");
  check_range("repetitionPenalty", sampling.repetition_penalty, 1e-30f, kMax, "a number above 0");
  require(sampling.top_k >= 0, "topK", "0 (off) or more", std::to_string(sampling.top_k));
  require(sampling.max_tokens >= 0, "maxTokens", "0 or more", std::to_string(sampling.max_tokens));
  require(sampling.min_tokens >= 0, "minTokens", "0 or more", std::to_string(sampling.min_tokens));
  require(sampling.num_logprobs >= -1 && sampling.num_logprobs <= kMaxLogprobs, "logprobs", "-1 or more",
          std::to_string(sampling.num_logprobs));
  require(sampling.num_prompt_logprobs >= -1 && sampling.num_prompt_logprobs <= kMaxLogprobs, "promptLogprobs",
          "-1 or more", std::to_string(sampling.num_prompt_logprobs));
  check_ids("stopTokenIds", sampling.stop_token_ids, vocab_size);
  for (const std::string& stop : sampling.stop_strings)
    require(!stop.empty(), "stop", "strings of one character or more", "an empty one");
  for (const auto& [id, bias] : sampling.logit_bias) {
    check_ids("logitBias", {&id, 1}, vocab_size);
    check_range("logitBias", bias, -kMax, kMax, "finite numbers");
  }
  for (const std::vector<int32_t>& word : sampling.bad_words) {
    require(!word.empty(), "badWords", "sequences of one token or more", "an empty one");
    check_ids("badWords", word, vocab_size);
  }
  if (sampling.thinking) {
    require(sampling.thinking->budget >= 0, "thinkingBudget", "0 or more", std::to_string(sampling.thinking->budget));
    require(!sampling.thinking->close_ids.empty(), "thinkingBudget", "a closing marker of one token or more", "none");
    check_ids("thinkingBudget", sampling.thinking->open_ids, vocab_size);
    check_ids("thinkingBudget", sampling.thinking->close_ids, vocab_size);
  }
  if (sampling.allowed_token_ids) {
    require(!sampling.allowed_token_ids->empty(), "allowedTokenIds", "at least one id", "none");
    check_ids("allowedTokenIds", *sampling.allowed_token_ids, vocab_size);
  }
}

// One of the ids that alone may be drawn must be left without `banned`, which is ascending.
void check_some_left(const std::vector<int32_t>& allowed, const std::vector<int32_t>& banned,
                     const std::string& expected) {
  const bool is_left =
      std::ranges::any_of(allowed, [&](int32_t id) { return !std::ranges::binary_search(banned, id); });
  require(is_left, "allowedTokenIds", expected, "none");
}

std::vector<int32_t> sorted_distinct(std::vector<int32_t> ids) {
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void count_completion(Sequence& seq, int32_t token_id) {
  auto& counts = seq.completion_counts;
  const auto at = std::ranges::lower_bound(counts, token_id, {}, &std::pair<int32_t, int32_t>::first);
  if (at != counts.end() && at->first == token_id)
    ++at->second;
  else
    counts.insert(at, {token_id, 1});
}

TokenLogprobs to_logprobs(const SampleResult& result) {
  TokenLogprobs logprobs{result.token_id, result.logprob, result.rank, {}};
  logprobs.top.reserve(result.top.size());
  for (const TokenLogprob& top : result.top)
    logprobs.top.emplace_back(top.token_id, top.logprob);
  return logprobs;
}

}  // namespace

Engine::Engine(EngineOptions options, BlockManager blocks, std::unique_ptr<StepRunner> runner,
               std::shared_ptr<const Vocabulary> vocabulary, EventSink sink)
    : options_(std::move(options)),
      vocabulary_(std::move(vocabulary)),
      sink_(std::move(sink)),
      runner_(std::move(runner)),
      scheduler_(options_.limits, std::move(blocks)),
      mask_pool_([this] {
        const std::lock_guard lock(mutex_);
        has_new_masks_ = true;
        wake_.notify_one();
      }) {
  publish_stats(false);
  thread_ = std::thread([this] { main(); });
}

Engine::~Engine() {
  close();
}

// ---- callers' side ----

void Engine::check_request(const Request& request) const {
  const int max_model_len = options_.limits.max_model_len;
  const auto num_prompt = static_cast<int64_t>(request.prompt_token_ids.size());
  require(num_prompt > 0, "prompt", "at least one token", "none");
  require(request.num_choices >= 1 && request.num_choices <= kMaxChoices, "n", "1 to " + std::to_string(kMaxChoices),
          std::to_string(request.num_choices));
  check_ids("prompt", request.prompt_token_ids, options_.vocab_size);
  check_sampling(request.sampling, options_.vocab_size);
  if (request.grammar)
    require(request.grammar->tokens() != nullptr && request.grammar->tokens() == token_table_.load().get(), "grammar",
            "one that this engine compiled", "another");
  if (num_prompt + request.sampling.max_tokens > max_model_len)
    throw Error(ErrorCode::kContextLengthExceeded,
                "the context length is " + std::to_string(max_model_len) + " tokens; the prompt has " +
                    std::to_string(num_prompt) + " and maxTokens is " + std::to_string(request.sampling.max_tokens));
}

std::vector<std::unique_ptr<Sequence>> Engine::make_sequences(Request& request) const {
  SamplingParams& sampling = request.sampling;
  if (sampling.temperature > 0) sampling.temperature = std::max(sampling.temperature, kMinTemperature);
  std::vector<int32_t> ending_ids = sampling.stop_token_ids;
  if (!sampling.is_eos_ignored)
    ending_ids.insert(ending_ids.end(), options_.eos_token_ids.begin(), options_.eos_token_ids.end());
  const auto is_single = [](const std::vector<int32_t>& word) { return word.size() == 1; };
  std::vector<int32_t> bad_ids;
  for (const std::vector<int32_t>& word : sampling.bad_words)
    if (is_single(word)) bad_ids.push_back(word[0]);
  std::erase_if(sampling.bad_words, is_single);
  std::vector<int32_t> early_bad_ids = bad_ids;
  early_bad_ids.insert(early_bad_ids.end(), ending_ids.begin(), ending_ids.end());
  // EOS ends a grammar's text even where it is ignored otherwise.
  if (request.grammar)
    early_bad_ids.insert(early_bad_ids.end(), options_.eos_token_ids.begin(), options_.eos_token_ids.end());
  bad_ids = sorted_distinct(std::move(bad_ids));
  early_bad_ids = sorted_distinct(std::move(early_bad_ids));
  std::erase_if(early_bad_ids, [this](int32_t id) { return id < 0 || id >= options_.vocab_size; });
  const auto num_mask_words = static_cast<size_t>((options_.vocab_size + 31) / 32);
  // What is only scored draws nothing.
  if (sampling.max_tokens == 0) request.grammar = nullptr, sampling.thinking.reset();
  std::vector<uint32_t> allowed_mask;
  if (sampling.allowed_token_ids) {
    check_some_left(*sampling.allowed_token_ids, bad_ids, "an id that is no bad word");
    if (sampling.min_tokens > 0 && !request.grammar)
      check_some_left(*sampling.allowed_token_ids, early_bad_ids, "an id that may come before minTokens");
    allowed_mask.resize(num_mask_words);
    for (const int32_t id : *sampling.allowed_token_ids)
      allowed_mask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  }
  const uint64_t seed = sampling.seed ? *sampling.seed : draw_seed();
  const auto now = Clock::now();
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int choice = 0; choice < request.num_choices; ++choice) {
    auto seq = std::make_unique<Sequence>();
    seq->choice_idx = choice;
    seq->sampling = sampling;
    if (choice > 0) {
      seq->leader = sequences[0].get();
      seq->sampling.num_prompt_logprobs = -1;
    }
    seq->seed = seed;
    seq->cache_salt = request.cache_salt;
    seq->num_prompt_tokens = static_cast<int>(request.prompt_token_ids.size());
    seq->token_ids = request.prompt_token_ids;
    seq->allowed_mask = allowed_mask;
    seq->ending_ids = ending_ids;
    seq->bad_ids = bad_ids;
    seq->early_bad_ids = early_bad_ids;
    if (sampling.thinking) {
      seq->thinking.emplace(*sampling.thinking);
      seq->forced_mask.resize(num_mask_words);
    }
    if (request.grammar) {
      seq->grammar = std::make_shared<grammar::GrammarMatcher>(request.grammar);
      seq->grammar_mask.resize(num_mask_words);
    }
    seq->submit_time = now;
    if (sampling.repetition_penalty != 1.0f) seq->prompt_ids = sorted_distinct(request.prompt_token_ids);
    if (seq->sampling.num_prompt_logprobs >= 0) seq->prompt_logprobs.resize(request.prompt_token_ids.size());
    seq->text = TextOutput(sampling.stop_strings, sampling.includes_stop_in_output, request.strips_leading_space);
    sequences.push_back(std::move(seq));
  }
  return sequences;
}

RequestId Engine::submit(Request request) {
  check_request(request);
  // Copies of the prompt are made before the lock that the engine's thread needs.
  auto sequences = make_sequences(request);
  const std::lock_guard lock(mutex_);
  if (is_closing_) throw Error(ErrorCode::kEngineClosed, "the engine is closed");
  if (!stats_.failure.empty()) throw Error(failure_code_, "the engine has failed: " + stats_.failure);
  const int num_queued = stats_.num_waiting + static_cast<int>(inbox_.size());
  if (num_queued + request.num_choices > options_.max_queued_requests)
    throw Error(ErrorCode::kQueueFull, "the queue is full: " + std::to_string(num_queued) + " of at most " +
                                           std::to_string(options_.max_queued_requests) + " sequences wait");
  const RequestId request_id = next_request_id_++;
  for (auto& seq : sequences) {
    seq->request_id = request_id;
    stats_.queued_prompt_tokens += seq->num_prompt_tokens;
    inbox_.push_back(std::move(seq));
  }
  wake_.notify_one();
  return request_id;
}

std::shared_ptr<const grammar::TokenTable> Engine::token_table() {
  const std::lock_guard lock(token_table_mutex_);
  auto table = token_table_.load();
  if (!table) {
    table = std::make_shared<const grammar::TokenTable>(vocabulary_->bytes, vocabulary_->offsets,
                                                        vocabulary_->is_special, options_.eos_token_ids);
    token_table_.store(table);
  }
  return table;
}

void Engine::abort(RequestId request_id) {
  const std::lock_guard lock(mutex_);
  aborts_.push_back(request_id);
  wake_.notify_one();
}

void Engine::stop(RequestId request_id, int choice_idx) {
  const std::lock_guard lock(mutex_);
  stops_.push_back({request_id, choice_idx});
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.num_waiting += static_cast<int>(inbox_.size());
  if (is_busy_) stats.ms_since_last_step = ms_between(last_step_time_, Clock::now());
  return stats;
}

void Engine::close() {
  const std::lock_guard close_lock(close_mutex_);
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  mask_pool_.close();
}

// ---- the engine's thread ----

void Engine::main() {
  try {
    while (take_inbox())
      step();
    fail_all(ErrorCode::kEngineClosed, "the engine was closed");
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const ErrorCode code = known ? known->code() : ErrorCode::kInternal;
    {
      const std::lock_guard lock(mutex_);
      stats_.failure = error.what();
      failure_code_ = code;
    }
    totals_.failure = error.what();
    is_broken_ = true;
    fail_all(code, error.what());
  }
}

// Takes what callers left; waits while there is nothing to do. False when closing.
bool Engine::take_inbox() {
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<RequestId> aborts;
  std::vector<Stop> stops;
  {
    std::unique_lock lock(mutex_);
    const bool has_work = scheduler_.has_work() || !in_flight_.empty();
    if (!has_work) is_busy_ = false;
    const auto is_woken = [&] {
      return is_closing_ || has_new_masks_ || !inbox_.empty() || !aborts_.empty() || !stops_.empty();
    };
    if (has_work && is_stalled_ && is_some_mask_early())
      wake_.wait_for(lock, options_.mask_patience, is_woken);
    else if (!has_work || is_stalled_)
      wake_.wait(lock, is_woken);
    is_stalled_ = false;
    has_new_masks_ = false;
    if (is_closing_) return false;
    if (!is_busy_) last_step_time_ = Clock::now();
    is_busy_ = true;
    arrived.swap(inbox_);
    aborts.swap(aborts_);
    stops.swap(stops_);
    stats_.num_waiting += static_cast<int>(arrived.size());
  }
  std::vector<Sequence*> added;
  for (auto& seq : arrived) {
    scheduler_.add(*seq);
    added.push_back(open_[seq->request_id].emplace_back(std::move(seq)).get());
  }
  // Once all choices of a request are known: this may end one.
  for (Sequence* seq : added)
    prepare_next_token(*seq);
  for (const RequestId request_id : aborts)
    if (const auto found = open_.find(request_id); found != open_.end())
      for (const auto& seq : found->second)
        end(*seq, FinishReason::kAbort);
  for (const Stop& stop : stops)
    if (const auto found = open_.find(stop.request_id); found != open_.end())
      for (const auto& seq : found->second)
        if (seq->choice_idx == stop.choice_idx) end(*seq, FinishReason::kStop);
  take_masks();
  return true;
}

void Engine::step() {
  const auto begin = Clock::now();
  launch_steps();
  const auto launched = Clock::now();
  bool is_step = false;
  if (!in_flight_.empty()) {
    std::unique_ptr<Batch> batch = std::move(in_flight_.front());
    in_flight_.pop_front();
    runner_->collect(*batch);
    const auto collected = Clock::now();
    settle(*batch);
    totals_.last_step = {batch->num_tokens, static_cast<int>(batch->sequences.size()), us_between(begin, launched),
                         us_between(launched, collected), us_between(collected, Clock::now())};
    retire_finished(batch->step);
    spare_batches_.push_back(std::move(batch));
    is_step = true;
  } else {
    retire_finished(num_steps_);
  }
  publish_stats(is_step);
  emit();
}

void Engine::launch_steps() {
  while (static_cast<int>(in_flight_.size()) < runner_->depth()) {
    if (spare_batches_.empty()) spare_batches_.push_back(std::make_unique<Batch>());
    Batch& batch = *spare_batches_.back();
    if (!scheduler_.plan(batch)) {
      is_stalled_ = in_flight_.empty() && !waiting_for_mask_.empty();
      return;
    }
    build_model_inputs(batch, scheduler_.blocks().block_size());
    build_sample_rows(batch);
    batch.step = ++num_steps_;
    in_flight_.push_back(std::move(spare_batches_.back()));
    spare_batches_.pop_back();
    runner_->launch(batch);
    scheduler_.launched(batch);
  }
}

void Engine::settle(Batch& batch) {
  for (const ScheduledSequence& scheduled : batch.sequences)
    settle_sequence(batch, scheduled);
}

void Engine::settle_sequence(const Batch& batch, const ScheduledSequence& scheduled) {
  Sequence& seq = *scheduled.seq;
  // Late results of a sequence that has ended or been preempted since.
  if (seq.status != SequenceStatus::kRunning || seq.epoch != scheduled.epoch) return;
  for (int i = 0; i < scheduled.num_sample_rows; ++i) {
    if (!batch.results[static_cast<size_t>(scheduled.first_sample_row + i)].has_numeric_error) continue;
    end(seq, FinishReason::kError, [](Finish& finish) {
      finish.error_code = ErrorCode::kNumeric;
      finish.error_message = "the model's logits hold NaN or infinity, or no token may be drawn";
    });
    return;
  }
  if (!seq.prompt_logprobs.empty()) accept_prompt_logprobs(batch, scheduled);
  if (scheduled.samples)
    accept_token(seq, batch.results[static_cast<size_t>(scheduled.first_sample_row + scheduled.num_sample_rows - 1)]);
}

void Engine::accept_prompt_logprobs(const Batch& batch, const ScheduledSequence& scheduled) {
  Sequence& seq = *scheduled.seq;
  const int num_prompt_rows = scheduled.num_sample_rows - (scheduled.samples ? 1 : 0);
  for (int i = 0; i < num_prompt_rows; ++i)
    seq.prompt_logprobs[static_cast<size_t>(scheduled.first_position + i + 1)] =
        to_logprobs(batch.results[static_cast<size_t>(scheduled.first_sample_row + i)]);
  if (scheduled.samples) event_of(seq).prompt_logprobs = std::exchange(seq.prompt_logprobs, {});
}

void Engine::accept_token(Sequence& seq, const SampleResult& result) {
  if (seq.num_completion_tokens() == 0) seq.first_token_time = Clock::now();
  if (seq.sampling.max_tokens == 0) return end(seq, FinishReason::kLength);
  const int32_t token_id = result.token_id;
  if (!accept_in_grammar(seq, token_id)) return;
  scheduler_.append(seq, token_id);
  if (seq.has_penalties()) count_completion(seq, token_id);
  Event& event = event_of(seq);
  event.token_ids.push_back(token_id);
  if (seq.sampling.num_logprobs >= 0) event.logprobs.push_back(to_logprobs(result));

  const bool is_ending = std::ranges::find(seq.ending_ids, token_id) != seq.ending_ids.end() ||
                         (seq.grammar && seq.grammar->is_terminated());
  const bool is_hidden =
      (is_ending && !seq.sampling.includes_stop_in_output) ||
      (seq.sampling.skips_special_tokens && vocabulary_->is_special[static_cast<size_t>(token_id)] == 1);
  const bool may_stop = !is_ending && seq.num_completion_tokens() > seq.sampling.min_tokens;
  const int stop_idx = is_hidden ? -1 : seq.text.add(vocabulary_->bytes_of(token_id), may_stop);
  if (is_ending) {
    const auto& stop_ids = seq.sampling.stop_token_ids;
    const bool is_asked_for = std::ranges::find(stop_ids, token_id) != stop_ids.end();
    end(seq, FinishReason::kStop, [&](Finish& finish) { finish.stop_token_id = is_asked_for ? token_id : -1; });
  } else if (stop_idx >= 0) {
    end(seq, FinishReason::kStop,
        [&](Finish& finish) { finish.stop_string = seq.sampling.stop_strings[static_cast<size_t>(stop_idx)]; });
  } else if (seq.grammar && seq.grammar->is_complete()) {
    end(seq, FinishReason::kStop);
  } else if (seq.num_completion_tokens() >= seq.sampling.max_tokens) {
    end(seq, FinishReason::kLength);
  } else {
    event.text_delta += seq.text.take();
    if (seq.thinking) seq.thinking->take(token_id);
    prepare_next_token(seq);
  }
}

// What may come next, for a sequence that a grammar or a budget of thoughts holds.
void Engine::prepare_next_token(Sequence& seq) {
  if (force_token(seq) || !seq.grammar) return;
  if (seq.grammar->try_fill_mask(seq.grammar_mask)) return finish_mask(seq);
  seq.mask_job = mask_pool_.start(seq.grammar, seq.grammar_mask.size());
  seq.mask_job_start = Clock::now();
  seq.is_mask_late = false;
  waiting_for_mask_.push_back(&seq);
}

bool Engine::force_token(Sequence& seq) {
  if (seq.forced_id >= 0) seq.forced_mask[static_cast<size_t>(seq.forced_id) / 32] = 0;
  seq.forced_id = -1;
  const auto forced = seq.thinking ? seq.thinking->forced() : std::nullopt;
  if (!forced || (seq.grammar && !seq.grammar->may_accept(*forced))) return false;
  seq.forced_id = *forced;
  seq.forced_mask[static_cast<size_t>(*forced) / 32] = 1u << (*forced % 32);
  return true;
}

bool Engine::is_some_mask_early() const {
  return std::ranges::any_of(waiting_for_mask_, [](const Sequence* seq) { return !seq->is_mask_late; });
}

void Engine::take_masks() {
  const auto now = Clock::now();
  for (size_t i = 0; i < waiting_for_mask_.size();) {
    Sequence& seq = *waiting_for_mask_[i];
    if (!seq.mask_job->is_done.load()) {
      seq.is_mask_late = now - seq.mask_job_start >= options_.mask_patience;
      ++i;
      continue;
    }
    const auto job = std::exchange(seq.mask_job, nullptr);
    waiting_for_mask_.erase(waiting_for_mask_.begin() + static_cast<ptrdiff_t>(i));
    if (job->error) {
      end(seq, FinishReason::kError,
          [&](Finish& finish) { finish.error_message = "the mask of a grammar could not be made"; });
      continue;
    }
    seq.grammar_mask.swap(job->mask);
    finish_mask(seq);
  }
}

// The mask says what the grammar takes; the request's own wishes come on top. A dead end is the sequence's error, not
// the engine's.
void Engine::finish_mask(Sequence& seq) {
  auto& mask = seq.grammar_mask;
  for (size_t i = 0; i < seq.allowed_mask.size(); ++i)
    mask[i] &= seq.allowed_mask[i];
  const auto is_left_without = [&](std::span<const int32_t> banned) {
    auto next = banned.begin();
    for (size_t i = 0; i < mask.size(); ++i) {
      uint32_t rest = mask[i];
      for (; next != banned.end() && static_cast<size_t>(*next) / 32 == i; ++next)
        rest &= ~(1u << (*next % 32));
      if (rest != 0) return false;
    }
    return true;
  };
  seq.is_min_waived = seq.num_completion_tokens() < seq.sampling.min_tokens && is_left_without(seq.early_bad_ids);
  if (!is_left_without(banned_ids(seq))) return;
  end(seq, FinishReason::kError, [](Finish& finish) {
    finish.error_code = ErrorCode::kInvalidArgument;
    finish.error_message = kDeadEnd;
  });
}

// Moves the grammar on. A token that it does not take can only come of a runner that leaves the mask unheeded.
bool Engine::accept_in_grammar(Sequence& seq, int32_t token_id) {
  if (!seq.grammar || seq.grammar->accept(token_id)) return true;
  end(seq, FinishReason::kError, [](Finish& finish) {
    finish.error_code = ErrorCode::kInvalidArgument;
    finish.error_message = kDeadEnd;
  });
  return false;
}

// Every sequence ends here, once.
void Engine::end(Sequence& seq, FinishReason reason, const std::function<void(Finish&)>& detail) {
  if (seq.status == SequenceStatus::kFinished) return;
  const auto now = Clock::now();
  Event& event = event_of(seq);
  seq.text.finish();
  event.text_delta += seq.text.take();
  Finish finish;
  finish.reason = reason;
  finish.num_prompt_tokens = seq.num_prompt_tokens;
  finish.num_completion_tokens = seq.num_completion_tokens();
  finish.num_cached_tokens = seq.num_cached_tokens;
  finish.num_preemptions = seq.num_preemptions;
  const bool has_token = seq.first_token_time != Clock::time_point{};
  finish.queue_ms = ms_between(seq.submit_time, seq.is_admitted_once ? seq.first_schedule_time : now);
  if (seq.is_admitted_once)
    finish.prefill_ms = ms_between(seq.first_schedule_time, has_token ? seq.first_token_time : now);
  if (has_token) finish.decode_ms = ms_between(seq.first_token_time, now);
  if (detail) detail(finish);
  if (seq.mask_job) {
    // The job has the matcher to itself and lets go of it when it likes.
    seq.mask_job->stop.request_stop();
    seq.mask_job = nullptr;
    std::erase(waiting_for_mask_, &seq);
  }
  const bool is_poisoned = reason == FinishReason::kError && finish.error_code == ErrorCode::kNumeric;
  event.finish = std::move(finish);

  ++totals_.num_finished[static_cast<size_t>(reason)];
  if (seq.choice_idx == 0) {
    totals_.prompt_tokens += seq.num_prompt_tokens;
    totals_.cached_tokens += seq.num_cached_tokens;
  }
  totals_.completion_tokens += seq.num_completion_tokens();
  if (is_broken_)
    seq.status = SequenceStatus::kFinished;
  else
    scheduler_.finish(seq, is_poisoned);
  for (const auto& other : open_[seq.request_id])
    if (other->leader == &seq) other->leader = nullptr;
  finished_.push_back(&seq);
}

void Engine::fail_all(ErrorCode code, const std::string& message) {
  std::vector<std::unique_ptr<Sequence>> unseen;
  {
    const std::lock_guard lock(mutex_);
    unseen.swap(inbox_);
  }
  for (auto& seq : unseen) {
    if (!is_broken_) scheduler_.add(*seq);
    open_[seq->request_id].push_back(std::move(seq));
  }
  for (const auto& [request_id, sequences] : open_)
    for (const auto& seq : sequences)
      end(*seq, FinishReason::kError, [&](Finish& finish) {
        finish.error_code = code;
        finish.error_message = message;
      });
  in_flight_.clear();
  retire_finished(num_steps_);
  publish_stats(false);
  emit();
}

// Moves ended sequences out of the open ones; lets go of those that no step in flight refers to any more.
void Engine::retire_finished(uint64_t collected_step) {
  for (Sequence* ended : finished_) {
    const auto found = open_.find(ended->request_id);
    auto& sequences = found->second;
    const auto at = std::ranges::find(sequences, ended, &std::unique_ptr<Sequence>::get);
    retired_.push_back({std::move(*at), num_steps_});
    sequences.erase(at);
    if (sequences.empty()) open_.erase(found);
  }
  finished_.clear();
  std::erase_if(retired_, [&](const Retired& retired) { return retired.step <= collected_step; });
  if (!is_broken_ && !scheduler_.has_work())
    CAPSTAN_CHECK(scheduler_.blocks().num_available() == scheduler_.blocks().num_blocks());
}

Event& Engine::event_of(Sequence& seq) {
  if (seq.event_round != event_round_) {
    seq.event_round = event_round_;
    seq.event_idx = events_.size();
    events_.emplace_back();
    events_.back().request_id = seq.request_id;
    events_.back().choice_idx = seq.choice_idx;
  }
  return events_[seq.event_idx];
}

void Engine::emit() {
  if (events_.empty()) return;
  ++event_round_;
  sink_(std::move(events_));
  events_.clear();
}

void Engine::publish_stats(bool is_step) {
  const BlockManager& blocks = scheduler_.blocks();
  totals_.num_waiting = scheduler_.num_waiting();
  totals_.num_running = scheduler_.num_running();
  totals_.num_blocks = blocks.num_blocks();
  totals_.num_free_blocks = blocks.num_free();
  totals_.num_cached_blocks = blocks.num_cached();
  totals_.num_evictions = blocks.num_evictions();
  totals_.num_preemptions = scheduler_.num_preemptions();
  totals_.queued_prompt_tokens = scheduler_.num_waiting_prompt_tokens();
  const std::lock_guard lock(mutex_);
  if (is_step) {
    ++totals_.num_steps;
    last_step_time_ = Clock::now();
  }
  stats_ = totals_;
  for (const auto& seq : inbox_)
    stats_.queued_prompt_tokens += seq->num_prompt_tokens;
}

}  // namespace capstan
