#include "native/engine/drafter.h"

#include <algorithm>

namespace capstan {

bool Drafter::add_draft(DraftTrial& trial, int32_t token_id) {
  Sequence& seq = trial.seq;
  if (std::ranges::find(seq.ending_ids, token_id) != seq.ending_ids.end()) return false;
  seq.drafts.emplace_back().token_id = token_id;
  if (gate_.accept_draft(trial)) return true;
  seq.drafts.pop_back();
  return false;
}

void NgramDrafter::draft(const StepPlan& plan, std::span<const Wish> wishes) {
  for (const Wish& wish : wishes) {
    Sequence& seq = *plan.sequences[wish.idx].seq;
    proposal_.clear();
    seq.ngrams->propose(seq.token_ids, wish.count, proposal_);
    seq.drafts.clear();
    DraftTrial trial(seq);
    for (const int32_t token_id : proposal_)
      if (!add_draft(trial, token_id)) break;
  }
}

}  // namespace capstan
