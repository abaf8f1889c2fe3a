#include "native/engine/scheduler.h"

#include <algorithm>
#include <limits>

#include "native/base/check.h"

namespace capstan {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
// Chunks aim at this share of the time limit, because their times vary.
constexpr double kUsedShare = 0.9;
// Chunks of background work have this share of the limit, because an urgent request waits for the step that runs.
constexpr double kBackgroundShare = 0.2;
// While urgent requests come, the step is kept shorter still: a chunk then takes this share of the time of the decodes,
// and at least this share of the limit. This many steps after the last one, long chunks serve the background better.
constexpr double kShareOfDecodes = 0.5, kSmallestShare = 0.03;
constexpr int kNumCalmSteps = 512;

}  // namespace

int Scheduler::num_background() const {
  const auto count = [](const auto& sequences) {
    return sequences.end() - std::ranges::upper_bound(sequences, 0, {}, &Sequence::priority);
  };
  return static_cast<int>(count(waiting_) + count(running_));
}

void Scheduler::add(Sequence& seq) {
  enter_queue(std::ranges::upper_bound(waiting_, seq.priority, {}, &Sequence::priority), seq);
}

void Scheduler::enter_queue(std::deque<Sequence*>::iterator place, Sequence& seq) {
  waiting_.insert(place, &seq);
  num_waiting_prompt_tokens_ += seq.num_prompt_tokens;
  if (seq.is_background()) num_waiting_background_tokens_ += seq.num_prompt_tokens;
}

void Scheduler::leave_queue(Sequence& seq) {
  waiting_.erase(std::ranges::find(waiting_, &seq));
  num_waiting_prompt_tokens_ -= seq.num_prompt_tokens;
  if (seq.is_background()) num_waiting_background_tokens_ -= seq.num_prompt_tokens;
}

bool Scheduler::plan_step(StepPlan& plan) {
  plan.clear();
  if (has_urgent())
    num_calm_steps_ = 0;
  else if (num_calm_steps_ < kNumCalmSteps)
    ++num_calm_steps_;
  const auto computes_prompt = [](const ScheduledSequence& scheduled) {
    return scheduled.first_position < scheduled.seq->num_prompt_tokens || !is_decode(*scheduled.seq);
  };
  for (auto priority = next_priority({}); priority; priority = next_priority(priority)) {
    plan_priority(plan, *priority);
    if (std::ranges::any_of(plan.sequences, computes_prompt)) break;
  }
  return !plan.sequences.empty();
}

// Whether a sequence that is not background work waits or runs.
bool Scheduler::has_urgent() const {
  return (!waiting_.empty() && !waiting_.front()->is_background()) ||
         (!running_.empty() && !running_.front()->is_background());
}

// Returns how long background chunks may lengthen a step.
double Scheduler::background_ms() const {
  const double most = kBackgroundShare * limits_.max_step_ms;
  if (num_calm_steps_ >= kNumCalmSteps) return most;
  return std::clamp(kShareOfDecodes * step_times_.decode_ms(), kSmallestShare * limits_.max_step_ms, most);
}

// Returns the most urgent priority of a sequence that is less urgent than `last`.
std::optional<int> Scheduler::next_priority(std::optional<int> last) const {
  std::optional<int> next;
  const auto look_in = [&](const auto& sequences) {
    const auto at = last ? std::ranges::upper_bound(sequences, *last, {}, &Sequence::priority) : sequences.begin();
    if (at != sequences.end() && (!next || (*at)->priority < *next)) next = (*at)->priority;
  };
  look_in(running_);
  look_in(waiting_);
  return next;
}

// Returns the index of the first running sequence that is not more urgent than `priority`.
size_t Scheduler::running_begin(int priority) const {
  return static_cast<size_t>(std::ranges::lower_bound(running_, priority, {}, &Sequence::priority) - running_.begin());
}

// Returns the end of the running sequences that are at least as urgent as `priority`.
size_t Scheduler::running_end(int priority) const {
  return static_cast<size_t>(std::ranges::upper_bound(running_, priority, {}, &Sequence::priority) - running_.begin());
}

void Scheduler::plan_priority(StepPlan& plan, int priority) {
  plan_decodes(plan, priority);
  // A sequence that waits for its mask draws no token in this step.
  const bool has_decodes =
      std::any_of(running_.begin(), running_.begin() + static_cast<ptrdiff_t>(running_end(priority)),
                  [](const Sequence* seq) { return is_decode(*seq) && !seq->waits_for_mask(); });
  const bool is_cut = (has_decodes || priority > 0) && limits_.max_step_ms > 0 && !limits_.runs_whole;
  prefill_ms_left_ = is_cut ? kUsedShare * (priority > 0 ? background_ms() : limits_.max_step_ms) : kNoLimit;
  num_decode_tokens_ = plan.num_tokens;
  plan_prefills(plan, priority);
  plan_admissions(plan, priority);
}

