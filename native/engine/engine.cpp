#include "native/engine/engine.h"

#include <algorithm>
#include <tuple>

#include "native/base/check.h"
#include "native/base/thread.h"
#include "native/engine/make_sequences.h"
#include "native/engine/request_checks.h"

namespace capstan {
namespace {

// How long an engine that closes writes blocks to the disk.
constexpr auto kWritePatience = std::chrono::seconds(2);

}  // namespace

Engine::Engine(EngineOptions options, BlockManager blocks, std::unique_ptr<StepRunner> runner,
               std::shared_ptr<const Vocabulary> vocabulary, EventSink sink)
    : options_(std::move(options)),
      vocabulary_(std::move(vocabulary)),
      sink_(std::move(sink)),
      runner_(std::move(runner)),
      scheduler_(options_.limits, std::move(blocks)),
      mask_gate_(
          {.patience = options_.mask_patience,
           .work_per_step = options_.grammar_work_per_step,
           .on_start = options_.on_mask_start,
           .on_ready = [this] { report_new_mask(); },
           .fail = [this](Sequence& seq, ErrorCode code, const std::string& message) { fail(seq, code, message); },
           .end = [this](Sequence& seq, FinishReason reason) { end(seq, reason); },
           .profile = options_.profile.get()}),
      drafter_(make_drafter()) {
  // A step adds to the sums of the step before it, and reads them when it is launched.
  CAPSTAN_CHECK(options_.pooled.pooling == Pooling::kNone || runner_->depth() == 1);
  totals_.num_accepted_tokens.resize(static_cast<size_t>(options_.limits.speculation.num_tokens));
  open_disk_cache();
  publish_stats(false);
  thread_ = start_thread([this] { main(); });
}

Engine::~Engine() {
  close();
}

// A disk that is full or broken does not keep a model from serving.
void Engine::open_disk_cache() {
  std::string problem = options_.disk_problem;
  if (options_.disk_cache) {
    CAPSTAN_CHECK(runner_->depth() == 1);
    DiskCacheOptions disk = *options_.disk_cache;
    disk.store.on_news = [this] { report_disk_news(); };
    try {
      disk_cache_ = std::make_unique<DiskCache>(std::move(disk), scheduler_, options_.limits.max_num_seqs);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) throw;
      problem = error.what();
    }
  }
  if (problem.empty()) return;
  totals_.disk_cache.emplace().store.problem = problem + "; it is only in memory until the model is loaded again";
}

// ---- called from any thread ----

RequestId Engine::submit(Request request) {
  Arrival arrival = prepare(std::move(request));
  const std::lock_guard lock(mutex_);
  const RequestId request_id = enqueue(std::move(arrival));
  wake_.notify_one();
  return request_id;
}

std::vector<std::variant<RequestId, std::exception_ptr>> Engine::submit_all(std::vector<Request> requests) {
  std::vector<std::variant<RequestId, std::exception_ptr>> results(requests.size());
  std::vector<Arrival> arrivals(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    try {
      arrivals[i] = prepare(std::move(requests[i]));
    } catch (...) {
      results[i] = std::current_exception();
    }
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < arrivals.size(); ++i) {
    if (arrivals[i].sequences.empty()) continue;
    try {
      results[i] = enqueue(std::move(arrivals[i]));
    } catch (...) {
      results[i] = std::current_exception();
    }
  }
  wake_.notify_one();
  return results;
}

// Prompts are copied here, without the lock, which the engine's thread needs.
Engine::Arrival Engine::prepare(Request request) {
  const PooledModel& pooled = options_.pooled;
  check_request(request, {options_.limits.max_model_len, options_.vocab_size, built_token_table_.load(),
                          pooled.pooling != Pooling::kNone, pooled.num_token_types});
  const uint64_t adapter_id = request.adapter_id;
  auto sequences = make_sequences(std::move(request), options_.eos_token_ids, options_.vocab_size);
  if (drafter_)
    for (const auto& seq : sequences)
      drafter_->begin(*seq);
  if (pooled.pooling != Pooling::kNone) {
    for (const auto& seq : sequences) {
      seq->needs_all_rows = pooled.pooling != Pooling::kLast;
      seq->pooled_sum.resize(static_cast<size_t>(pooled.hidden_size));
      seq->pooled.resize(static_cast<size_t>(pooled.result_size));
    }
  }
  return {std::move(sequences), adapter_id};
}

