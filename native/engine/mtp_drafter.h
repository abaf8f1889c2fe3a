#pragma once
// Drafts by the model's own MTP head. Its layer has the block tables of a KV group of the decoder. The hidden state
// after the newest token that a block holds is stored with the block, so the head can follow any step of the decoder,
// also the first one after a prefix-cache hit.
//
// The tokens of a draft are those that the head draws with the parameters and the noise of its place: where its logits
// are those of the decoder, the draft holds.
#include <span>
#include <vector>

#include "native/engine/batch.h"
#include "native/engine/block_manager.h"
#include "native/engine/step_runner.h"

namespace capstan {

class MtpDrafter {
 public:
  // `kv_group`: of the head's layer. The runner has depth 1.
  MtpDrafter(int kv_group, const BlockManager& blocks, StepRunner& runner);

  // Fills what the head needs to follow a step, after its model inputs.
  void build_inputs(Batch& batch);
  // Call when a step is settled.
  void settled(const Batch& batch);

  struct Wish {
    size_t idx = 0;  // of a sequence in the plan
    int count = 0;   // of drafts
  };
  // Appends at most the wanted drafts to the sequences, which have blocks for them. A draft that would end its sequence
  // is left out: it needs none to be drawn.
  void draft(const StepPlan& plan, std::span<const Wish> wishes);

 private:
  // A sequence that gets more drafts.
  struct Live {
    Sequence* seq = nullptr;
    int count = 0;
    int32_t row = 0;  // in the step before
  };

  int32_t block_at(const Sequence& seq, int position) const;
  void build_step(int num_drafts);
  void take_drafts();

  size_t kv_group_;
  const BlockManager& blocks_;
  StepRunner& runner_;
  std::vector<StoredHidden> pending_;  // rows of the last step of the decoder
  std::vector<Live> live_;
  Batch batch_;
};

}  // namespace capstan
