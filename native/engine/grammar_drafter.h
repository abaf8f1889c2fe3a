#pragma once
// Proposes the text that a grammar leaves no choice about, such as the keys of a JSON schema.
#include <memory>
#include <span>

#include "native/engine/drafter.h"

namespace capstan {

class GrammarDrafter final : public Drafter {
 public:
  GrammarDrafter(const SpeculationOptions& options, std::shared_ptr<const Vocabulary> vocabulary, MaskGate& gate)
      : Drafter(gate), num_tokens_(options.num_tokens), vocabulary_(std::move(vocabulary)) {}

  void begin(Sequence& seq) const override;
  bool can_draft(const ScheduledSequence& scheduled) const override;
  void draft(const StepPlan& plan, std::span<const Wish> wishes) override;

 private:
  const int num_tokens_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
};

// Returns the longest token of a mask whose other tokens are all beginnings of it, or -1. They write the same text, and
// models prefer the longest token.
int32_t forced_token(std::span<const uint32_t> mask, const Vocabulary& vocabulary);

}  // namespace capstan