// NOTE: the caller holds mutex_.
RequestId Engine::enqueue(Arrival arrival) {
  auto& [sequences, adapter_id] = arrival;
  if (is_closing_) throw Error(ErrorCode::kEngineClosed, "the engine is closed");
  if (!stats_.failure.empty()) throw Error(failure_code_, "the engine has failed: " + stats_.failure);
  // Sequences that the next steps can start do not count as waiting. Background ones give way, so they do not count
  // against urgent requests.
  const bool is_background = sequences[0]->is_background();
  const int num_choices = static_cast<int>(sequences.size());
  const int num_open = stats_.num_running + stats_.num_waiting + static_cast<int>(inbox_.size()) -
                       (is_background ? 0 : stats_.num_background);
  const int num_queued = std::max(0, num_open - options_.limits.max_num_seqs);
  if (num_open + num_choices > options_.limits.max_num_seqs + options_.max_queued_requests)
    throw Error(ErrorCode::kQueueFull, "the queue is full: " + std::to_string(num_queued) + " of at most " +
                                           std::to_string(options_.max_queued_requests) + " sequences are waiting");
  const std::shared_ptr<const Adapter> adapter = find_adapter(adapter_id);
  const RequestId request_id = next_request_id_++;
  for (auto& seq : sequences) {
    seq->adapter = adapter;
    if (adapter)
      seq->adapter_key = adapter->content_key == AdapterKey{} ? AdapterKey{adapter_id, 0} : adapter->content_key;
    seq->request_id = request_id;
    stats_.queued_prompt_tokens += seq->num_prompt_tokens;
    if (is_background) {
      ++stats_.num_background;
      stats_.queued_background_tokens += seq->num_prompt_tokens;
    }
    inbox_.push_back(std::move(seq));
  }
  return request_id;
}

// NOTE: the caller holds mutex_.
std::shared_ptr<const Adapter> Engine::find_adapter(uint64_t adapter_id) const {
  if (adapter_id == 0) return nullptr;
  const auto found = adapters_.find(adapter_id);
  if (found == adapters_.end())
    throw Error(ErrorCode::kInvalidArgument, "adapter: expected a loaded adapter, got one that is not loaded");
  return found->second;
}

uint64_t Engine::load_adapter(const AdapterSource& source) {
  static std::atomic<uint64_t> last_id{0};
  // The loader compares with the available memory, so it must see what the earlier adapters have taken.
  const std::lock_guard loading(adapter_mutex_);
  {
    const std::lock_guard lock(mutex_);
    const int num_adapters = static_cast<int>(adapters_.size());
    if (num_adapters >= options_.max_adapters)
      throw Error(ErrorCode::kInvalidArgument, "maxLoras: expected at most " + std::to_string(options_.max_adapters) +
                                                   " loaded adapters, got " + std::to_string(num_adapters + 1) +
                                                   ": unload one, or raise the limit");
  }
  std::shared_ptr<const Adapter> adapter = options_.load_adapter(source);
  const uint64_t adapter_id = ++last_id;
  const std::lock_guard lock(mutex_);
  adapters_.emplace(adapter_id, std::move(adapter));
  return adapter_id;
}

void Engine::unload_adapter(uint64_t adapter_id) {
  std::shared_ptr<const Adapter> adapter;  // freed after the lock
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(adapter_id);
  if (found == adapters_.end()) return;
  adapter = std::move(found->second);
  adapters_.erase(found);
}

