#pragma once
// What proposes the next tokens of sequences: prompt look-up, the grammar, the MTP head of the model, or a draft model.
// Drafts change no output, only its speed.
#include <memory>
#include <span>

#include "native/engine/batch.h"
#include "native/engine/mask_gate.h"
#include "native/engine/ngram_index.h"

namespace capstan {

class Drafter {
 public:
  struct Wish {
    size_t idx = 0;  // of a sequence in the plan
    int count = 0;   // of drafts
  };

  explicit Drafter(MaskGate& gate) : gate_(gate) {}
  virtual ~Drafter() = default;

  // Prepares a sequence that is submitted. Callable from any thread.
  virtual void begin(Sequence& seq) const = 0;
  // Whether a decode of the planned step may get drafts.
  virtual bool can_draft(const ScheduledSequence& /*scheduled*/) const { return true; }
  // Gives the sequences at most the wanted drafts. They have blocks for them.
  virtual void draft(const StepPlan& plan, std::span<const Wish> wishes) = 0;
  // Call with each step before its launch, when its model inputs are filled.
  virtual void follow(Batch& /*batch*/) {}
  // Call when a step is settled.
  virtual void settled(const Batch& /*batch*/) {}

 protected:
  // Appends a draft and sets what may follow it. Returns false, with nothing appended, for a draft that would end the
  // sequence, because it needs no draft to be drawn, and for one that MaskGate::accept_draft refuses.
  bool add_draft(DraftTrial& trial, int32_t token_id);

 private:
  MaskGate& gate_;
};

// Proposes what followed the last tokens earlier in the same sequence.
class NgramDrafter final : public Drafter {
 public:
  NgramDrafter(const SpeculationOptions& options, MaskGate& gate) : Drafter(gate), options_(options) {}

  void begin(Sequence& seq) const override { seq.ngrams.emplace(options_); }
  void draft(const StepPlan& plan, std::span<const Wish> wishes) override;

 private:
  SpeculationOptions options_;
  std::vector<int32_t> proposal_;
};

}  // namespace capstan
