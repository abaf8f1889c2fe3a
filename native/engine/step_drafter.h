#pragma once
// Drafts that are drawn from logits, one step of a runner per draft. A draft is drawn with the parameters and the noise
// of its place: where the logits are those of the decoder, the draft holds.
#include <optional>
#include <vector>

#include "native/engine/block_manager.h"
#include "native/engine/drafter.h"
#include "native/engine/step_runner.h"

namespace capstan {

class StepDrafter : public Drafter {
 public:
  // `speculation`: its num_tokens and max_step_tokens count. `draft_cost`: of DraftPacer. `kv_groups`: those that the
  // steps use. The runner has depth 1.
  StepDrafter(const SpeculationOptions& speculation, double draft_cost, KvGroupRange kv_groups,
              const BlockManager& blocks, StepRunner& runner, MaskGate& gate);

  void begin(Sequence& seq) const override { seq.pacer.emplace(max_drafts_, draft_cost_); }
  void draft(const StepPlan& plan, std::span<const Wish> wishes) override;

 protected:
  // A sequence that gets more drafts.
  struct Live {
    DraftTrial* trial;
    int count;
    int32_t row = 0;       // in the step, of the newest token or draft
    int32_t last_row = 0;  // in the step before
    Sequence& seq() const { return trial->seq; }
  };

  // Returns the first position of the step for the first draft. It ends with the newest token.
  virtual int first_position(const Sequence& seq) const = 0;
  // Fills what else a step for the drafts after the first `num_drafts` needs.
  virtual void complete_step(Batch& batch, std::span<const Live> live, int num_drafts) = 0;

  // Runs a step whose plan and rows are filled.
  void run(Batch& batch);
  Batch& batch() { return batch_; }

  const int max_drafts_;
  const KvGroupRange kv_groups_;
  const BlockManager& blocks_;

 private:
  void build_step(int num_drafts);
  void take_drafts();
  void end_trials();

  const double draft_cost_;
  StepRunner& runner_;
  std::vector<std::optional<DraftTrial>> trials_;  // by wish; none between two calls of draft
  std::vector<Live> live_;
  Batch batch_;
};

}  // namespace capstan
