// The drafts of a planned step.
#include <algorithm>

#include "native/engine/engine.h"
#include "native/engine/grammar_drafter.h"
#include "native/engine/mtp_drafter.h"

namespace capstan {

std::unique_ptr<Drafter> Engine::make_drafter() {
  const SpeculationOptions& speculation = options_.limits.speculation;
  const BlockManager& blocks = scheduler_.blocks();
  if (speculation.num_tokens == 0) return nullptr;
  if (options_.draft_model.runner)
    return std::make_unique<ModelDrafter>(speculation, options_.draft_model, blocks, mask_gate_);
  if (options_.mtp_kv_group >= 0)
    return std::make_unique<MtpDrafter>(speculation, options_.mtp_kv_group, blocks, *runner_, mask_gate_);
  if (speculation.from_grammar) return std::make_unique<GrammarDrafter>(speculation, vocabulary_, mask_gate_);
  return std::make_unique<NgramDrafter>(speculation, mask_gate_);
}

// Adds drafts to the decodes of a planned step.
void Engine::speculate(StepPlan& plan) {
  if (scheduler_.draft_capacity(plan) == 0) return;
  const PartScope part(options_.profile.get(), StepPart::kDrafts);
  const auto wants_drafts = [&](const ScheduledSequence& scheduled) {
    return scheduled.samples && scheduled.num_tokens == 1 && scheduled.seq->num_in_flight == 0 &&
           scheduled.seq->num_wanted_drafts() > 0 && drafter_->can_draft(scheduled);
  };
  wishes_.clear();
  for (size_t i = 0; i < plan.sequences.size(); ++i)
    if (wants_drafts(plan.sequences[i])) wishes_.push_back({i, 0});
  auto num_left = static_cast<int>(wishes_.size());
  for (Drafter::Wish& wish : wishes_) {
    // The first drafts of all sequences are worth more than the last ones of one.
    const int share = (scheduler_.draft_capacity(plan) + num_left - 1) / num_left;
    --num_left;
    const int wanted = plan.sequences[wish.idx].seq->num_wanted_drafts();
    wish.count = scheduler_.plan_drafts(plan, wish.idx, std::min(share, wanted));
  }
  std::erase_if(wishes_, [](const Drafter::Wish& wish) { return wish.count <= 0; });
  if (wishes_.empty()) return;
  drafter_->draft(plan, wishes_);
  // Gives the room of drafts that were left out back.
  for (const Drafter::Wish& wish : wishes_)
    scheduler_.cut_drafts(plan, wish.idx, wish.count - static_cast<int>(plan.sequences[wish.idx].seq->drafts.size()));
}

}  // namespace capstan
