#include "native/engine/mtp_drafter.h"

#include "native/base/check.h"

namespace capstan {

MtpDrafter::MtpDrafter(const SpeculationOptions& speculation, int kv_group, const BlockManager& blocks,
                       StepRunner& runner, MaskGate& gate)
    : StepDrafter(speculation, kMtpDraftCost, {0, blocks.num_groups()}, blocks, runner, gate),
      kv_group_(static_cast<size_t>(kv_group)) {
  batch().is_of_head = true;
}

int32_t MtpDrafter::block_at(const Sequence& seq, int position) const {
  return seq.block_tables[kv_group_].block_ids[static_cast<size_t>(position / blocks_.block_size())];
}

// Fills what the head needs to run with the decoder.
void MtpDrafter::follow(Batch& batch) {
  batch.hidden_before.clear();
  batch.stored.clear();
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    const Sequence& seq = *scheduled.seq;
    for (int i = 0; i < scheduled.num_tokens; ++i) {
      const int position = scheduled.first_position + i;
      const auto row = static_cast<int32_t>(batch.hidden_before.size());
      int32_t before = row - 1;
      if (i == 0) before = position == 0 ? kNoHidden : stored_hidden(block_at(seq, position - 1));
      batch.hidden_before.push_back(before);
      if ((position + 1) % blocks_.block_size() == 0) batch.stored.push_back({row, block_at(seq, position)});
    }
  }
  batch.stored_before.swap(pending_);
  pending_.clear();
}

void MtpDrafter::settled(const Batch& batch) {
  pending_.clear();
  for (size_t i = 0; i < batch.plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = batch.plan.sequences[i];
    const Sequence& seq = *scheduled.seq;
    if (seq.status != SequenceStatus::kRunning || seq.epoch != scheduled.epoch) continue;
    const int last = seq.num_computed_tokens - 1;
    CAPSTAN_CHECK(last >= scheduled.first_position && last < scheduled.first_position + scheduled.num_tokens);
    pending_.push_back({batch.cu_seqlens_q[i] + last - scheduled.first_position, block_at(seq, last)});
  }
}

void MtpDrafter::complete_step(Batch& batch, std::span<const Live> live, int num_drafts) {
  batch.hidden_before.clear();
  for (size_t i = 0; i < live.size(); ++i) {
    const int32_t stored = stored_hidden(block_at(live[i].seq(), batch.plan.sequences[i].first_position - 1));
    batch.hidden_before.push_back(num_drafts == 0 ? stored : live[i].last_row);
  }
  build_model_inputs(batch, blocks_.block_size(), kv_groups_, false);
  // The head reads no states. An adapter updates its embedding and its LM head, which are those of the model.
  if (blocks_.states().has_slots()) {
    batch.state_reads.assign(live.size(), 0);
    batch.state_writes.assign(live.size(), -1);
  }
  batch.stored_before.swap(pending_);
  pending_.clear();
}

}  // namespace capstan
