#include "native/engine/model_drafter.h"

#include <algorithm>

#include "native/base/check.h"

namespace capstan {

ModelDrafter::ModelDrafter(const SpeculationOptions& speculation, const DraftModelOptions& options,
                           const BlockManager& blocks, MaskGate& gate)
    : StepDrafter(speculation, options.draft_cost, {blocks.num_groups() - options.num_kv_groups, options.num_kv_groups},
                  blocks, *options.runner, gate),
      options_(options) {}

bool ModelDrafter::can_draft(const ScheduledSequence& scheduled) const {
  return scheduled.first_position + 1 + max_drafts_ <= options_.max_model_len;
}

void ModelDrafter::complete_step(Batch& batch, std::span<const Live> live, int num_drafts) {
  fill_inputs(batch);
  for (const Live& one : live)
    one.seq().num_followed_tokens = one.seq().num_tokens() + num_drafts;
}

void ModelDrafter::fill_inputs(Batch& batch) const {
  build_model_inputs(batch, blocks_.block_size(), kv_groups_, false);
  // Adapters change the target only.
  batch.adapters.clear();
  batch.adapter_indices.clear();
  // A prompt may have ids without text, which a smaller embedding lacks.
  for (int32_t& id : batch.input_ids)
    if (id >= options_.vocab_size) id = 0;
}

void ModelDrafter::follow(Batch& batch) {
  followed_.plan.clear();
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    Sequence& seq = *scheduled.seq;
    const int end = scheduled.first_position + scheduled.num_tokens;
    const int num_published = end / blocks_.block_size() * blocks_.block_size();
    if (num_published > seq.num_followed_tokens || end - seq.num_followed_tokens >= kMaxFollowLag)
      follow_sequence(scheduled);
  }
  run_followed();
}

// Adds the tokens that the model is behind, and runs the steps that are full.
void ModelDrafter::follow_sequence(const ScheduledSequence& scheduled) {
  Sequence& seq = *scheduled.seq;
  const int end = scheduled.first_position + scheduled.num_tokens;
  const int last = std::min(end, options_.max_model_len);
  while (seq.num_followed_tokens < last) {
    const int num_left = options_.max_num_tokens - followed_.plan.num_tokens;
    if (num_left == 0 || static_cast<int>(followed_.plan.sequences.size()) == options_.max_num_seqs) {
      run_followed();
      continue;
    }
    ScheduledSequence part;
    part.seq = &seq;
    part.first_position = seq.num_followed_tokens;
    part.num_tokens = std::min(num_left, last - part.first_position);
    part.num_drafts = scheduled.num_drafts;
    followed_.plan.sequences.push_back(part);
    followed_.plan.num_tokens += part.num_tokens;
    seq.num_followed_tokens += part.num_tokens;
  }
  seq.num_followed_tokens = end;
}

void ModelDrafter::run_followed() {
  if (followed_.plan.sequences.empty()) return;
  fill_inputs(followed_);
  run(followed_);
  followed_.plan.clear();
}

}  // namespace capstan
