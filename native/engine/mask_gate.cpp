#include "native/engine/mask_gate.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "native/engine/banned_ids.h"
#include "native/grammar/matcher.h"

namespace capstan {
namespace {

constexpr const char* kDeadEnd = "grammar: no token that the request allows can continue the text";

// Whether `mask` has a bit outside `banned`, which is ascending.
bool allows_any_except(std::span<const uint32_t> mask, std::span<const int32_t> banned) {
  auto next = banned.begin();
  for (size_t i = 0; i < mask.size(); ++i) {
    uint32_t rest = mask[i];
    for (; next != banned.end() && static_cast<size_t>(*next) / 32 == i; ++next)
      rest &= ~(1u << (*next % 32));
    if (rest != 0) return true;
  }
  return false;
}

// Restricts the grammar's mask after the first `num_drafts` drafts to what the request allows. Returns whether any
// token is left.
bool restrict_mask(Sequence& seq, size_t num_drafts, std::span<uint32_t> mask, bool& is_min_waived) {
  for (size_t i = 0; i < seq.allowed_mask.size(); ++i)
    mask[i] &= seq.allowed_mask[i];
  const bool is_early = seq.num_completion_tokens() + static_cast<int>(num_drafts) < seq.sampling.min_tokens;
  is_min_waived = is_early && !allows_any_except(mask, seq.early_bad_ids);
  return allows_any_except(mask, banned_ids(seq, num_drafts));
}

}  // namespace

void MaskGate::prepare_next_token(Sequence& seq) {
  const PartScope part(profile_of(seq), StepPart::kMasks);
  if (seq.unaccepted_id >= 0) return start_job(seq);
  if (set_forced_id(seq) || !seq.grammar) return;
  if (seq.grammar->try_fill_mask(seq.grammar_mask, work_left_)) return finish_mask(seq);
  start_job(seq);
}

void MaskGate::start_job(Sequence& seq) {
  seq.mask_job = pool_.start(seq.grammar, std::exchange(seq.unaccepted_id, -1), seq.grammar_mask.size());
  seq.mask_job_start = Clock::now();
  seq.is_mask_late = false;
  waiting_.push_back(&seq);
}

bool MaskGate::set_forced_id(Sequence& seq) {
  if (seq.forced_id >= 0) seq.forced_mask[static_cast<size_t>(seq.forced_id) / 32] = 0;
  seq.forced_id = -1;
  const auto forced = seq.thinking ? seq.thinking->forced_id() : std::nullopt;
  // A costly check counts as a refusal: the sequence draws one more token before the budget of thinking ends it.
  if (!forced || (seq.grammar && !seq.grammar->may_accept(*forced, work_left_).value_or(false))) return false;
  seq.forced_id = *forced;
  seq.forced_mask[static_cast<size_t>(*forced) / 32] = 1u << (*forced % 32);
  return true;
}

// A rejected token means that the runner ignored the mask.
bool MaskGate::accept(Sequence& seq, int32_t token_id) {
  if (!seq.grammar) return true;
  const PartScope part(options_.profile, StepPart::kMasks);
  const std::optional<bool> is_accepted = seq.grammar->try_accept(token_id, work_left_);
  if (!is_accepted) seq.unaccepted_id = token_id;
  if (is_accepted.value_or(true)) return true;
  options_.fail(seq, ErrorCode::kInvalidArgument, kDeadEnd);
  return false;
}

bool MaskGate::has_waiting_in_time() const {
  return std::ranges::any_of(waiting_, [](const Sequence* seq) { return !seq->is_mask_late; });
}

void MaskGate::take_ready_masks() {
  if (waiting_.empty()) return;
  const PartScope part(options_.profile, StepPart::kMasks);
  const auto now = Clock::now();
  for (size_t i = 0; i < waiting_.size();) {
    Sequence& seq = *waiting_[i];
    if (!seq.mask_job->is_done.load()) {
      seq.is_mask_late = now - seq.mask_job_start >= options_.patience;
      ++i;
      continue;
    }
    const auto job = std::exchange(seq.mask_job, nullptr);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    take_job(seq, *job);
  }
}

void MaskGate::take_job(Sequence& seq, MaskJob& job) {
  if (job.error) return options_.fail(seq, ErrorCode::kInternal, "the grammar's token mask could not be computed");
  if (job.is_refused) return options_.fail(seq, ErrorCode::kInvalidArgument, kDeadEnd);
  if (job.token_id >= 0) {
    if (seq.grammar->is_complete()) return options_.end(seq, FinishReason::kStop);
    if (seq.num_completion_tokens() >= seq.sampling.max_tokens) return options_.end(seq, FinishReason::kLength);
    if (set_forced_id(seq)) return;
  }
  seq.grammar_mask.swap(job.mask);
  finish_mask(seq);
}

// A dead end is an error of the sequence, not of the engine.
void MaskGate::finish_mask(Sequence& seq) {
  if (!restrict_mask(seq, 0, seq.grammar_mask, seq.is_min_waived))
    options_.fail(seq, ErrorCode::kInvalidArgument, kDeadEnd);
}

DraftTrial::DraftTrial(Sequence& sequence) : seq(sequence), thinking(sequence.thinking) {
  if (seq.grammar) grammar.emplace(*seq.grammar);
}

bool MaskGate::accept_draft(DraftTrial& trial) {
  const int32_t token_id = trial.seq.drafts.back().token_id;
  if (trial.grammar && !trial.grammar->step(token_id, work_left_)) return false;
  if (trial.thinking) trial.thinking->accept(token_id);
  return prepare_draft(trial.seq, trial.thinking ? trial.thinking->forced_id() : std::nullopt);
}

// Like prepare_next_token, for the token after the newest draft. Returns false when that takes long or nothing may
// follow.
bool MaskGate::prepare_draft(Sequence& seq, std::optional<int32_t> forced_id) {
  Draft& draft = seq.drafts.back();
  if (forced_id && seq.grammar) {
    const std::optional<bool> is_accepted = seq.grammar->may_accept(*forced_id, work_left_);
    if (!is_accepted) return false;
    if (!*is_accepted) forced_id.reset();
  }
  draft.is_forced = forced_id.has_value();
  if (forced_id) {
    draft.mask.assign(seq.forced_mask.size(), 0);
    draft.mask[static_cast<size_t>(*forced_id) / 32] = 1u << (*forced_id % 32);
    return true;
  }
  if (!seq.grammar) return true;
  draft.mask.resize(seq.grammar_mask.size());
  return seq.grammar->try_fill_mask(draft.mask, work_left_) &&
         restrict_mask(seq, seq.drafts.size(), draft.mask, draft.is_min_waived);
}

void MaskGate::cancel(Sequence& seq) {
  if (!seq.mask_job) return;
  // The job owns the matcher until its thread notices the request to stop.
  seq.mask_job->stop.request_stop();
  seq.mask_job = nullptr;
  std::erase(waiting_, &seq);
}

}  // namespace capstan
