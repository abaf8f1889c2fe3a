#include "native/engine/step_drafter.h"

#include <algorithm>

#include "native/base/check.h"

namespace capstan {

StepDrafter::StepDrafter(const SpeculationOptions& speculation, double draft_cost, KvGroupRange kv_groups,
                         const BlockManager& blocks, StepRunner& runner, MaskGate& gate)
    : Drafter(gate),
      max_drafts_(speculation.num_tokens),
      kv_groups_(kv_groups),
      blocks_(blocks),
      draft_cost_(draft_cost),
      runner_(runner),
      trials_(static_cast<size_t>(speculation.max_step_tokens)) {
  CAPSTAN_CHECK(runner.depth() == 1);
}

void StepDrafter::draft(const StepPlan& plan, std::span<const Wish> wishes) {
  // A trial writes to its sequence at its end, and a step that throws ends the engine's sequences.
  const struct End {
    StepDrafter& drafter;
    ~End() { drafter.end_trials(); }
  } end{*this};
  CAPSTAN_CHECK(wishes.size() <= trials_.size());
  for (size_t i = 0; i < wishes.size(); ++i) {
    Sequence& seq = *plan.sequences[wishes[i].idx].seq;
    seq.drafts.clear();
    live_.push_back({&trials_[i].emplace(seq), wishes[i].count});
  }
  for (int num_drafts = 0; !live_.empty(); ++num_drafts) {
    build_step(num_drafts);
    run(batch_);
    take_drafts();
  }
}

// The step that ends with the newest token of each sequence, or with its newest draft.
void StepDrafter::build_step(int num_drafts) {
  batch_.plan.clear();
  batch_.logits_rows.clear();
  batch_.sample_rows.clear();
  int32_t num_rows = 0;
  for (Live& live : live_) {
    Sequence& seq = live.seq();
    const int end = seq.num_tokens() + num_drafts;
    ScheduledSequence scheduled;
    scheduled.seq = &seq;
    scheduled.first_position = num_drafts == 0 ? first_position(seq) : end - 1;
    scheduled.num_tokens = end - scheduled.first_position;
    scheduled.num_drafts = std::min(num_drafts, 1);
    batch_.plan.sequences.push_back(scheduled);
    num_rows += scheduled.num_tokens;
    live.last_row = live.row;
    live.row = num_rows - 1;
    batch_.logits_rows.push_back(live.row);
    batch_.sample_rows.push_back(make_draft_row(seq));
  }
  complete_step(batch_, live_, num_drafts);
}

void StepDrafter::run(Batch& batch) {
  batch.results.resize(batch.sample_rows.size());
  runner_.launch(batch);
  runner_.collect(batch);
}

void StepDrafter::take_drafts() {
  for (size_t i = 0; i < live_.size(); ++i) {
    Live& live = live_[i];
    const SampleResult& result = batch_.results[i];
    if (!result.has_numeric_error && add_draft(*live.trial, result.token_id)) continue;
    live.count = 0;
    live.seq().pacer->refuse();
  }
  std::erase_if(live_, [](const Live& live) { return static_cast<int>(live.seq().drafts.size()) >= live.count; });
}

void StepDrafter::end_trials() {
  live_.clear();
  for (std::optional<DraftTrial>& trial : trials_)
    trial.reset();
}

}  // namespace capstan
