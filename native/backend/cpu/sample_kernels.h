#pragma once
// The passes of sampling over a part of a row, compiled once per instruction set (kernels.h). No result depends on how
// a row is cut, except the sums of exp_sum, which the caller takes over chunks of a constant size.
#include <cstdint>

namespace capstan {

constexpr int64_t kSampleChunk = 4096;  // ids per call; a multiple of 64 and of kMaxBlock
constexpr int64_t kMaxBlock = 256;      // ids per entry of block_max
constexpr int kDigits = 2048;           // entries of a histogram
constexpr int64_t kListed = 1024;       // candidates in a list
// Unit of a mass exp(score - best), as an integer, so that the order of additions does not matter. A vocabulary of 2^23
// ids sums to at most 2^63.
constexpr double kMassUnit = 1099511627776.0;  // 2^40

struct Candidate {
  float score;
  int32_t id;
};

// Copies or changes values, and summarizes the results.
struct ScanArgs {
  const float* values = nullptr;
  // Bit i % 32 of word i / 32: values[i] stays, else it becomes -inf. Null: all values stay.
  const uint32_t* allowed_mask = nullptr;
  float divisor = 1;
  float* out = nullptr;        // (count) the results, or null; may be `values`
  float* block_max = nullptr;  // (ceil(count / kMaxBlock)) maxima of the results
  int64_t count = 0;
  // Both are combined with what they hold.
  float lowest = 0;       // the lowest result that is not -inf
  bool is_finite = true;  // no value is NaN or Inf
};

// Adds the weights of keys to a histogram. A key is a score as an integer in the same order (order_key in
// sample_threshold.h).
struct HistogramArgs {
  const float* scores = nullptr;
  int64_t count = 0;
  float lowest = 0, highest = 0;  // the range; vectors without a score in it are skipped
  uint32_t highest_key = 0;       // of `highest`; the entry of a key is (highest_key - key) >> shift
  int shift = 0;
  bool has_mass = false;  // the weight of a score: 1, or exp(score - best) in units of 1 / kMassUnit
  float best = 0;
  uint64_t* digits = nullptr;  // (kDigits + 16) the last entries are for scores outside the range
};

// Gumbel-max over scores above `floor`, and scores equal to it with an id up to `last_id`.
struct DrawArgs {
  const float* scores = nullptr;
  const float* block_max = nullptr;  // (ceil(count / kMaxBlock)) of the scores
  int64_t count = 0;
  int32_t first_id = 0;  // of scores[0], a multiple of kSampleChunk
  float floor = 0;       // finite
  int32_t last_id = 0;
  uint64_t seed = 0;
  uint32_t position = 0, choice = 0;
  // The best noisy score so far and its id, both updated. Ties go to the lowest id.
  double best = 0;
  int32_t best_id = 0;
};

struct SampleKernels {
  void (*scan)(ScanArgs& args);
  // Returns the sum of exp(value - best) over values that are at least `floor`.
  double (*exp_sum)(const float* values, int64_t count, float best, float floor);
  void (*add_histogram)(const HistogramArgs& args);
  // Appends the scores in [low, high] to a list of `length`, until it holds kListed + 1. Returns the new length.
  int64_t (*list)(const float* scores, int64_t count, int32_t first_id, float low, float high, Candidate* list,
                  int64_t length);
  // Adds the number of values above and equal to `value`.
  void (*rank)(const float* values, int64_t count, float value, int64_t& num_above, int64_t& num_equal);
  void (*draw)(DrawArgs& args);
};

}  // namespace capstan
