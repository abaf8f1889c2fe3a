#include <algorithm>

#include "native/engine/batch.h"

namespace capstan {
namespace {

// Returns the rows of a scheduled sequence that are pooled. Row 0 is the first row of the sequence in the step.
std::pair<int, int> pooled_rows(const ScheduledSequence& scheduled, Pooling pooling) {
  const int last = scheduled.num_tokens - 1;
  if (pooling == Pooling::kMean) return {0, scheduled.num_tokens};
  if (pooling == Pooling::kFirst) return {0, scheduled.first_position == 0 ? 1 : 0};
  return {last, scheduled.samples ? 1 : 0};
}

}  // namespace

void build_pool_rows(Batch& batch, Pooling pooling) {
  batch.pool_rows.clear();
  int first_row = 0;
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    Sequence& seq = *scheduled.seq;
    if (scheduled.first_position == 0) std::ranges::fill(seq.pooled_sum, 0.0f);
    const auto [begin, count] = pooled_rows(scheduled, pooling);
    PoolRow row;
    row.first_row = first_row + begin;
    row.num_rows = count;
    row.sum = seq.pooled_sum;
    if (scheduled.samples) {
      row.result = seq.pooled;
      row.count = pooling == Pooling::kMean ? seq.num_prompt_tokens : 1;
    }
    if (count > 0 || scheduled.samples) batch.pool_rows.push_back(row);
    first_row += scheduled.num_tokens;
  }
}

}  // namespace capstan
