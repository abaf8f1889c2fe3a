#pragma once
// Estimates the time of prefill chunks from measured steps, so that a long prompt does not delay running streams.
// Integers and milliseconds only: no tensor, device or model header.
#include <map>
#include <utility>

#include "native/engine/step_plan.h"

namespace capstan {

// The work of a chunk in units: one unit is the work of one token without context. Attention adds the units of
// `context_work` for each token of context that is in the window. Window 0 = all are.
class StepTimes {
 public:
  explicit StepTimes(std::map<int, double> context_work = {}) : context_work_(std::move(context_work)) {}

  // Call with the time of each step, in milliseconds.
  void measure(const StepPlan& plan, double ms);
  // Returns how long the computation of `num_tokens` tokens from `first_position` on lengthens a step of decodes. 0
  // before the first measurement.
  double prefill_ms(int first_position, int num_tokens) const;
  // Returns the largest chunk from `first_position` on that lengthens the step by at most `ms`: 1 to `max_tokens`. The
  // step has `num_planned` prefill tokens already.
  int tokens_within(double ms, int first_position, int max_tokens, int num_planned = 0) const;

  // Returns the time of the last steps without prefill; 0 = not measured yet.
  double decode_ms() const { return decode_ms_; }

 private:
  double units(int first_position, int num_tokens) const;
  double decode_ms(double decode_units) const;

  std::map<int, double> context_work_;  // by window
  // Averages over the last steps without prefill.
  double decode_ms_ = 0, decode_units_ = 0;
  double ms_per_unit_ = 0;       // of prefill
  int num_measured_tokens_ = 0;  // prefill tokens of the last step that had any; 0 = nothing is measured
};

}  // namespace capstan
