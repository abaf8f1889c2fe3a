#pragma once
// One row of scores and the memory to work on it. The row is cut into chunks of kSampleChunk ids. One thread or all
// threads of a team work on them. Results of a chunk are combined in the order of the chunks, or exactly, so that the
// number of threads changes no bit.
#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/memory.h"
#include "native/backend/cpu/team.h"

namespace capstan {

constexpr int32_t kLastId = std::numeric_limits<int32_t>::max();
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// The memory of one thread, allocated once. Rows that all threads share use the row buffers of the first one.
struct alignas(64) SampleScratch {
  explicit SampleScratch(int64_t vocab_size);

  // Of a row.
  HugeBuffer scores;                  // (vocab_size) floats
  std::vector<float> block_max;       // (ceil(vocab_size / kMaxBlock))
  std::vector<float> sorted_max;      // the same size
  std::vector<double> chunk_sums;     // (ceil(vocab_size / kSampleChunk))
  std::vector<int64_t> chunk_counts;  // the same size

  // Of a thread.
  std::vector<uint64_t> digits;  // (kDigits + 16)
  bool has_digits = false;       // the digits are of the current pass
  std::vector<Candidate> list;   // (kListed + 1)
  int64_t length = 0;            // of the list
  float lowest = 0;
  bool is_finite = true;
  int64_t num_above = 0, num_equal = 0;
  DrawArgs draw;
};

// The threads that work on a row: the calling thread, when `team` is null, or the team with one scratch per thread.
struct RowThreads {
  const SampleKernels& kernels;
  Team* team;
  std::span<SampleScratch> scratch;

  SampleScratch& row() const { return scratch[0]; }

  // Calls function(scratch of the thread, begin, end) for the chunks of [0, count).
  template <class F>
  void for_chunks(int64_t count, F&& function) const {
    const auto chunks = [&](SampleScratch& own, int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk)
        function(own, chunk * kSampleChunk, std::min(count, (chunk + 1) * kSampleChunk));
    };
    const int64_t num_chunks = (count + kSampleChunk - 1) / kSampleChunk;
    if (team == nullptr || num_chunks == 1) return chunks(scratch[0], 0, num_chunks);
    team->for_pieces(num_chunks, 1, [&](int thread, int64_t first, int64_t last) {
      chunks(scratch[static_cast<size_t>(thread)], first, last);
    });
  }
};

// A row of scores with its summary.
struct ScoreRow {
  const float* scores = nullptr;
  int64_t count = 0;
  float best = kMasked;    // the largest score
  float lowest = 0;        // the lowest one that is not masked
  bool is_finite = false;  // of the values that were scanned

  bool is_masked() const { return best == kMasked; }
};

// Divides `values` (count) by `divisor`, masks them and stores them in `out`. Without mask and with a divisor of 1,
// `out` may be null: the scores are `values` themselves. Fills block_max of the row.
ScoreRow scan_row(const RowThreads& threads, const float* values, int64_t count, const uint32_t* allowed_mask,
                  float divisor, float* out);
// Returns the lowest id of the largest score. The row must be the last one scanned.
int32_t best_id(const RowThreads& threads, const ScoreRow& row);
// Returns the sum of exp(score - best) over scores that are at least `floor`.
double exp_sum(const RowThreads& threads, const ScoreRow& row, float floor);

struct Rank {
  int64_t num_above = 0, num_equal = 0;
};
// Returns how many scores are above `score`, and how many with an id below `end` are equal to it.
Rank rank_of(const RowThreads& threads, const ScoreRow& row, float score, int64_t end);

}  // namespace capstan
