// What a collected step means for its sequences: their new tokens, their text, and their end.
#include <algorithm>
#include <cmath>
#include <utility>

#include "native/engine/engine.h"
#include "native/engine/token_counts.h"
#include "native/grammar/matcher.h"

namespace capstan {
namespace {

TokenLogprobs to_logprobs(const SampleResult& result) {
  TokenLogprobs logprobs{result.token_id, result.logprob, result.rank, {}};
  logprobs.top.reserve(result.top.size());
  for (const TokenLogprob& top : result.top)
    logprobs.top.emplace_back(top.token_id, top.logprob);
  return logprobs;
}

}  // namespace

void Engine::settle(Batch& batch) {
  for (const ScheduledSequence& scheduled : batch.plan.sequences)
    settle_sequence(batch, scheduled);
}

void Engine::settle_sequence(const Batch& batch, const ScheduledSequence& scheduled) {
  Sequence& seq = *scheduled.seq;
  // The sequence has ended or was preempted after the launch.
  if (seq.status != SequenceStatus::kRunning || seq.epoch != scheduled.epoch) return;
  // Rows after a rejected draft do not count, so those of drafts are looked at one by one.
  for (int i = 0; i < scheduled.num_sample_rows - scheduled.num_drafts; ++i)
    if (batch.results[static_cast<size_t>(scheduled.first_sample_row + i)].has_numeric_error) return fail_numeric(seq);
  if (disk_cache_ && scheduled.samples) disk_cache_->offer(seq);
  if (!seq.prompt_logprobs.empty()) accept_prompt_logprobs(batch, scheduled);
  if (scheduled.samples && seq.is_pooled)
    accept_pooled(seq);
  else if (scheduled.samples)
    accept_samples(batch, scheduled);
}

void Engine::accept_pooled(Sequence& seq) {
  seq.first_token_time = Clock::now();
  if (!std::ranges::all_of(seq.pooled, [](float value) { return std::isfinite(value); }))
    return fail(seq, ErrorCode::kNumeric, "the model's result contains NaN or infinity");
  event_of(seq).pooled = std::move(seq.pooled);
  end(seq, FinishReason::kStop);
}

void Engine::fail_numeric(Sequence& seq) {
  fail(seq, ErrorCode::kNumeric, "the model's logits contain NaN or infinity, or no token may be drawn");
}

// Appends the drawn tokens up to the first one that differs from its draft: the rows after it belong to another text.
void Engine::accept_samples(const Batch& batch, const ScheduledSequence& scheduled) {
  Sequence& seq = *scheduled.seq;
  const auto results = std::span(batch.results)
                           .subspan(static_cast<size_t>(scheduled.first_sample_row + scheduled.num_sample_rows - 1 -
                                                        scheduled.num_drafts),
                                    static_cast<size_t>(scheduled.num_drafts) + 1);
  size_t num_drawn = 1;
  while (num_drawn < results.size() && results[num_drawn - 1].token_id == seq.drafts[num_drawn - 1].token_id &&
         !results[num_drawn - 1].has_numeric_error)
    ++num_drawn;
  if (scheduled.num_drafts > 0) count_speculation(scheduled.num_drafts, num_drawn - 1);
  if (seq.pacer) seq.pacer->observe(scheduled.num_drafts, static_cast<int>(num_drawn) - 1);
  seq.drafts.clear();
  scheduler_.reject(seq, static_cast<int>(results.size() - num_drawn));
  for (size_t i = 0; i < num_drawn; ++i) {
    if (results[i].has_numeric_error) return fail_numeric(seq);
    accept_token(seq, results[i]);
    if (seq.status != SequenceStatus::kRunning) return;
    // The grammar takes long over this token. The rest is drawn again, with the same result.
    if (seq.unaccepted_id >= 0) {
      scheduler_.reject(seq, static_cast<int>(num_drawn - 1 - i));
      break;
    }
  }
  mask_gate_.prepare_next_token(seq);
  if (seq.ngrams) seq.ngrams->update(seq.token_ids, seq.num_prompt_tokens);
}

void Engine::count_speculation(int num_drafts, size_t num_accepted) {
  ++totals_.num_speculations;
  totals_.num_draft_tokens += num_drafts;
  for (size_t i = 0; i < num_accepted; ++i)
    ++totals_.num_accepted_tokens[i];
}

void Engine::accept_prompt_logprobs(const Batch& batch, const ScheduledSequence& scheduled) {
  Sequence& seq = *scheduled.seq;
  const int num_prompt_rows = scheduled.num_sample_rows - (scheduled.samples ? 1 + scheduled.num_drafts : 0);
  for (int i = 0; i < num_prompt_rows; ++i)
    seq.prompt_logprobs[static_cast<size_t>(scheduled.first_position + i + 1)] =
        to_logprobs(batch.results[static_cast<size_t>(scheduled.first_sample_row + i)]);
  if (scheduled.samples) event_of(seq).prompt_logprobs = std::exchange(seq.prompt_logprobs, {});
}

void Engine::accept_token(Sequence& seq, const SampleResult& result) {
  if (seq.num_completion_tokens() == 0) seq.first_token_time = Clock::now();
  if (seq.sampling.max_tokens == 0) return end(seq, FinishReason::kLength);
  const int32_t token_id = result.token_id;
  if (!mask_gate_.accept(seq, token_id)) return;
  scheduler_.append(seq, token_id);
  if (seq.has_penalties()) count_token(seq.completion_counts, token_id);
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
    const bool is_requested = std::ranges::find(stop_ids, token_id) != stop_ids.end();
    end(seq, FinishReason::kStop, [&](Finish& finish) { finish.stop_token_id = is_requested ? token_id : -1; });
  } else if (stop_idx >= 0) {
    end(seq, FinishReason::kStop,
        [&](Finish& finish) { finish.stop_string = seq.sampling.stop_strings[static_cast<size_t>(stop_idx)]; });
  } else if (seq.grammar && seq.grammar->is_complete()) {
    end(seq, FinishReason::kStop);
  } else if (seq.num_completion_tokens() >= seq.sampling.max_tokens && seq.unaccepted_id < 0) {
    end(seq, FinishReason::kLength);
  } else {
    event.text_delta += seq.text.take();
    if (seq.thinking) seq.thinking->accept(token_id);
  }
}

// The only place where a sequence ends. Calls for a finished sequence do nothing.
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
  mask_gate_.cancel(seq);
  if (disk_cache_) disk_cache_->forget(seq);
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

void Engine::fail(Sequence& seq, ErrorCode code, const std::string& message) {
  end(seq, FinishReason::kError, [&](Finish& finish) {
    finish.error_code = code;
    finish.error_message = message;
  });
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

}  // namespace capstan
