#pragma once
// The engine: one thread that plans, runs and settles steps. Callers on any thread submit and abort; events go out once
// per step.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "native/engine/output.h"
#include "native/engine/request.h"
#include "native/engine/scheduler.h"
#include "native/engine/step_runner.h"

namespace capstan {

struct EngineOptions {
  SchedulerLimits limits;
  int max_queued_requests = 1024;  // submitted and not yet scheduled, in sequences
  std::chrono::milliseconds mask_patience{
      100};  // how long a sequence keeps slot and blocks from others while its grammar mask is made
  std::vector<int32_t> eos_token_ids;
  int64_t vocab_size = 0;  // ids in a prompt are below this
};

struct StepStats {
  int num_tokens = 0, num_seqs = 0;
  double schedule_us = 0, forward_us = 0, settle_us = 0;
};

struct EngineStats {
  int num_waiting = 0, num_running = 0;
  int64_t queued_prompt_tokens = 0;
  int num_blocks = 0, num_free_blocks = 0, num_cached_blocks = 0;
  int64_t num_evictions = 0, num_preemptions = 0, num_steps = 0;
  double ms_since_last_step = 0;  // 0 when idle
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t num_finished[4] = {};  // by FinishReason
  StepStats last_step;
  std::string failure;  // empty, or why the engine no longer answers
};

// Gets all events of a step, on the engine's thread. Must not throw.
using EventSink = std::function<void(std::vector<Event>&& events)>;

class Engine {
 public:
  Engine(EngineOptions options, BlockManager blocks, std::unique_ptr<StepRunner> runner,
         std::shared_ptr<const Vocabulary> vocabulary, EventSink sink);
  ~Engine();

  // Throws kInvalidArgument, kContextLengthExceeded, kQueueFull, kEngineClosed, or the failure's code.
  RequestId submit(Request request);
  void abort(RequestId request_id);
  // Ends one choice with kStop; unknown or finished ones are ignored.
  void stop(RequestId request_id, int choice_idx);
  // The vocabulary as grammars use it; made on first use, which takes about half a second for a large one. From any
  // thread.
  std::shared_ptr<const grammar::TokenTable> token_table();
  EngineStats stats() const;
  // Ends open requests with kEngineClosed and joins the thread. Idempotent; not from the sink.
  void close();

 private:
  // A sequence that has ended is kept until no step in flight refers to it.
  struct Retired {
    std::unique_ptr<Sequence> seq;
    uint64_t step;
  };

  void check_request(const Request& request) const;
  std::vector<std::unique_ptr<Sequence>> make_sequences(Request& request) const;
  void main();
  bool take_inbox();
  void step();
  void launch_steps();
  void settle(Batch& batch);
  void settle_sequence(const Batch& batch, const ScheduledSequence& scheduled);
  void accept_prompt_logprobs(const Batch& batch, const ScheduledSequence& scheduled);
  void accept_token(Sequence& seq, const SampleResult& result);
  bool accept_in_grammar(Sequence& seq, int32_t token_id);
  void prepare_next_token(Sequence& seq);
  bool force_token(Sequence& seq);
  void take_masks();
  bool is_some_mask_early() const;
  void finish_mask(Sequence& seq);
  void end(Sequence& seq, FinishReason reason, const std::function<void(Finish&)>& detail = nullptr);
  void fail_all(ErrorCode code, const std::string& message);
  void retire_finished(uint64_t collected_step);
  void publish_stats(bool is_step);
  Event& event_of(Sequence& seq);
  void emit();

  const EngineOptions options_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const EventSink sink_;
  const std::unique_ptr<StepRunner> runner_;
  std::mutex token_table_mutex_;  // held while it is made
  std::atomic<std::shared_ptr<const grammar::TokenTable>> token_table_;

  // ---- shared with callers, under mutex_ ----
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<RequestId> aborts_;
  struct Stop {
    RequestId request_id;
    int choice_idx;
  };
  std::vector<Stop> stops_;
  bool has_new_masks_ = false;
  bool is_closing_ = false;
  RequestId next_request_id_ = 1;
  EngineStats stats_;
  ErrorCode failure_code_ = ErrorCode::kInternal;
  Clock::time_point last_step_time_;
  bool is_busy_ = false;

  // ---- the engine thread's own ----
  EngineStats totals_;  // what stats_ becomes after the step
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::vector<std::unique_ptr<Sequence>>> open_;
  std::vector<Retired> retired_;
  std::vector<std::unique_ptr<Batch>> spare_batches_;
  std::deque<std::unique_ptr<Batch>> in_flight_;
  uint64_t num_steps_ = 0;
  bool is_broken_ = false;           // an error ended the loop: the scheduler's state is not to be relied on
  std::vector<Event> events_;        // gathered since the last emission
  uint64_t event_round_ = 1;         // grows with each emission
  std::vector<Sequence*> finished_;  // in the step being settled
  std::vector<Sequence*> waiting_for_mask_;
  bool is_stalled_ = false;  // nothing can run before a mask is made or a caller does something

  std::mutex close_mutex_;
  MaskPool mask_pool_;  // its threads use what is shared with callers
  std::thread thread_;
};

}  // namespace capstan