std::shared_ptr<const grammar::TokenTable> Engine::token_table() {
  const std::lock_guard lock(token_table_mutex_);
  if (!token_table_) {
    token_table_ =
        std::make_shared<const grammar::TokenTable>(vocabulary_->bytes, vocabulary_->offsets, vocabulary_->is_special,
                                                    options_.eos_token_ids, options_.grammar_cache_bytes);
    built_token_table_.store(token_table_.get());
  }
  return token_table_;
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

void Engine::close() {
  const std::lock_guard close_lock(close_mutex_);
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  mask_gate_.close();
  if (!disk_cache_) return;
  // Its threads need the lock to end.
  std::unique_ptr<DiskCache> disk_cache;
  const std::lock_guard lock(mutex_);
  stats_.disk_cache = disk_cache_->stats();
  disk_cache.swap(disk_cache_);
}

void Engine::report_new_mask() {
  const std::lock_guard lock(mutex_);
  has_new_masks_ = true;
  wake_.notify_one();
}

void Engine::report_disk_news() {
  const std::lock_guard lock(mutex_);
  has_disk_news_ = true;
  wake_.notify_one();
}

// ---- called on the engine's thread ----

void Engine::main() {
  try {
    if (options_.profile) options_.profile->begin();
    while (take_inbox())
      step();
    fail_all(ErrorCode::kEngineClosed, "the engine was closed");
    if (disk_cache_) write_offered_blocks();
  } catch (...) {
    break_down(std::current_exception());
  }
}

// Writes what is left to the disk before the engine closes, for at most kWritePatience.
void Engine::write_offered_blocks() {
  const auto end = Clock::now() + kWritePatience;
  for (disk_cache_->end_step(); disk_cache_->has_offered() && Clock::now() < end; disk_cache_->end_step()) {
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, end, [&] { return has_disk_news_; });
    has_disk_news_ = false;
  }
}

// Ends the open requests with the error. Each part works without the ones before it, because an error of the error
// handling must neither keep requests open nor end the process.
void Engine::break_down(const std::exception_ptr& error) noexcept {
  is_broken_ = true;
  ErrorCode code = ErrorCode::kInternal;
  std::string message = "unknown error";  // needs no memory
  {
    const std::lock_guard lock(mutex_);
    stats_.failure = totals_.failure = "unknown error";
  }
  try {
    runner_->abandon();
  } catch (...) {
  }
  try {
    std::tie(code, message) = describe(error);
    const std::lock_guard lock(mutex_);
    failure_code_ = code;
    stats_.failure = totals_.failure = message;
  } catch (...) {
  }
  try {
    fail_all(code, message);
  } catch (...) {
  }
}

// Waits for work and takes over what callers have submitted, aborted and stopped. Returns false on shutdown.
bool Engine::take_inbox() {
  const PartScope part(options_.profile.get(), StepPart::kRequests);
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<RequestId> aborts;
  std::vector<Stop> stops;
  {
    std::unique_lock lock(mutex_);
    const bool has_work = scheduler_.has_work() || !in_flight_.empty();
    if (!has_work) is_busy_ = false;
    const auto is_woken = [&] {
      return is_closing_ || has_new_masks_ || has_disk_news_ || !inbox_.empty() || !aborts_.empty() || !stops_.empty();
    };
    if (!has_work || is_stalled_) {
      const PartScope idle(options_.profile.get(), StepPart::kIdle);
      auto end = Clock::time_point::max();
      if (has_work && disk_cache_) end = disk_cache_->next_step_time();
      if (has_work && mask_gate_.has_waiting_in_time()) end = std::min(end, Clock::now() + mask_gate_.patience());
      if (end == Clock::time_point::max())
        wake_.wait(lock, is_woken);
      else
        wake_.wait_until(lock, end, is_woken);
    }
    is_stalled_ = false;
    has_new_masks_ = has_disk_news_ = false;
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
    if (disk_cache_) disk_cache_->add(*seq);
    added.push_back(open_[seq->request_id].emplace_back(std::move(seq)).get());
  }
  mask_gate_.begin_step();
  // Only after all choices of a request are registered, because this may end one of them.
  for (Sequence* seq : added)
    mask_gate_.prepare_next_token(*seq);
  for (const RequestId request_id : aborts)
    if (const auto found = open_.find(request_id); found != open_.end())
      for (const auto& seq : found->second)
        end(*seq, FinishReason::kAbort);
  for (const Stop& stop : stops)
    if (const auto found = open_.find(stop.request_id); found != open_.end())
      for (const auto& seq : found->second)
        if (seq->choice_idx == stop.choice_idx) end(*seq, FinishReason::kStop);
  mask_gate_.take_ready_masks();
  return true;
}

