#include "native/engine/step_times.h"

#include <algorithm>

namespace capstan {
namespace {

// Weight of the newest measurement of a prefill token. Chunks shrink faster than they grow: small ones are almost free,
// so a chunk that grew too quickly would exceed the limit again and again.
constexpr double kSlower = 0.5, kFaster = 0.25;
// The same for a step without prefill. An estimate that is too low only makes chunks smaller; one that is too high
// makes the prefill look cheap. So one slow step hardly counts.
constexpr double kDecodeSlower = 0.1, kDecodeFaster = 0.5, kOutlier = 2;
// The share of a step that decodes take, while it is not known.
constexpr double kUnknownShare = 0.25;
// A step has at most this many times the prefill tokens of the last measured one: small chunks cost almost nothing
// while the weights are read anyway, so their time says little about large ones.
constexpr int kGrowth = 2;

double average(double old_value, double new_value, double if_more, double if_less) {
  if (old_value == 0) return new_value;
  return old_value + (new_value > old_value ? if_more : if_less) * (new_value - old_value);
}

}  // namespace

double StepTimes::units(int first_position, int num_tokens) const {
  const double mean_context = first_position + 0.5 * num_tokens;
  double per_token = 1;
  for (const auto& [window, work] : context_work_)
    per_token += work * (window == 0 ? mean_context : std::min<double>(mean_context, window));
  return num_tokens * per_token;
}

void StepTimes::measure(const StepPlan& plan, double ms) {
  double prefill_units = 0, decode_units = 0;
  int num_prefill_tokens = 0;
  for (const ScheduledSequence& scheduled : plan.sequences) {
    const bool is_prefill = scheduled.is_prefill();
    (is_prefill ? prefill_units : decode_units) += units(scheduled.first_position, scheduled.num_tokens);
    if (is_prefill) num_prefill_tokens += scheduled.num_tokens;
  }
  const double expected_ms = decode_ms(decode_units);
  if (num_prefill_tokens == 0) {
    if (expected_ms > 0) ms = std::min(ms, kOutlier * expected_ms);
    decode_ms_ = average(decode_ms_, ms, kDecodeSlower, kDecodeFaster);
    decode_units_ = average(decode_units_, decode_units, kDecodeSlower, kDecodeFaster);
    return;
  }
  num_measured_tokens_ = num_prefill_tokens;
  // Decodes that would take longer than the whole step were measured wrongly, for example in the first step of all.
  if (expected_ms > ms) decode_ms_ *= kUnknownShare * ms / expected_ms;
  ms_per_unit_ = average(ms_per_unit_, std::max(ms - decode_ms(decode_units), 0.0) / prefill_units, kSlower, kFaster);
}

// Decodes beyond the measured number cost as much as prefill tokens, because they share one pass over the weights.
// Fewer decodes cost at least their share.
double StepTimes::decode_ms(double decode_units) const {
  if (decode_units_ == 0) return 0;
  if (decode_units < decode_units_) return decode_ms_ * decode_units / decode_units_;
  return decode_ms_ + ms_per_unit_ * (decode_units - decode_units_);
}

double StepTimes::prefill_ms(int first_position, int num_tokens) const {
  return ms_per_unit_ * units(first_position, num_tokens);
}

int StepTimes::tokens_within(double ms, int first_position, int max_tokens, int num_planned) const {
  if (num_measured_tokens_ == 0) return max_tokens;
  int fitting = 1, too_many = std::min(max_tokens, kGrowth * num_measured_tokens_ - num_planned) + 1;
  while (too_many - fitting > 1) {
    const int middle = fitting + (too_many - fitting) / 2;
    (prefill_ms(first_position, middle) <= ms ? fitting : too_many) = middle;
  }
  return fitting;
}

}  // namespace capstan