// Whether the next token of a decoding sequence may be planned now.
bool Scheduler::can_step(const Sequence& seq) const {
  if (seq.num_in_flight > 0 && (seq.needs_host() || !seq.drafts.empty() || may_speculate(seq))) return false;
  // The sample in flight may already be the last one.
  return seq.num_tokens_ahead() - seq.num_prompt_tokens < seq.sampling.max_tokens &&
         seq.num_tokens_ahead() < limits_.max_model_len;
}

// Whether `seq` has drafts, and its next step may be small enough for them.
bool Scheduler::may_speculate(const Sequence& seq) const {
  return seq.num_wanted_drafts() > 0 && num_running() < limits_.speculation.max_step_tokens;
}

void Scheduler::plan_decodes(StepPlan& plan, int priority) {
  for (size_t i = running_begin(priority); i < running_end(priority); ++i) {
    if (plan.num_tokens >= limits_.max_num_batched_tokens) return;
    Sequence& seq = *running_[i];
    if (!is_decode(seq) || seq.waits_for_mask() || (seq.num_in_flight > 0 && !can_step(seq))) continue;
    if (!grow(plan, seq)) return;
    schedule(plan, seq);
    i = place_of(seq, i);
  }
}

void Scheduler::plan_prefills(StepPlan& plan, int priority) {
  for (size_t i = running_begin(priority); i < running_end(priority) && !is_full(plan); ++i) {
    Sequence& seq = *running_[i];
    if (seq.num_tokens_ahead() - seq.num_computed_tokens <= 1) continue;
    if (grow(plan, seq)) schedule(plan, seq);
    if (seq.status != SequenceStatus::kRunning) return;
    i = place_of(seq, i);
  }
}

// Returns the index of `seq` in running_, which was `old_place` before sequences were preempted.
size_t Scheduler::place_of(const Sequence& seq, size_t old_place) const {
  size_t place = std::min(old_place, running_.size() - 1);
  while (running_[place] != &seq)
    --place;
  return place;
}

void Scheduler::plan_admissions(StepPlan& plan, int priority) {
  const auto first = std::ranges::lower_bound(waiting_, priority, {}, &Sequence::priority);
  for (auto i = static_cast<size_t>(first - waiting_.begin()); i < waiting_.size();) {
    Sequence& seq = *waiting_[i];
    if (seq.priority > priority || is_full(plan)) return;
    if (!is_leader_ready(seq) || seq.waits_for_mask() || seq.waits_for_disk()) {
      ++i;
      continue;
    }
    if (limits_.runs_whole && !fits_whole(plan, seq)) return;
    if (!admit_by_force(seq)) return;
    // Preempted sequences may have entered the queue before it.
    i = static_cast<size_t>(std::ranges::find(waiting_, &seq) - waiting_.begin());
    leave_queue(seq);
    running_.insert(running_.begin() + static_cast<ptrdiff_t>(running_end(priority)), &seq);
    seq.status = SequenceStatus::kRunning;
    schedule(plan, seq);
  }
}

// Whether all tokens of a sequence fit into the step.
bool Scheduler::fits_whole(const StepPlan& plan, const Sequence& seq) const {
  const int num_tokens = plan.num_tokens + seq.num_tokens();
  if (num_tokens > limits_.max_num_batched_tokens) return false;
  const bool is_limited = seq.is_background() && limits_.max_step_ms > 0 && plan.num_tokens > 0;
  return !is_limited || step_times_.prefill_ms(0, num_tokens) <= kBackgroundShare * limits_.max_step_ms;
}

// Admits a sequence. While a slot or blocks are missing, sequences whose mask is late and less urgent ones are
// preempted.
bool Scheduler::admit_by_force(Sequence& seq) {
  while (num_running() >= limits_.max_num_seqs || !admit(seq)) {
    if (preempt_late_sequence(seq)) continue;
    if (running_.empty() || running_.back()->priority <= seq.priority) return false;
    preempt(*running_.back());
  }
  return true;
}

bool Scheduler::is_full(const StepPlan& plan) const {
  return plan.num_tokens >= limits_.max_num_batched_tokens || prefill_ms_left_ <= 0;
}

bool Scheduler::is_leader_ready(const Sequence& seq) const {
  return seq.leader == nullptr || (seq.leader->status == SequenceStatus::kRunning &&
                                   seq.leader->num_computed_tokens >= seq.leader->num_prompt_tokens);
}