void Engine::step() {
  const auto begin = Clock::now();
  if (disk_cache_) disk_cache_->begin_step();
  launch_steps();
  const auto launched = Clock::now();
  bool is_step = false;
  if (!in_flight_.empty()) {
    std::unique_ptr<Batch> batch = std::move(in_flight_.front());
    in_flight_.pop_front();
    {
      const PartScope part(options_.profile.get(), StepPart::kModel);
      runner_->collect(*batch);
    }
    const auto collected = Clock::now();
    const PartScope part(options_.profile.get(), StepPart::kText);
    scheduler_.measured(batch->plan, ms_between(std::max(batch->launch_time, last_collect_time_), collected));
    last_collect_time_ = collected;
    settle(*batch);
    if (drafter_) drafter_->settled(*batch);
    count_step(*batch, begin, launched, collected);
    retire_finished(batch->step);
    spare_batches_.push_back(std::move(batch));
    is_step = true;
  } else {
    retire_finished(num_steps_);
  }
  if (options_.checks_integrity) scheduler_.check_integrity();
  publish_stats(is_step);
  emit();
  if (disk_cache_) disk_cache_->end_step();
}

void Engine::launch_steps() {
  StepProfile* const profile = options_.profile.get();
  const PartScope part(profile, StepPart::kSchedule);
  while (static_cast<int>(in_flight_.size()) < runner_->depth()) {
    if (spare_batches_.empty()) spare_batches_.push_back(std::make_unique<Batch>());
    Batch& batch = *spare_batches_.back();
    if (!scheduler_.plan_step(batch.plan)) {
      is_stalled_ = in_flight_.empty() && (mask_gate_.has_waiting() || (disk_cache_ && disk_cache_->has_waiting()));
      return;
    }
    if (drafter_) speculate(batch.plan);
    const PartScope inputs(profile, StepPart::kInputs);
    const BlockManager& blocks = scheduler_.blocks();
    build_model_inputs(batch, blocks.block_size(), {0, blocks.num_groups() - options_.draft_model.num_kv_groups},
                       blocks.states().has_slots());
    if (options_.pooled.num_token_types > 0) build_token_types(batch);
    if (options_.pooled.pooling != Pooling::kNone) build_pool_rows(batch, options_.pooled.pooling);
    build_sample_rows(batch);
    batch.step = ++num_steps_;
    batch.launch_time = Clock::now();
    if (drafter_) {
      const PartScope drafts(profile, StepPart::kDrafts);
      drafter_->follow(batch);
    }
    in_flight_.push_back(std::move(spare_batches_.back()));
    spare_batches_.pop_back();
    {
      const PartScope model(profile, StepPart::kModel);
      runner_->launch(batch);
    }
    scheduler_.launched(batch.plan);
  }
}

void Engine::fail_all(ErrorCode code, const std::string& message) {
  std::vector<std::unique_ptr<Sequence>> not_started;
  {
    const std::lock_guard lock(mutex_);
    not_started.swap(inbox_);
  }
  for (auto& seq : not_started) {
    if (!is_broken_) scheduler_.add(*seq);
    open_[seq->request_id].push_back(std::move(seq));
  }
  for (const auto& [request_id, sequences] : open_)
    for (const auto& seq : sequences)
      fail(*seq, code, message);
  in_flight_.clear();
  retire_finished(num_steps_);
  publish_stats(false);
  emit();
}

// Retires the sequences that have just ended, and deletes retired ones that no step in flight refers to.
void Engine::retire_finished(uint64_t collected_step) {
  retired_.reserve(retired_.size() + finished_.size());  // the loop must not throw halfway
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
  if (!is_broken_ && !scheduler_.has_work()) CAPSTAN_CHECK(scheduler_.blocks().is_idle());
}

void Engine::emit() {
  if (events_.empty()) return;
  const PartScope part(options_.profile.get(), StepPart::kEvents);
  ++event_round_;
  sink_(std::move(events_));
  events_.clear();
}

}  // namespace capstan
