#include "native/backend/cpu/sample_row.h"

namespace capstan {

namespace {

size_t divide_up(int64_t count, int64_t part) {
  return static_cast<size_t>((count + part - 1) / part);
}

}  // namespace

SampleScratch::SampleScratch(int64_t vocab_size)
    : scores(static_cast<size_t>(vocab_size) * sizeof(float), "the scores of a row"),
      block_max(divide_up(vocab_size, kMaxBlock)),
      sorted_max(block_max.size()),
      chunk_sums(divide_up(vocab_size, kSampleChunk)),
      chunk_counts(chunk_sums.size()),
      digits(kDigits + 16),
      list(kListed + 1) {}

ScoreRow scan_row(const RowThreads& threads, const float* values, int64_t count, const uint32_t* allowed_mask,
                  float divisor, float* out) {
  for (SampleScratch& scratch : threads.scratch)
    scratch.lowest = -kMasked, scratch.is_finite = true;
  float* block_max = threads.row().block_max.data();
  threads.for_chunks(count, [&](SampleScratch& own, int64_t begin, int64_t end) {
    ScanArgs args;
    args.values = values + begin;
    args.allowed_mask = allowed_mask == nullptr ? nullptr : allowed_mask + begin / 32;
    args.divisor = divisor;
    args.out = out == nullptr ? nullptr : out + begin;
    args.block_max = block_max + begin / kMaxBlock;
    args.count = end - begin;
    args.lowest = own.lowest;
    args.is_finite = own.is_finite;
    threads.kernels.scan(args);
    own.lowest = args.lowest;
    own.is_finite = args.is_finite;
  });
  ScoreRow row{out == nullptr ? values : out, count, kMasked, -kMasked, true};
  row.best = *std::max_element(block_max, block_max + divide_up(count, kMaxBlock));
  for (const SampleScratch& scratch : threads.scratch) {
    row.lowest = std::min(row.lowest, scratch.lowest);
    row.is_finite = row.is_finite && scratch.is_finite;
  }
  return row;
}

int32_t best_id(const RowThreads& threads, const ScoreRow& row) {
  const std::vector<float>& block_max = threads.row().block_max;
  const auto block = std::find(block_max.begin(), block_max.end(), row.best) - block_max.begin();
  const float* begin = row.scores + block * kMaxBlock;
  return static_cast<int32_t>(std::find(begin, row.scores + row.count, row.best) - row.scores);
}

double exp_sum(const RowThreads& threads, const ScoreRow& row, float floor) {
  double* sums = threads.row().chunk_sums.data();
  threads.for_chunks(row.count, [&](SampleScratch&, int64_t begin, int64_t end) {
    sums[begin / kSampleChunk] = threads.kernels.exp_sum(row.scores + begin, end - begin, row.best, floor);
  });
  double total = 0;
  for (size_t chunk = 0; chunk < divide_up(row.count, kSampleChunk); ++chunk)
    total += sums[chunk];
  return total;
}

Rank rank_of(const RowThreads& threads, const ScoreRow& row, float score, int64_t end_id) {
  for (SampleScratch& scratch : threads.scratch)
    scratch.num_above = scratch.num_equal = 0;
  threads.for_chunks(row.count, [&](SampleScratch& own, int64_t begin, int64_t end) {
    const int64_t middle = std::clamp(end_id, begin, end);
    int64_t num_later = 0;
    threads.kernels.rank(row.scores + begin, middle - begin, score, own.num_above, own.num_equal);
    threads.kernels.rank(row.scores + middle, end - middle, score, own.num_above, num_later);
  });
  Rank rank;
  for (const SampleScratch& scratch : threads.scratch) {
    rank.num_above += scratch.num_above;
    rank.num_equal += scratch.num_equal;
  }
  return rank;
}

}  // namespace capstan