bool Scheduler::admit(Sequence& seq) {
  // Reserves one block per running sequence that is as urgent, so that the next decodes need not preempt the new one.
  const int num_reserved = limits_.runs_whole ? 0 : static_cast<int>(running_end(seq.priority));
  const bool is_admitted = seq.leader != nullptr ? blocks_.admit_from(seq, *seq.leader, num_reserved)
                                                 : blocks_.admit(seq, num_reserved, seq.uses_prefix_cache());
  if (is_admitted && limits_.runs_whole && blocks_.max_tokens(seq) < seq.num_tokens()) {
    blocks_.free(seq);
    return false;
  }
  if (is_admitted && !seq.is_admitted_once) {
    seq.is_admitted_once = true;
    seq.num_cached_tokens = seq.num_computed_tokens;
    seq.first_schedule_time = Clock::now();
  }
  return is_admitted;
}

// Allocates blocks for one more token of a running sequence and preempts others when there are none. Returns false when
// `seq` itself was preempted, or when the youngest sequence is in the plan: then `seq` waits for a later step.
bool Scheduler::grow(const StepPlan& plan, Sequence& seq) {
  while (!blocks_.grow(seq, seq.num_computed_tokens + 1)) {
    if (preempt_late_sequence(seq)) continue;
    Sequence& youngest = *running_.back();
    if (std::ranges::find(plan.sequences, &youngest, &ScheduledSequence::seq) != plan.sequences.end()) return false;
    preempt(youngest);
    if (&youngest == &seq) return false;
  }
  return true;
}

// Preempts the youngest sequence whose mask is late, unless it is more urgent. Returns false when there is none.
bool Scheduler::preempt_late_sequence(const Sequence& beneficiary) {
  for (auto at = running_.rbegin(); at != running_.rend(); ++at) {
    Sequence& late = **at;
    if (late.priority < beneficiary.priority) return false;
    if (!late.waits_for_mask() || !late.is_mask_late || &late == beneficiary.leader) continue;
    preempt(late);
    return true;
  }
  return false;
}

void Scheduler::preempt(Sequence& seq) {
  blocks_.free(seq);
  seq.drafts.clear();
  seq.num_in_flight = 0;
  ++seq.epoch;
  ++seq.num_preemptions;
  ++num_preemptions_;
  seq.status = SequenceStatus::kWaiting;
  running_.erase(std::ranges::find(running_, &seq));
  enter_queue(std::ranges::lower_bound(waiting_, seq.priority, {}, &Sequence::priority), seq);
}

void Scheduler::schedule(StepPlan& plan, Sequence& seq) {
  const int num_remaining = seq.num_tokens_ahead() - seq.num_computed_tokens;
  const int num_tokens =
      chunk_size(plan, seq, std::min(num_remaining, blocks_.max_tokens(seq) - seq.num_computed_tokens));
  CAPSTAN_CHECK(num_tokens > 0 && blocks_.grow(seq, seq.num_computed_tokens + num_tokens));
  ScheduledSequence scheduled;
  scheduled.seq = &seq;
  scheduled.epoch = seq.epoch;
  scheduled.first_position = seq.num_computed_tokens;
  scheduled.num_tokens = num_tokens;
  scheduled.samples = num_tokens == num_remaining;
  blocks_.states().plan(scheduled);
  plan.sequences.push_back(std::move(scheduled));
  plan.num_tokens += num_tokens;
}

int Scheduler::chunk_size(const StepPlan& plan, const Sequence& seq, int max_tokens) {
  const int num_tokens = std::min(max_tokens, limits_.max_num_batched_tokens - plan.num_tokens);
  if (num_tokens <= 1 || prefill_ms_left_ == kNoLimit) return num_tokens;
  const int num_fitting = step_times_.tokens_within(prefill_ms_left_, seq.num_computed_tokens, num_tokens,
                                                    plan.num_tokens - num_decode_tokens_);
  // A chunk that was cut to its limit uses up the rest of the time.
  prefill_ms_left_ -= step_times_.prefill_ms(seq.num_computed_tokens, num_fitting);
  if (num_fitting < num_tokens) prefill_ms_left_ = 0;
  return num_fitting;
}

int Scheduler::draft_capacity(const StepPlan& plan) const {
  const int most_tokens = std::min(limits_.max_num_batched_tokens, limits_.speculation.max_step_tokens);
  return std::max(0, most_tokens - plan.num_tokens);
}

int Scheduler::plan_drafts(StepPlan& plan, size_t idx, int count) {
  ScheduledSequence& scheduled = plan.sequences[idx];
  CAPSTAN_CHECK(scheduled.samples && scheduled.seq->num_in_flight == 0);
  int num_added = 0;
  for (; num_added < count && draft_capacity(plan) > 0; ++num_added) {
    if (!blocks_.grow(*scheduled.seq, scheduled.first_position + scheduled.num_tokens + 1)) break;
    if (!blocks_.states().add_draft(scheduled)) break;
    ++scheduled.num_drafts;
    ++scheduled.num_tokens;
    ++plan.num_tokens;
  }
  return num_added;
}

