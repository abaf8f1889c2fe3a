#include "native/engine/mask_gate.h"

#include <algorithm>
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

}  // namespace

void MaskGate::prepare_next_token(Sequence& seq) {
  if (set_forced_id(seq) || !seq.grammar) return;
  if (seq.grammar->try_fill_mask(seq.grammar_mask)) return finish_mask(seq);
  seq.mask_job = pool_.start(seq.grammar, seq.grammar_mask.size());
  seq.mask_job_start = Clock::now();
  seq.is_mask_late = false;
  waiting_.push_back(&seq);
}

bool MaskGate::set_forced_id(Sequence& seq) {
  if (seq.forced_id >= 0) seq.forced_mask[static_cast<size_t>(seq.forced_id) / 32] = 0;
  seq.forced_id = -1;
  const auto forced = seq.thinking ? seq.thinking->forced_id() : std::nullopt;
  if (!forced || (seq.grammar && !seq.grammar->may_accept(*forced))) return false;
  seq.forced_id = *forced;
  seq.forced_mask[static_cast<size_t>(*forced) / 32] = 1u << (*forced % 32);
  return true;
}

// A rejected token means that the runner ignored the mask.
bool MaskGate::accept(Sequence& seq, int32_t token_id) {
  if (!seq.grammar || seq.grammar->accept(token_id)) return true;
  fail_(seq, ErrorCode::kInvalidArgument, kDeadEnd);
  return false;
}

bool MaskGate::has_waiting_in_time() const {
  return std::ranges::any_of(waiting_, [](const Sequence* seq) { return !seq->is_mask_late; });
}

void MaskGate::take_ready_masks() {
  const auto now = Clock::now();
  for (size_t i = 0; i < waiting_.size();) {
    Sequence& seq = *waiting_[i];
    if (!seq.mask_job->is_done.load()) {
      seq.is_mask_late = now - seq.mask_job_start >= patience_;
      ++i;
      continue;
    }
    const auto job = std::exchange(seq.mask_job, nullptr);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    if (job->error) {
      fail_(seq, ErrorCode::kInternal, "the grammar's token mask could not be computed");
      continue;
    }
    seq.grammar_mask.swap(job->mask);
    finish_mask(seq);
  }
}

// Restricts the grammar's mask to what the request allows. A dead end is an error of the sequence, not of the engine.
void MaskGate::finish_mask(Sequence& seq) {
  auto& mask = seq.grammar_mask;
  for (size_t i = 0; i < seq.allowed_mask.size(); ++i)
    mask[i] &= seq.allowed_mask[i];
  const bool is_early = seq.num_completion_tokens() < seq.sampling.min_tokens;
  seq.is_min_waived = is_early && !allows_any_except(mask, seq.early_bad_ids);
  if (!allows_any_except(mask, banned_ids(seq))) fail_(seq, ErrorCode::kInvalidArgument, kDeadEnd);
}

void MaskGate::cancel(Sequence& seq) {
  if (!seq.mask_job) return;
  // The job owns the matcher until its thread notices the request to stop.
  seq.mask_job->stop.request_stop();
  seq.mask_job = nullptr;
  std::erase(waiting_, &seq);
}

}  // namespace capstan
