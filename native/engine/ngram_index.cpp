#include "native/engine/ngram_index.h"

#include <algorithm>
#include <bit>

#include "native/base/hash.h"
#include "native/engine/draft_pacer.h"

namespace capstan {
namespace {

constexpr size_t kFirstBuckets = 256;
// Weight of the newest prediction in the average. The first predictions weigh more, so that a start that fails costs
// little.
constexpr double kNewest = 0.125;

}  // namespace

void NgramIndex::update(std::span<const int32_t> token_ids, int num_given) {
  while (num_indexed_ < static_cast<int>(token_ids.size())) {
    const int32_t token_id = token_ids[static_cast<size_t>(num_indexed_)];
    if (match_ > 0) {
      const double is_true = token_ids[static_cast<size_t>(match_)] == token_id ? 1 : 0;
      accuracy_ += std::max(kNewest, 1.0 / (num_predictions_ + 2)) * (is_true - accuracy_);
      ++num_predictions_;
    }
    ++num_indexed_;
    // The end of the prompt is looked up too, because the first drawn token follows it.
    if (num_indexed_ >= num_given) look_up(token_ids.first(static_cast<size_t>(num_indexed_)));
    add(token_ids, num_indexed_);
  }
}

int NgramIndex::num_proposed() const {
  return match_ == 0 ? 0 : best_num_drafts(options_.num_tokens, accuracy_, kRowCost);
}

void NgramIndex::propose(std::span<const int32_t> token_ids, int count, std::vector<int32_t>& out) const {
  const auto num_tokens = static_cast<size_t>(num_indexed_), first = out.size();
  for (size_t at = static_cast<size_t>(match_); out.size() < first + static_cast<size_t>(count); ++at) {
    // A place near the end continues with the proposal itself, as in a repetition.
    out.push_back(at < num_tokens ? token_ids[at] : out[first + at - num_tokens]);
  }
}

size_t NgramIndex::bucket_of(std::span<const int32_t> token_ids, int end) const {
  const auto length = static_cast<size_t>(options_.min_ngram);
  return hash_ids(0, token_ids.subspan(static_cast<size_t>(end) - length, length)) & (newest_.size() - 1);
}

void NgramIndex::add(std::span<const int32_t> token_ids, int end) {
  if (newest_.size() < static_cast<size_t>(end)) {
    rebuild(token_ids, std::max(kFirstBuckets, std::bit_ceil(token_ids.size() * 2)));
    return;
  }
  previous_.resize(static_cast<size_t>(end) + 1);
  if (end < options_.min_ngram) return;
  int32_t& newest = newest_[bucket_of(token_ids, end)];
  previous_[static_cast<size_t>(end)] = newest;
  newest = end;
}

void NgramIndex::rebuild(std::span<const int32_t> token_ids, size_t num_buckets) {
  newest_.assign(num_buckets, 0);
  previous_.clear();
  for (int end = 1; end <= num_indexed_; ++end)
    add(token_ids, end);
}

void NgramIndex::look_up(std::span<const int32_t> token_ids) {
  const int end = static_cast<int>(token_ids.size());
  match_ = 0;
  if (end < options_.min_ngram || newest_.empty()) return;
  int longest = options_.min_ngram - 1, candidate = newest_[bucket_of(token_ids, end)];
  for (int i = 0; i < kMaxCandidates && candidate > 0; ++i, candidate = previous_[static_cast<size_t>(candidate)]) {
    const int limit = std::min(options_.max_ngram, candidate);
    int length = 0;
    while (length < limit &&
           token_ids[static_cast<size_t>(candidate - 1 - length)] == token_ids[static_cast<size_t>(end - 1 - length)])
      ++length;
    if (length <= longest) continue;
    longest = length;
    match_ = candidate;
    if (length == options_.max_ngram) return;
  }
}

}  // namespace capstan
