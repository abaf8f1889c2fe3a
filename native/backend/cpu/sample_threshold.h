#pragma once
// Top-k and top-p as a threshold, found by counting passes over the row instead of sorting it.
#include "native/backend/cpu/sample_row.h"

namespace capstan {

// The worst rank that is kept: scores above `score`, and scores equal to it with an id up to `last_id`.
struct Threshold {
  float score = std::numeric_limits<float>::lowest();
  int32_t last_id = kLastId;

  bool keeps(float other, int32_t id) const { return other > score || (other == score && id <= last_id); }
};

// Returns the threshold that keeps fewer.
inline Threshold tighter(const Threshold& a, const Threshold& b) {
  if (a.score != b.score) return a.score > b.score ? a : b;
  return a.last_id < b.last_id ? a : b;
}

// Both keep the best scores first, and the lowest ids first among equal scores. The row must be the last one scanned,
// and not masked.

// Keeps the `k` best scores, 0 < k. Keeps all that are not masked when there are fewer.
Threshold find_top_k(const RowThreads& threads, const ScoreRow& row, int64_t k);
// Of the scores that `among` keeps, at most `num_among` if it has a last_id, keeps the smallest number whose
// probability reaches top_p < 1, at least one.
Threshold find_top_p(const RowThreads& threads, const ScoreRow& row, float top_p, const Threshold& among,
                     int64_t num_among);

// Returns the scores that the threshold keeps, the best first.
std::vector<Candidate> list_kept(const RowThreads& threads, const ScoreRow& row, const Threshold& threshold);

}  // namespace capstan
