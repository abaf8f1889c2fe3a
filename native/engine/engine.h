#pragma once
// The engine: one thread that schedules, runs and settles steps. Callers on any thread submit and abort requests.
// All events of a step leave in one call.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "native/base/step_profile.h"
#include "native/engine/adapter_loader.h"
#include "native/engine/batch.h"
#include "native/engine/disk_cache.h"
#include "native/engine/mask_gate.h"
#include "native/engine/model_drafter.h"
#include "native/engine/output.h"
#include "native/engine/request.h"
#include "native/engine/scheduler.h"
#include "native/engine/step_runner.h"

namespace capstan {

namespace grammar {
class TokenTable;
}

struct EngineOptions {
  SchedulerLimits limits;
  int max_queued_requests = 1024;  // sequences beyond max_num_seqs that may wait
  // How long a sequence that waits for its grammar mask keeps its slot and blocks while others need them.
  std::chrono::milliseconds mask_patience{100};
  // Work of grammars on the engine's thread per step, in visited configurations: about 5 ms.
  size_t grammar_work_per_step = 100'000;
  size_t grammar_cache_bytes = size_t{64} << 20;  // of compiled grammars and their masks
  // Called on a mask thread before it computes a mask. Tests hold masks up with it.
  std::function<void()> on_mask_start;
  std::vector<int32_t> eos_token_ids;
  int max_adapters = 0;          // that may be loaded
  AdapterLoader load_adapter;    // null when max_adapters is 0
  int64_t state_slot_bytes = 0;  // over all ranks
  int64_t vocab_size = 0;        // token ids are below this
  PooledModel pooled;
  int mtp_kv_group = -1;  // KV group of the MTP head's layer; -1 = no drafts by a head
  DraftModelOptions draft_model;
  std::optional<DiskCacheOptions> disk_cache;  // on_news of its store is the engine's
  std::string disk_problem;                    // why there is no disk_cache although one is wanted
  std::shared_ptr<StepProfile> profile;        // null = none
  bool checks_integrity = false;  // verifies the scheduler's and the blocks' state after each step, for tests
};

// Of one step, or of all steps together.
struct StepStats {
  int64_t num_tokens = 0, num_seqs = 0;
  double schedule_us = 0, forward_us = 0, settle_us = 0;
};

struct EngineStats {
  int num_waiting = 0, num_running = 0;
  int num_background = 0;  // of both together: with a priority above 0
  int64_t queued_prompt_tokens = 0;
  int64_t queued_background_tokens = 0;                            // of these: of background sequences
  int num_blocks = 0, num_free_blocks = 0, num_cached_blocks = 0;  // of the KV group that sees the most tokens
  int64_t snapshot_bytes = 0;                                      // of recurrent states in the prefix cache
  int64_t num_snapshot_hits = 0;                                   // sequences that continued from one
  size_t grammar_cache_bytes = 0;                                  // of compiled grammars and their masks
  int64_t num_evictions = 0, num_preemptions = 0, num_steps = 0;
  double ms_since_last_step = 0;  // 0 while idle
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t num_finished[4] = {};  // by FinishReason
  // Speculation: steps of sequences with drafts, their drafts, and those that held, by place in the proposal.
  int64_t num_speculations = 0, num_draft_tokens = 0;
  std::vector<int64_t> num_accepted_tokens;  // (speculation.num_tokens)
  StepStats last_step, all_steps;
  std::optional<DiskCacheStats> disk_cache;
  std::optional<StepProfileTotals> profile;
  std::string failure;  // empty, or why the engine has stopped
};

// Receives all events of a step on the engine's thread. Must not throw.
using EventSink = std::function<void(std::vector<Event>&& events)>;

class Engine {
 public:
  Engine(EngineOptions options, BlockManager blocks, std::unique_ptr<StepRunner> runner,
         std::shared_ptr<const Vocabulary> vocabulary, EventSink sink);
  ~Engine();

  // Throws kInvalidArgument, kContextLengthExceeded, kQueueFull, kEngineClosed, or the code of the engine's failure.
  RequestId submit(Request request);
  // Submits requests together, so that one step can take them all. Returns each one's id, or what submit() throws.
  std::vector<std::variant<RequestId, std::exception_ptr>> submit_all(std::vector<Request> requests);
  // Ends all choices of a request with kAbort. Ignores an unknown or finished request.
  void abort(RequestId request_id);
  // Ends one choice with kStop. Ignores an unknown or finished choice.
  void stop(RequestId request_id, int choice_idx);
  // Returns an id that no other adapter of this process has. Steps continue meanwhile. Adapters are loaded one after
  // the other. Throws kInvalidArgument at the limit of adapters, and what AdapterLoader throws. Callable from any
  // thread.
  uint64_t load_adapter(const AdapterSource& source);
  // From now on, no request can name the adapter. It stays in memory until the sequences that use it have ended.
  void unload_adapter(uint64_t adapter_id);
  // Returns the vocabulary in the form that grammars are compiled for. The first call builds it, which takes about half
  // a second for a large vocabulary. Callable from any thread.
  std::shared_ptr<const grammar::TokenTable> token_table();
  EngineStats stats() const;
  // Ends open requests with kEngineClosed and joins the thread. Idempotent. Must not be called from the sink.
  void close();

