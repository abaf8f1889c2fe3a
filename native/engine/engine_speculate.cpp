// The drafts of a planned step, by prompt look-up or by the model's MTP head.
#include <algorithm>

#include "native/engine/engine.h"

namespace capstan {

std::unique_ptr<MtpDrafter> Engine::make_mtp_drafter() const {
  if (options_.mtp_kv_group < 0) return nullptr;
  return std::make_unique<MtpDrafter>(options_.mtp_kv_group, scheduler_.blocks(), *runner_);
}

// Adds drafts to the decodes of a planned step.
void Engine::speculate(StepPlan& plan) {
  if (scheduler_.draft_capacity(plan) == 0) return;
  // The head needs a hidden state before the newest token.
  const int first_position = mtp_drafter_ ? 1 : 0;
  const auto wants_drafts = [&](const ScheduledSequence& scheduled) {
    return scheduled.samples && scheduled.num_tokens == 1 && scheduled.seq->num_in_flight == 0 &&
           scheduled.first_position >= first_position && scheduled.seq->num_wanted_drafts() > 0;
  };
  auto num_left = static_cast<int>(std::ranges::count_if(plan.sequences, wants_drafts));
  wishes_.clear();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    if (!wants_drafts(plan.sequences[i])) continue;
    Sequence& seq = *plan.sequences[i].seq;
    // The first drafts of all sequences are worth more than the last ones of one.
    const int share = (scheduler_.draft_capacity(plan) + num_left - 1) / num_left;
    --num_left;
    const int count = scheduler_.plan_drafts(plan, i, std::min(share, seq.num_wanted_drafts()));
    if (count == 0) continue;
    wishes_.push_back({i, count});
    if (mtp_drafter_) continue;
    propose(seq, count);
    keep_drafts(plan, wishes_.back());
  }
  if (!mtp_drafter_ || wishes_.empty()) return;
  // The head drafts for all sequences at once.
  mtp_drafter_->draft(plan, wishes_);
  for (const MtpDrafter::Wish& wish : wishes_)
    keep_drafts(plan, wish);
}

// Keeps the drafts that the grammar allows, and gives the room of the others back.
void Engine::keep_drafts(StepPlan& plan, const MtpDrafter::Wish& wish) {
  Sequence& seq = *plan.sequences[wish.idx].seq;
  mask_gate_.prepare_drafts(seq);
  scheduler_.cut_drafts(plan, wish.idx, wish.count - static_cast<int>(seq.drafts.size()));
}

// Proposes up to `count` drafts. One that would end the sequence is left out: it needs no draft to be drawn.
void Engine::propose(Sequence& seq, int count) {
  proposal_.clear();
  seq.drafter->propose(seq.token_ids, count, proposal_);
  const auto ends = [&](int32_t id) { return std::ranges::find(seq.ending_ids, id) != seq.ending_ids.end(); };
  const auto num_kept = std::ranges::find_if(proposal_, ends) - proposal_.begin();
  seq.drafts.assign(static_cast<size_t>(num_kept), {});
  for (size_t i = 0; i < seq.drafts.size(); ++i)
    seq.drafts[i].token_id = proposal_[i];
}

}  // namespace capstan
