// What the engine reports about its steps and its state.
#include <algorithm>

#include "native/engine/engine.h"
#include "native/grammar/token_trie.h"

namespace capstan {
namespace {

double us_between(Clock::time_point begin, Clock::time_point end) {
  return ms_between(begin, end) * 1000;
}

void add(StepStats& total, const StepStats& step) {
  total.num_tokens += step.num_tokens;
  total.num_seqs += step.num_seqs;
  total.schedule_us += step.schedule_us;
  total.forward_us += step.forward_us;
  total.settle_us += step.settle_us;
}

StepKind kind_of(const StepPlan& plan) {
  const auto num_prefills = std::ranges::count_if(plan.sequences, &ScheduledSequence::is_prefill);
  if (num_prefills == 0) return StepKind::kDecode;
  return num_prefills == static_cast<int64_t>(plan.sequences.size()) ? StepKind::kPrefill : StepKind::kMixed;
}

}  // namespace

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.num_waiting += static_cast<int>(inbox_.size());
  if (const auto* tokens = built_token_table_.load()) stats.grammar_cache_bytes = tokens->masks().total_bytes();
  if (disk_cache_) stats.disk_cache = disk_cache_->stats();
  if (is_busy_) stats.ms_since_last_step = ms_between(last_step_time_, Clock::now());
  return stats;
}

// The last thing that is done for a step but for what publishes it, which the profile counts to the next step.
void Engine::count_step(const Batch& batch, Clock::time_point begin, Clock::time_point launched,
                        Clock::time_point collected) {
  totals_.last_step = {batch.plan.num_tokens, static_cast<int64_t>(batch.plan.sequences.size()),
                       us_between(begin, launched), us_between(launched, collected),
                       us_between(collected, Clock::now())};
  add(totals_.all_steps, totals_.last_step);
  if (options_.profile) options_.profile->end_step(kind_of(batch.plan), batch.plan.num_tokens);
}

void Engine::publish_stats(bool is_step) {
  const BlockManager& blocks = scheduler_.blocks();
  if (const BlockPool* pool = blocks.main_pool()) {
    totals_.num_blocks = pool->num_blocks();
    totals_.num_free_blocks = pool->num_free();
    totals_.num_cached_blocks = pool->num_cached();
  }
  totals_.num_waiting = scheduler_.num_waiting();
  totals_.num_running = scheduler_.num_running();
  totals_.num_evictions = blocks.num_evictions();
  totals_.snapshot_bytes = blocks.states().slots().num_with_content() * options_.state_slot_bytes;
  totals_.num_snapshot_hits = blocks.states().num_hits();
  totals_.num_preemptions = scheduler_.num_preemptions();
  // The scheduler of a broken engine keeps pointers to sequences that are gone.
  totals_.num_background = is_broken_ ? 0 : scheduler_.num_background();
  totals_.queued_prompt_tokens = scheduler_.num_waiting_prompt_tokens();
  totals_.queued_background_tokens = scheduler_.num_waiting_background_tokens();
  if (options_.profile) totals_.profile = options_.profile->totals();
  const std::lock_guard lock(mutex_);
  if (is_step) {
    ++totals_.num_steps;
    last_step_time_ = Clock::now();
  }
  stats_ = totals_;
  for (const auto& seq : inbox_) {
    stats_.queued_prompt_tokens += seq->num_prompt_tokens;
    if (!seq->is_background()) continue;
    ++stats_.num_background;
    stats_.queued_background_tokens += seq->num_prompt_tokens;
  }
}

}  // namespace capstan