 private:
  // A finished sequence, kept until no step in flight refers to it.
  struct Retired {
    std::unique_ptr<Sequence> seq;
    uint64_t step;  // the newest step at the time
  };

  // A request that was checked.
  struct Arrival {
    std::vector<std::unique_ptr<Sequence>> sequences;
    uint64_t adapter_id;
  };

  Arrival prepare(Request request);
  RequestId enqueue(Arrival arrival);
  std::shared_ptr<const Adapter> find_adapter(uint64_t adapter_id) const;
  void main();
  void break_down(const std::exception_ptr& error) noexcept;
  bool take_inbox();
  void report_new_mask();
  void open_disk_cache();
  void report_disk_news();
  void write_offered_blocks();
  void step();
  void launch_steps();
  void speculate(StepPlan& plan);
  std::unique_ptr<Drafter> make_drafter();
  void settle(Batch& batch);
  void settle_sequence(const Batch& batch, const ScheduledSequence& scheduled);
  void fail_numeric(Sequence& seq);
  void accept_pooled(Sequence& seq);
  void accept_prompt_logprobs(const Batch& batch, const ScheduledSequence& scheduled);
  void count_speculation(int num_drafts, size_t num_accepted);
  void accept_samples(const Batch& batch, const ScheduledSequence& scheduled);
  void accept_token(Sequence& seq, const SampleResult& result);
  void end(Sequence& seq, FinishReason reason, const std::function<void(Finish&)>& detail = nullptr);
  void fail(Sequence& seq, ErrorCode code, const std::string& message);
  void fail_all(ErrorCode code, const std::string& message);
  void retire_finished(uint64_t collected_step);
  void count_step(const Batch& batch, Clock::time_point begin, Clock::time_point launched, Clock::time_point collected);
  void publish_stats(bool is_step);
  Event& event_of(Sequence& seq);
  void emit();

  const EngineOptions options_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const EventSink sink_;
  const std::unique_ptr<StepRunner> runner_;
  std::mutex adapter_mutex_;      // held while an adapter is loaded
  std::mutex token_table_mutex_;  // held while the table is built
  std::shared_ptr<const grammar::TokenTable> token_table_;
  std::atomic<const grammar::TokenTable*> built_token_table_{nullptr};  // the same table, for readers without the lock

  // ---- shared with callers, under mutex_ ----
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<RequestId> aborts_;
  std::unordered_map<uint64_t, std::shared_ptr<const Adapter>> adapters_;
  struct Stop {
    RequestId request_id;
    int choice_idx;
  };
  std::vector<Stop> stops_;
  bool has_new_masks_ = false;
  bool has_disk_news_ = false;
  bool is_closing_ = false;
  RequestId next_request_id_ = 1;
  EngineStats stats_;
  ErrorCode failure_code_ = ErrorCode::kInternal;
  Clock::time_point last_step_time_;
  bool is_busy_ = false;

  // ---- used by the engine's thread only ----
  EngineStats totals_;  // published as stats_ after each step
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::vector<std::unique_ptr<Sequence>>> open_;
  std::vector<Retired> retired_;
  std::vector<std::unique_ptr<Batch>> spare_batches_;
  std::deque<std::unique_ptr<Batch>> in_flight_;
  uint64_t num_steps_ = 0;
  Clock::time_point last_collect_time_;
  bool is_broken_ = false;             // an error ended the loop, so the scheduler's state may be inconsistent
  std::vector<Drafter::Wish> wishes_;  // scratch of speculate
  std::vector<Event> events_;          // collected since the last emission
  uint64_t event_round_ = 1;           // number of the next emission
  std::vector<Sequence*> finished_;    // in the step being settled
  bool is_stalled_ = false;            // nothing can run until a mask is ready or a caller acts

  std::mutex close_mutex_;
  std::unique_ptr<DiskCache> disk_cache_;  // null = none. Its threads use the fields that are shared with callers
  MaskGate mask_gate_;                     // its threads use the fields that are shared with callers
  std::unique_ptr<Drafter> drafter_;       // null without speculation
  std::thread thread_;
};

}  // namespace capstan
