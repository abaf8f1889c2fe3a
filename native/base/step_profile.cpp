#include "native/base/step_profile.h"

#include <utility>

namespace capstan {

const char* step_part_name(StepPart part) {
  static constexpr std::array<const char*, kNumStepParts> kNames = {
      "waiting",
      "requests",
      "scheduler",
      "drafts",
      "inputs of the model",
      "embedding",
      "inputs per layer",
      "norms and packing of inputs",
      "QKV product",
      "rotary positions and KV cache",
      "attention",
      "recurrent mixer",
      "output product",
      "gate and up product, activation",
      "down product",
      "router",
      "experts",
      "adapters",
      "residual sums",
      "MTP head",
      "LM head",
      "sampling",
      "pooling",
      "rest of the model",
      "grammar masks",
      "text and stop conditions",
      "events to JavaScript",
      "rest",
  };
  return kNames[static_cast<size_t>(part)];
}

const char* step_kind_name(StepKind kind) {
  static constexpr std::array<const char*, kNumStepKinds> kNames = {"decode", "prefill", "mixed"};
  return kNames[static_cast<size_t>(kind)];
}

const char* math_kind_name(MathKind kind) {
  static constexpr std::array<const char*, kNumMathKinds> kNames = {"f32", "bf16", "int8"};
  return kNames[static_cast<size_t>(kind)];
}

void StepWork::add(const StepWork& other) {
  bytes += other.bytes;
  for (size_t kind = 0; kind < ops.size(); ++kind)
    ops[kind] += other.ops[kind];
}

void StepProfile::begin() {
  parts_ = {};
  part_ = StepPart::kOther;
  last_ns_ = step_ns_ = now_ns();
}

void StepProfile::switch_to(StepPart part) {
  const int64_t now = now_ns();
  current().ns += now - std::exchange(last_ns_, now);
  part_ = part;
}

StepPart StepProfile::enter(StepPart part) {
  const StepPart before = part_;
  if (before != StepPart::kDrafts) switch_to(part);
  return before;
}

void StepProfile::leave(StepPart before) {
  if (before != StepPart::kDrafts) switch_to(before);
}

void StepProfile::end_step(StepKind kind, int64_t num_tokens) {
  switch_to(part_);
  StepKindTotals& totals = totals_.kinds[static_cast<size_t>(kind)];
  const int64_t idle_ns = std::exchange(parts_[static_cast<size_t>(StepPart::kIdle)], {}).ns;
  totals_.idle_ns += idle_ns;
  ++totals.num_steps;
  totals.num_tokens += num_tokens;
  totals.ns += last_ns_ - std::exchange(step_ns_, last_ns_) - idle_ns;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const StepPartTotals part = std::exchange(parts_[i], {});
    totals.parts[i].ns += part.ns;
    totals.parts[i].wait_ns += part.wait_ns;
    totals.parts[i].work.add(part.work);
  }
}

}  // namespace capstan
