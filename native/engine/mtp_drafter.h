#pragma once
// Drafts by the model's own MTP head. Its layer has the block tables of a KV group of the decoder. The hidden state
// after the newest token that a block holds is stored with the block, so the head can follow any step of the decoder,
// also the first one after a prefix-cache hit.
#include <vector>

#include "native/engine/step_drafter.h"

namespace capstan {

class MtpDrafter final : public StepDrafter {
 public:
  // `kv_group`: of the head's layer.
  MtpDrafter(const SpeculationOptions& speculation, int kv_group, const BlockManager& blocks, StepRunner& runner,
             MaskGate& gate);

  // The head needs a hidden state before the newest token.
  bool can_draft(const ScheduledSequence& scheduled) const override { return scheduled.first_position > 0; }
  void follow(Batch& batch) override;
  void settled(const Batch& batch) override;

 private:
  int first_position(const Sequence& seq) const override { return seq.num_tokens() - 1; }
  void complete_step(Batch& batch, std::span<const Live> live, int num_drafts) override;
  int32_t block_at(const Sequence& seq, int position) const;

  const size_t kv_group_;
  std::vector<StoredHidden> pending_;  // rows of the last step of the decoder
};

}  // namespace capstan
