#include "native/engine/step_times.h"

#include <algorithm>

namespace capstan {
namespace {

// Weight of the newest measurement. Chunks shrink faster than they grow: small ones are almost free, so a chunk that
// grew too quickly would exceed the limit again and again.
constexpr double kSlower = 0.5, kFaster = 0.25;
// A step has at most this many times the prefill tokens of the last measured one: small chunks cost almost nothing
// while the weights are read anyway, so their time says little about large ones.
constexpr int kGrowth = 2;

double average(double old_value, double new_value) {
  if (old_value == 0) return new_value;
  return old_value + (new_value > old_value ? kSlower : kFaster) * (new_value - old_value);
}

}  // namespace

double StepTimes::units(int first_position, int num_tokens) const {
  const double mean_context = first_position + 0.5 * num_tokens;
  return num_tokens * (1 + unit_per_context_ * mean_context);
}

void StepTimes::measure(const StepPlan& plan, double ms) {
  double prefill_units = 0, decode_units = 0;
  int num_prefill_tokens = 0;
  for (const ScheduledSequence& scheduled : plan.sequences) {
    const bool is_prefill = scheduled.num_tokens > 1 || !scheduled.samples;
    (is_prefill ? prefill_units : decode_units) += units(scheduled.first_position, scheduled.num_tokens);
    if (is_prefill) num_prefill_tokens += scheduled.num_tokens;
  }
  if (num_prefill_tokens == 0) {
    decode_ms_ = average(decode_ms_, ms);
    decode_units_ = average(decode_units_, decode_units);
    return;
  }
  num_measured_tokens_ = num_prefill_tokens;
  ms_per_unit_ = average(ms_per_unit_, std::max(ms - decode_ms(decode_units), 0.0) / prefill_units);
}

// Decodes beyond the measured number cost as much as prefill tokens, because they share one pass over the weights.
double StepTimes::decode_ms(double decode_units) const {
  if (decode_units == 0) return 0;
  return decode_ms_ + ms_per_unit_ * std::max(decode_units - decode_units_, 0.0);
}

double StepTimes::prefill_ms(int first_position, int num_tokens) const {
  return ms_per_unit_ * units(first_position, num_tokens);
}

int StepTimes::tokens_within(double ms, int first_position, int max_tokens) const {
  if (num_measured_tokens_ == 0) return max_tokens;
  int fitting = 1, too_many = std::min(max_tokens, kGrowth * num_measured_tokens_) + 1;
  while (too_many - fitting > 1) {
    const int middle = fitting + (too_many - fitting) / 2;
    (prefill_ms(first_position, middle) <= ms ? fitting : too_many) = middle;
  }
  return fitting;
}

}  // namespace capstan