void Scheduler::cut_drafts(StepPlan& plan, size_t idx, int count) {
  ScheduledSequence& scheduled = plan.sequences[idx];
  blocks_.states().cut_drafts(scheduled, count);
  scheduled.num_drafts -= count;
  scheduled.num_tokens -= count;
  plan.num_tokens -= count;
  scheduled.seq->num_followed_tokens =
      std::min(scheduled.seq->num_followed_tokens, scheduled.first_position + scheduled.num_tokens);
  blocks_.shrink(*scheduled.seq, scheduled.first_position + scheduled.num_tokens);
}

void Scheduler::launched(const StepPlan& plan) {
  blocks_.states().launched();
  for (const ScheduledSequence& scheduled : plan.sequences) {
    Sequence& seq = *scheduled.seq;
    seq.num_computed_tokens += scheduled.num_tokens;
    if (scheduled.samples) {
      seq.num_in_flight += 1 + scheduled.num_drafts;
      seq.in_flight_row = scheduled.first_sample_row + scheduled.num_sample_rows - 1;
    }
    blocks_.publish(seq, std::min(seq.num_computed_tokens, seq.num_tokens()));
    blocks_.free_unseen(seq, first_later_position(scheduled));
  }
}

// Returns the first position whose query a later step may compute: of `seq`, or of a choice that shares its prompt. The
// step in flight reads its blocks before a later step writes to them.
int Scheduler::first_later_position(const ScheduledSequence& scheduled) const {
  const Sequence& seq = *scheduled.seq;
  int position = seq.num_computed_tokens - scheduled.num_drafts;
  if (limits_.has_draft_model) position = std::min(position, seq.num_followed_tokens);
  if (position > seq.num_prompt_tokens) return position;
  return std::min(position, blocks_.num_shareable(seq) * blocks_.block_size());
}

void Scheduler::append(Sequence& seq, int32_t token_id) {
  --seq.num_in_flight;
  seq.token_ids.push_back(token_id);
  blocks_.publish(seq, std::min(seq.num_computed_tokens, seq.num_tokens()));
}

void Scheduler::reject(Sequence& seq, int count) {
  blocks_.states().reject(seq, count);
  seq.num_in_flight -= count;
  seq.num_computed_tokens -= count;
  seq.num_followed_tokens = std::min(seq.num_followed_tokens, seq.num_computed_tokens);
  CAPSTAN_CHECK(seq.num_in_flight >= 0 && seq.num_computed_tokens <= seq.num_tokens_ahead());
  blocks_.shrink(seq, seq.num_tokens_ahead());
}

void Scheduler::finish(Sequence& seq, bool is_poisoned) {
  if (seq.status == SequenceStatus::kFinished) return;
  if (seq.status == SequenceStatus::kWaiting) {
    leave_queue(seq);
  } else {
    running_.erase(std::ranges::find(running_, &seq));
    if (is_poisoned) blocks_.unpublish(seq);
    blocks_.free(seq);
  }
  seq.status = SequenceStatus::kFinished;
}

void Scheduler::check_integrity() const {
  int64_t num_prompt_tokens = 0, num_background_tokens = 0;
  CAPSTAN_CHECK(std::ranges::is_sorted(waiting_, {}, &Sequence::priority));
  CAPSTAN_CHECK(std::ranges::is_sorted(running_, {}, &Sequence::priority));
  for (const Sequence* seq : waiting_) {
    CAPSTAN_CHECK(seq->status == SequenceStatus::kWaiting && seq->block_tables.empty() && seq->num_in_flight == 0);
    CAPSTAN_CHECK(seq->drafts.empty());
    num_prompt_tokens += seq->num_prompt_tokens;
    if (seq->is_background()) num_background_tokens += seq->num_prompt_tokens;
  }
  CAPSTAN_CHECK(num_prompt_tokens == num_waiting_prompt_tokens_);
  CAPSTAN_CHECK(num_background_tokens == num_waiting_background_tokens_);
  CAPSTAN_CHECK(num_running() <= limits_.max_num_seqs);
  for (const Sequence* seq : running_) {
    CAPSTAN_CHECK(seq->status == SequenceStatus::kRunning && seq->num_in_flight >= 0);
    CAPSTAN_CHECK(seq->num_computed_tokens <= seq->num_tokens_ahead());
  }
  blocks_.check_integrity(running_);
}

}  // namespace capstan
