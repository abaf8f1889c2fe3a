#pragma once
// Chooses the tokens of the next step and allocates their blocks. Integers only: no tensor, device or
// model header.
//
// Sequences of one priority: decodes in order of admission, then prefill chunks of running sequences, then admissions
// in order of arrival, until the token budget or the blocks are used up. When a running sequence finds no block, the
// youngest one is preempted: its blocks are freed and it is recomputed later.
//
// A lower number is more urgent. Urgent sequences are planned first, and a step that computes a prompt holds nothing
// less urgent: those sequences keep their blocks and skip it. An urgent sequence that lacks a slot or blocks preempts
// the least urgent one, of these the youngest. Priorities above 0 are background work: its prefill chunks are always
// cut, so that an urgent request does not wait long for the step that runs. No priority changes a result.
//
// While sequences decode, prefill chunks are cut so that they lengthen the step by at most `max_step_ms`: a long prompt
// then delays running streams by that much from token to token. The cut changes no result.
//
// Drafts of speculation come last: into small steps only, and into blocks that no sequence uses. The blocks of rejected
// drafts are freed when the step is collected, so speculation preempts no sequence.
//
// A sequence whose grammar mask is not ready draws no token. It keeps its blocks and skips steps. Once the mask is late
// and another sequence needs the slot or the blocks, it is preempted, and it is the first to return.
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "native/engine/block_manager.h"
#include "native/engine/step_plan.h"
#include "native/engine/step_times.h"

namespace capstan {

struct SchedulerLimits {
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int max_model_len = 2048;
  // Prefill chunks lengthen a step by at most this while sequences decode. 0 = no limit.
  double max_step_ms = 0;
  // Work of attention to one token of context, relative to all other work on a token, by the window of the layers.
  // Window 0 = none.
  std::map<int, double> context_work = {};
  SpeculationOptions speculation = {};
  // A sequence runs in one step, whole. max_num_batched_tokens is at least max_model_len.
  bool runs_whole = false;
  // A draft model computes the tokens of a sequence later (Sequence::num_followed_tokens).
  bool has_draft_model = false;
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, BlockManager blocks)
      : limits_(limits), blocks_(std::move(blocks)), step_times_(limits.context_work) {}

  const BlockManager& blocks() const { return blocks_; }
  BlockManager& blocks() { return blocks_; }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int64_t num_waiting_prompt_tokens() const { return num_waiting_prompt_tokens_; }
  int num_running() const { return static_cast<int>(running_.size()); }
  // Sequences with a priority above 0, waiting and running ones.
  int num_background() const;
  int64_t num_waiting_background_tokens() const { return num_waiting_background_tokens_; }
  int64_t num_preemptions() const { return num_preemptions_; }
  bool has_work() const { return !waiting_.empty() || !running_.empty(); }

  void add(Sequence& seq);
  // Fills `plan` with the next step. Returns false when nothing can run now.
  bool plan_step(StepPlan& plan);
  // Returns how many drafts may still be added to the step.
  int draft_capacity(const StepPlan& plan) const;
  // Adds up to `count` drafts to the sequence `idx` of `plan`, which decodes: fewer when the capacity or the blocks are
  // used up. Call after plan_step, so that nothing else in the step waits for them. Returns how many were added.
  int plan_drafts(StepPlan& plan, size_t idx, int count);
  // Takes the last `count` drafts back before the launch.
  void cut_drafts(StepPlan& plan, size_t idx, int count);
  // Call when the planned step is enqueued: its tokens count as computed from now on, and full blocks whose ids are
  // known enter the prefix cache.
  void launched(const StepPlan& plan);
  // Call with the time of each step.
  void measured(const StepPlan& plan, double ms) { step_times_.measure(plan, ms); }
  // Returns how long the computation of `num_tokens` tokens from `first_position` on takes; 0 = not measured yet.
  double prefill_ms(int first_position, int num_tokens) const {
    return step_times_.prefill_ms(first_position, num_tokens);
  }
  // Appends a collected sample.
  void append(Sequence& seq, int32_t token_id);
  // Drops the last `count` samples in flight of a step with drafts: the drafts before them do not hold.
  void reject(Sequence& seq, int count);
  // Ends `seq`, which is waiting or running. The only place that frees the blocks of a finished sequence.
  // `is_poisoned`: its K and V are invalid, so its blocks leave the prefix cache.
  void finish(Sequence& seq, bool is_poisoned = false);
  // Throws kInternal when the state contradicts itself. Visits everything: for tests.
  void check_integrity() const;

 private:
  static bool is_decode(const Sequence& seq) { return seq.num_tokens_ahead() - seq.num_computed_tokens == 1; }
  bool can_step(const Sequence& seq) const;
  bool may_speculate(const Sequence& seq) const;
  bool is_leader_ready(const Sequence& seq) const;
  std::optional<int> next_priority(std::optional<int> last) const;
  size_t running_begin(int priority) const;
  size_t running_end(int priority) const;
  bool has_urgent() const;
  double background_ms() const;
  void plan_priority(StepPlan& plan, int priority);
  void plan_decodes(StepPlan& plan, int priority);
  void plan_prefills(StepPlan& plan, int priority);
  size_t place_of(const Sequence& seq, size_t old_place) const;
  bool is_full(const StepPlan& plan) const;
  void plan_admissions(StepPlan& plan, int priority);
  bool fits_whole(const StepPlan& plan, const Sequence& seq) const;
  bool admit_by_force(Sequence& seq);
  bool admit(Sequence& seq);
  void enter_queue(std::deque<Sequence*>::iterator place, Sequence& seq);
  void leave_queue(Sequence& seq);
  bool grow(const StepPlan& plan, Sequence& seq);
  bool preempt_late_sequence(const Sequence& beneficiary);
  void preempt(Sequence& seq);
  void schedule(StepPlan& plan, Sequence& seq);
  int chunk_size(const StepPlan& plan, const Sequence& seq, int max_tokens);
  int first_later_position(const ScheduledSequence& scheduled) const;

  SchedulerLimits limits_;
  BlockManager blocks_;
  StepTimes step_times_;
  double prefill_ms_left_ = 0;      // of the step that is being planned
  int num_decode_tokens_ = 0;       // of the step that is being planned
  std::deque<Sequence*> waiting_;   // the most urgent first; of one priority, preempted ones in front
  std::vector<Sequence*> running_;  // the most urgent first; of one priority in order of admission
  int64_t num_waiting_prompt_tokens_ = 0;
  int64_t num_waiting_background_tokens_ = 0;  // of these: of background sequences
  int64_t num_preemptions_ = 0;
  int num_calm_steps_ = std::numeric_limits<int>::max();  // since the last one with urgent sequences
};

}  // namespace capstan
