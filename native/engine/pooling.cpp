#include <algorithm>
#include <cmath>
#include <limits>

#include "native/engine/batch.h"

namespace capstan {
namespace {

// Returns the rows of a scheduled sequence that are pooled. Row 0 is the first row of the sequence in the step.
std::pair<int, int> pooled_rows(const ScheduledSequence& scheduled, Pooling pooling) {
  const int last = scheduled.num_tokens - 1;
  if (pooling == Pooling::kFirst) return {0, scheduled.first_position == 0 ? 1 : 0};
  if (pooling == Pooling::kLast) return {last, scheduled.samples ? 1 : 0};
  return {0, scheduled.num_tokens};
}

// Returns what the sum over a sequence of `n` tokens is divided by.
float divisor_of(Pooling pooling, double n) {
  switch (pooling) {
    case Pooling::kMean:
      return static_cast<float>(n);
    case Pooling::kWeightedMean:
      return static_cast<float>(n * (n + 1) / 2);
    case Pooling::kRootMean:
      return static_cast<float>(std::sqrt(n));
    default:
      return 1;
  }
}

}  // namespace

void build_pool_rows(Batch& batch, Pooling pooling) {
  batch.pool_rows.clear();
  int first_row = 0;
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    Sequence& seq = *scheduled.seq;
    if (scheduled.first_position == 0)
      std::ranges::fill(seq.pooled_sum, pooling == Pooling::kMax ? -std::numeric_limits<float>::infinity() : 0.0f);
    const auto [begin, count] = pooled_rows(scheduled, pooling);
    PoolRow row;
    row.first_row = first_row + begin;
    row.num_rows = count;
    row.first_weight = scheduled.first_position + 1;
    row.sum = seq.pooled_sum;
    if (scheduled.samples) {
      row.result = seq.pooled;
      row.divisor = divisor_of(pooling, seq.num_prompt_tokens);
    }
    if (count > 0 || scheduled.samples) batch.pool_rows.push_back(row);
    first_row += scheduled.num_tokens;
  }
}

}  // namespace capstan
