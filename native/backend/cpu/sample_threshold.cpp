#include "native/backend/cpu/sample_threshold.h"

#include <cmath>
#include <functional>

#include "native/base/number.h"

namespace capstan {

namespace {

// Integers in the order of the scores.
uint32_t order_key(float score) {
  const uint32_t bits = float_bits(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
float score_of(uint32_t key) {
  return bits_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

// Searches the smallest number of scores, the best first, whose weights reach a target. The weight of a score is 1, or
// its mass exp(score - best).
class Search {
 public:
  Search(const RowThreads& threads, const ScoreRow& row, bool has_mass)
      : threads_(threads), row_(row), has_mass_(has_mass) {}

  // The result is at least `lower_bound`. Each round narrows the range of keys that holds it, until its scores fit in a
  // list or are all equal.
  Threshold find(uint64_t target, float lower_bound) {
    uint32_t first = order_key(row_.best), last = order_key(lower_bound);  // the range, downwards
    while (first != last) {
      if (list_range(score_of(last), score_of(first)))
        return threads_.row().length > 0 ? cut_list(target) : Threshold{score_of(last), kLastId};
      int shift = 0;
      while ((first - last) >> shift >= kDigits)
        ++shift;
      count_digits(first, last, shift);
      const uint64_t* digits = threads_.row().digits.data();
      const uint32_t last_digit = (first - last) >> shift;  // may also count scores below the range
      uint32_t digit = 0;
      for (; digit <= last_digit && digits[digit] < target; ++digit)
        target -= digits[digit];
      if (digit > last_digit) return {score_of(last), kLastId};
      first -= digit << shift;
      last = first - std::min(first - last, (1u << shift) - 1);
    }
    return cut_ties(target, score_of(first));
  }

  // Lists the scores in [low, high] in the row's list. Returns false when they do not fit.
  bool list_range(float low, float high) {
    for (SampleScratch& scratch : threads_.scratch)
      scratch.length = 0;
    threads_.for_chunks(row_.count, [&](SampleScratch& own, int64_t begin, int64_t end) {
      own.length = threads_.kernels.list(row_.scores + begin, end - begin, static_cast<int32_t>(begin), low, high,
                                         own.list.data(), own.length);
    });
    SampleScratch& all = threads_.row();
    for (const SampleScratch& scratch : threads_.scratch.subspan(1)) {
      if (all.length + scratch.length > kListed) return false;
      std::copy_n(scratch.list.begin(), scratch.length, all.list.begin() + all.length);
      all.length += scratch.length;
    }
    return all.length <= kListed;
  }

 private:
  uint64_t weight_of(float score) const {
    if (!has_mass_) return 1;
    return static_cast<uint64_t>(std::exp(static_cast<double>(score) - row_.best) * kMassUnit);
  }

  // Adds the weights of the range to the row's digits.
  void count_digits(uint32_t first, uint32_t last, int shift) {
    HistogramArgs all;
    all.lowest = score_of(last);
    all.highest = score_of(first);
    all.highest_key = first;
    all.shift = shift;
    all.has_mass = has_mass_;
    all.best = row_.best;
    for (SampleScratch& scratch : threads_.scratch)
      scratch.has_digits = false;
    threads_.for_chunks(row_.count, [&](SampleScratch& own, int64_t begin, int64_t end) {
      if (!own.has_digits) std::fill(own.digits.begin(), own.digits.end(), uint64_t{0});
      own.has_digits = true;
      HistogramArgs args = all;
      args.scores = row_.scores + begin;
      args.count = end - begin;
      args.digits = own.digits.data();
      threads_.kernels.add_histogram(args);
    });
    std::vector<uint64_t>& sum = threads_.row().digits;
    if (!threads_.row().has_digits) std::fill(sum.begin(), sum.end(), uint64_t{0});
    for (const SampleScratch& scratch : threads_.scratch.subspan(1))
      if (scratch.has_digits)
        for (size_t digit = 0; digit < kDigits; ++digit)
          sum[digit] += scratch.digits[digit];
  }

  // Halves the list until the candidate that reaches the target is left, or the last one.
  Threshold cut_list(uint64_t target) {
    Candidate* begin = threads_.row().list.data();
    Candidate* end = begin + threads_.row().length;
    while (end - begin > 1) {
      Candidate* middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, ranks_before);
      uint64_t weight = 0;
      for (const Candidate* candidate = begin; candidate < middle; ++candidate)
        weight += weight_of(candidate->score);
      if (weight >= target) {
        end = middle;
      } else {
        target -= weight;
        begin = middle;
      }
    }
    return {begin->score, begin->id};
  }

  // Keeps the lowest ids of `score` that reach the target.
  Threshold cut_ties(uint64_t target, float score) {
    const uint64_t weight = weight_of(score);
    if (weight == 0) return {score, kLastId};
    auto left = static_cast<int64_t>((target + weight - 1) / weight);
    int64_t* counts = threads_.row().chunk_counts.data();
    threads_.for_chunks(row_.count, [&](SampleScratch&, int64_t begin, int64_t end) {
      int64_t num_above = 0, num_equal = 0;
      threads_.kernels.rank(row_.scores + begin, end - begin, score, num_above, num_equal);
      counts[begin / kSampleChunk] = num_equal;
    });
    int64_t begin = 0;
    for (; begin < row_.count && counts[begin / kSampleChunk] < left; begin += kSampleChunk)
      left -= counts[begin / kSampleChunk];
    for (int64_t id = begin; id < row_.count; ++id)
      if (row_.scores[id] == score && --left == 0) return {score, static_cast<int32_t>(id)};
    return {score, kLastId};
  }

  const RowThreads& threads_;
  const ScoreRow& row_;
  const bool has_mass_;
};

// Returns a score that at least `k` scores reach: the k-th largest of the maxima of blocks.
float lower_bound_of_top(const RowThreads& threads, const ScoreRow& row, int64_t k) {
  const int64_t num_blocks = (row.count + kMaxBlock - 1) / kMaxBlock;
  if (k > num_blocks) return row.lowest;
  std::vector<float>& sorted = threads.row().sorted_max;
  std::copy_n(threads.row().block_max.begin(), num_blocks, sorted.begin());
  const auto kth = sorted.begin() + k - 1;
  std::nth_element(sorted.begin(), kth, sorted.begin() + num_blocks, std::greater<>());
  return std::max(*kth, row.lowest);
}

// Returns the sum of exp(score - best) over the scores that `among` keeps.
double kept_mass(const RowThreads& threads, const ScoreRow& row, const Threshold& among, int64_t num_among) {
  const double mass = exp_sum(threads, row, among.score);
  if (among.last_id == kLastId) return mass;
  const Rank rank = rank_of(threads, row, among.score, row.count);
  // Fewer than num_among may be left by a mask.
  const int64_t num_excluded = std::max<int64_t>(0, rank.num_above + rank.num_equal - num_among);
  return mass - static_cast<double>(num_excluded) * std::exp(static_cast<double>(among.score) - row.best);
}

}  // namespace

Threshold find_top_k(const RowThreads& threads, const ScoreRow& row, int64_t k) {
  return Search(threads, row, false).find(static_cast<uint64_t>(k), lower_bound_of_top(threads, row, k));
}

Threshold find_top_p(const RowThreads& threads, const ScoreRow& row, float top_p, const Threshold& among,
                     int64_t num_among) {
  const double mass = kept_mass(threads, row, among, num_among);
  const auto target = static_cast<uint64_t>(mass * static_cast<double>(top_p) * kMassUnit);
  // Scores further below the best have a total mass of at most what top-p drops.
  const double behind = std::log(static_cast<double>(row.count) / ((1.0 - static_cast<double>(top_p)) * mass)) + 0.01;
  const auto lower_bound = static_cast<float>(row.best - behind - std::abs(row.best) * 1e-6);
  const float lowest = std::max({lower_bound, row.lowest, among.score});
  return tighter(Search(threads, row, true).find(std::max(target, uint64_t{1}), lowest), among);
}

std::vector<Candidate> list_kept(const RowThreads& threads, const ScoreRow& row, const Threshold& threshold) {
  std::vector<Candidate> kept;
  const auto add = [&](const Candidate& candidate) {
    if (threshold.keeps(candidate.score, candidate.id)) kept.push_back(candidate);
  };
  if (Search(threads, row, false).list_range(threshold.score, row.best)) {
    std::for_each_n(threads.row().list.begin(), threads.row().length, add);
  } else {
    for (int64_t id = 0; id < row.count; ++id)
      add({row.scores[id], static_cast<int32_t>(id)});
  }
  std::sort(kept.begin(), kept.end(), ranks_before);
  return kept;
}

}  // namespace capstan
