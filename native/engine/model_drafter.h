#pragma once
// Drafts by a draft model: a smaller model with the same vocabulary. Its layers have KV groups of the block manager, so
// its keys and values share the blocks, the prefix cache and the preemptions of the sequences.
//
// The draft model follows the tokens of a sequence some steps later (Sequence::num_followed_tokens): it reads several
// tokens in one step, which costs little more than one. It catches up before it drafts, and always before a block is
// full, because a full block enters the prefix cache.
#include "native/engine/step_drafter.h"

namespace capstan {

// The most tokens that the draft model is behind.
constexpr int kMaxFollowLag = 16;

struct DraftModelOptions {
  std::shared_ptr<StepRunner> runner;  // null = no draft model
  size_t num_kv_groups = 0;            // the last ones of the block manager
  int64_t vocab_size = 0;
  int max_model_len = 0;   // its own
  int max_num_tokens = 0;  // rows of a step
  int max_num_seqs = 0;    // sequences of a step
  double draft_cost = 0;   // of DraftPacer
};

class ModelDrafter final : public StepDrafter {
 public:
  ModelDrafter(const SpeculationOptions& speculation, const DraftModelOptions& options, const BlockManager& blocks,
               MaskGate& gate);

  // The model has no drafts beyond its context.
  bool can_draft(const ScheduledSequence& scheduled) const override;
  void follow(Batch& batch) override;

 private:
  int first_position(const Sequence& seq) const override { return seq.num_followed_tokens; }
  void complete_step(Batch& batch, std::span<const Live> live, int num_drafts) override;
  void follow_sequence(const ScheduledSequence& scheduled);
  void run_followed();
  void fill_inputs(Batch& batch) const;

  const DraftModelOptions options_;
  Batch followed_;
};

}  // namespace capstan
